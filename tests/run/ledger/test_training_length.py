"""The length of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.errors import UsageError
from hornbook.optim.config.batch_schedule import LinearRamp, NoRamp
from hornbook.optim.config.schedules import WSD, Constant, Cosine, Linear, Schedule
from hornbook.run.ledger.training_length import Cut, TrainingLength, training_length
from hornbook.settings.fields import Duration
from hornbook.settings.training import TrainConfig


def no_epochs(_: float) -> int:
    raise AssertionError("tokens were given")


@given(st.integers(1, 10**6), st.integers(2, 600), st.integers(1, 40))
def test_steps_add_up_to_whole_rows(tokens: int, sequence: int, rows: int) -> None:
    length = training_length(TrainConfig(tokens=tokens, sequence=sequence, batch_tokens=rows * sequence), no_epochs)
    assert tokens <= length.tokens < tokens + sequence
    assert length.tokens % sequence == 0
    consumed, steps = 0, 0
    planned = length.steps_from(0)
    if planned > 2000:
        consumed, steps = (planned - 5) * length.batches.at(0), planned - 5
    while consumed < length.tokens:
        taken = length.rows(consumed)
        assert 0 < taken <= rows
        assert length.steps_from(consumed) == planned - steps
        consumed, steps = consumed + taken * sequence, steps + 1
    assert (consumed, steps) == (length.tokens, planned)


def test_epochs_are_counted_by_the_data() -> None:
    train = TrainConfig(epochs=2.5, sequence=10, batch_tokens=40)
    assert training_length(train, lambda epochs: round(epochs * 400)) == TrainingLength(1000, NoRamp().batches(40), 10)


def test_the_last_step_is_stated() -> None:
    batches = NoRamp().batches(40)
    assert TrainingLength(100, batches, 10).describe() == "3 steps of 40 tokens, the last of 20: 100 tokens"
    assert TrainingLength(80, batches, 10).describe() == "2 steps of 40 tokens: 80 tokens"


def test_the_sizes_of_a_ramp_are_stated() -> None:
    ramp = LinearRamp(start_tokens=20, over_tokens=50)
    text = "5 steps of 20 to 40 tokens (2 sizes, 40 from token 50 on), the last of 30: 130 tokens"
    assert TrainingLength(130, ramp.batches(40), 10).describe() == text
    assert (
        TrainingLength(100, ramp.batches(40), 10).describe().startswith("4 steps of 20 to 40 tokens (2 sizes, 40 from")
    )


def test_a_ramp_takes_whole_rows_to_the_last_token() -> None:
    train = TrainConfig(
        tokens=995, sequence=10, batch_tokens=80, ramp=LinearRamp(start_tokens=20, over_tokens=300), micro_batch=2
    )
    length, consumed, rows = training_length(train, no_epochs), 0, []
    while consumed < length.tokens:
        rows.append(length.rows(consumed))
        consumed += 10 * rows[-1]
    assert consumed == length.tokens == 1000
    assert rows == [2] * 5 + [4] * 3 + [6] * 2 + [8] * 8 + [2]
    assert length.steps_from(0) == len(rows)


def test_a_length_must_be_given() -> None:
    with pytest.raises(UsageError, match="how long to train is not set"):
        training_length(TrainConfig(), no_epochs)


SCHEDULES = [
    Constant(warmup=Duration.model_validate("10%")),
    Linear(warmup=Duration.model_validate("100 tokens"), floor=0.05),
    Cosine(warmup=Duration.model_validate("7 steps")),
    WSD(floor=0.1),
    WSD(shape="linear", decay_share=0.5, warmup=Duration.model_validate("20%")),
]


@given(st.sampled_from(SCHEDULES), st.lists(st.integers(1, 99), max_size=5, unique=True), st.data())
def test_a_cut_stretches_the_schedule_and_the_rate_does_not_jump(
    schedule: Schedule, ats: list[int], data: st.DataObject
) -> None:
    """Before a cut every factor is as if it were not, at the cut too, and the last one is the end of the schedule."""
    length = TrainingLength(4000, NoRamp().batches(40), 10)
    for at in sorted(ats):
        if at * 40 + 40 >= length.tokens:
            break
        shorter = length.cut([Cut(at * 40, data.draw(st.integers(at + 1, length.tokens // 40 - 1)) * 40)])
        for tokens in range(0, at * 40 + 1, 40):
            assert shorter.schedule_clock(tokens) == pytest.approx(length.schedule_clock(tokens), rel=1e-12)
        length = shorter
    clocks = [length.schedule_clock(tokens) for tokens in range(0, length.tokens + 1, 40)]
    assert clocks == sorted(clocks)
    assert clocks[-1] == pytest.approx(4000)
    end = schedule(clocks[-1], length.planned, length.batches)
    assert end == pytest.approx(schedule(4000, 4000, length.batches))
    for tokens in (cut.at for cut in length.cuts):  # no jump: within a token before the cut it is the same rate
        before, after = (schedule(length.schedule_clock(at), 4000, length.batches) for at in (tokens - 1, tokens))
        assert after == pytest.approx(before, abs=0.05)


def test_a_run_that_is_not_cut_has_the_clock_of_its_tokens() -> None:
    clock = TrainingLength(4000, NoRamp().batches(40), 10).schedule_clock(2**60 + 1)
    assert (clock, type(clock)) == (2**60 + 1, int)  # no float, which would change bits


def test_a_cut_that_comes_before_another_takes_its_place() -> None:
    length = TrainingLength(4000, NoRamp().batches(40), 10)
    cuts = [Cut(400, 3000), Cut(2000, 2800), Cut(1200, 2400)]
    assert length.cut(cuts) == length.cut([cuts[0], cuts[2]])
    assert length.cut(cuts).tokens == 2400
    assert length.cut([cuts[1], Cut(2000, 2600)]).cuts == (Cut(2000, 2600),)
