"""Batch ramps: against counting step by step, and against what BLOOM's training logged."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hornbook.optim.config.batch_schedule import Batches, BatchStage, LinearRamp, NoRamp, StagedRamp
from hornbook.optim.config.schedules import Constant, Cosine
from hornbook.settings.fields import Duration
from hornbook.settings.resolve import ConfigError, resolve

RAMPED = ("train.ramp=linear", "train.ramp.start_tokens=1024", "train.ramp.over_tokens=100k", "train.micro_batch=4")


def stepped(size_of, end: int) -> list[int]:
    """Sizes of the steps until `end`, one after the other."""
    sizes, clock = [], 0
    while clock < end:
        sizes.append(size_of(clock))
        clock += sizes[-1]
    return sizes


def linear(start: int, increment: int, over: int, full: int, clock: int) -> int:
    """The size of a step by the number of increments whose share of `over` lies behind the clock."""
    count = (full - start) // increment
    return min(full, start + increment * int(Fraction(clock, 1) / Fraction(over, count)))


@given(
    start=st.integers(1, 30),
    increment=st.integers(1, 30),
    count=st.integers(1, 12),
    over=st.integers(12, 3000),
    end=st.integers(1, 5000),
)
def test_a_linear_ramp_is_the_rule_step_by_step(start: int, increment: int, count: int, over: int, end: int) -> None:
    full = start + count * increment
    ramp = LinearRamp(start_tokens=start, increment_tokens=increment, over_tokens=over)
    assert not list(ramp.problems(full))
    batches = ramp.batches(full)
    sizes = stepped(lambda clock: linear(start, increment, over, full, clock), end)
    assert stepped(batches.at, end) == sizes
    assert batches.steps(0, end) == len(sizes)
    for done in range(0, len(sizes), 7):
        assert batches.steps(sum(sizes[:done]), end) == len(sizes) - done
        assert batches.tokens_of(done) == sum(sizes[:done])
    assert batches.tokens_of(len(sizes)) == sum(sizes)


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(1, 90)), min_size=1, max_size=6), st.integers(1, 3000))
def test_stages_follow_one_another(lengths: list[tuple[int, int]], end: int) -> None:
    """Smaller batches may follow larger ones, and a large step may pass over a whole stage."""
    until, stages = 0, []
    for length, size in lengths:
        until += length
        stages.append(BatchStage(batch_tokens=size, until_tokens=until))
    ramp = StagedRamp(stages=stages)
    assert not list(ramp.problems(50))
    batches = ramp.batches(50)
    sizes = stepped(lambda t: next((s.batch_tokens for s in stages if t < s.until_tokens), 50), end)
    assert stepped(batches.at, end) == sizes
    assert batches.steps(0, end) == len(sizes)
    assert batches.tokens_of(len(sizes)) == sum(sizes)


def test_every_size_for_as_many_steps() -> None:
    """As ModernBERT: sizes 10, 20, 30 for 100 steps each take 6,000 tokens."""
    batches = LinearRamp(start_tokens=10, over_tokens=6000, equal="steps").batches(40)
    assert list(batches.runs()) == [(0, 10, 100), (1000, 20, 100), (3000, 30, 100), (6000, 40, float("inf"))]


def test_bloom_took_the_samples_that_its_log_says() -> None:
    """Clock in rows here. The public log (bigscience, tr11-176B-ml) at iteration 85,376, in its batch of 2,048 rows."""
    batches = LinearRamp(start_tokens=192, increment_tokens=16, over_tokens=9_765_625).batches(2048)
    assert batches.tokens_of(85_376) == 158_692_272
    assert batches.at(158_692_272) == 2048
    assert batches.steps(0, 158_692_272) == 85_376


def test_the_first_plan_of_bloom() -> None:
    """16 rows to 2,048 by 16: its notes count 76,894 rows (4,805 steps) at 16, and 18,146 steps until 384 is done.

    They add fractions of steps; whole ones begin anew at every size, which is less than one step more for each.
    """
    batches = LinearRamp(start_tokens=16, increment_tokens=16, over_tokens=9_765_625).batches(2048)
    assert len(batches.sizes) == 128
    runs = [run for run in batches.runs() if run[1] <= 384]
    assert 4805 <= runs[0][2] <= 4806
    assert 18_146 <= sum(steps for _, _, steps in runs) <= 18_146 + len(runs)
    widths = [b - a for a, b in zip(batches.firsts, batches.firsts[1:], strict=False)]
    assert int(sum(width / size for width, size in zip(widths, batches.sizes, strict=False) if size <= 384)) == 18_146
    assert batches.tokens_of(3707) == 59_312  # its log, iteration 3,707


def test_without_a_ramp_nothing_grows() -> None:
    batches = NoRamp().batches(40)
    assert batches == Batches((0,), (40,))
    assert (batches.at(0), batches.at(10**15), batches.steps(5, 86), batches.tokens_of(2.5)) == (40, 40, 3, 100.0)


def test_schedules_are_the_same_curve_under_any_ramp() -> None:
    """At a token after the warm-up the rate is the same whatever the steps are; within it, at the token a step ends."""
    ramped, flat = LinearRamp(start_tokens=10, over_tokens=5000).batches(100), NoRamp().batches(100)
    schedule = Cosine(warmup=Duration.model_validate("1000 tokens"))
    for clock in (1000, 4321, 9999):
        assert schedule(clock, 10_000, ramped) == schedule(clock, 10_000, flat)
    assert schedule(0, 10_000, ramped) == 10 / 1000
    assert schedule(90, 10_000, ramped) == schedule(0, 10_000, flat)


def test_a_warmup_in_steps_ends_with_that_step_of_the_run() -> None:
    batches = LinearRamp(start_tokens=10, over_tokens=500).batches(100)
    sizes = stepped(batches.at, 2000)
    schedule = Constant(warmup=Duration.model_validate("7 steps"))
    factors = [schedule(sum(sizes[:k]), 2000, batches) for k in range(9)]
    assert factors[:7] == pytest.approx([sum(sizes[: k + 1]) / sum(sizes[:7]) for k in range(7)])
    assert factors[5] < factors[6] == factors[7] == 1


@pytest.mark.parametrize(
    ("words", "key", "text"),
    [
        (["train.ramp.start_tokens=4096"], "train.ramp.start_tokens", "4,096 is not less than train.batch_tokens"),
        (["train.ramp.start_tokens=3Ki"], "train.ramp.start_tokens", "steps of 3,072 do not lead from 3,072 to train"),
        (["train.ramp.increment_tokens=2Ki"], "train.ramp.increment_tokens", "must be a multiple"),
        (["train.ramp.over_tokens=2"], "train.ramp.over_tokens", "raise it"),
        (["train.micro_batch=16"], "train.ramp", "a batch of 1,024 tokens is no whole number of microbatches"),
        (["train.micro_batch=8"], "train.ramp", "train.sequence 256): take a divisor of 4, or other sizes"),
        (["train.ramp.increment_tokens=384"], "train.ramp", "take multiples of train.sequence"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], key: str, text: str) -> None:
    resolve("tiny", RAMPED, {})
    with pytest.raises(ConfigError) as caught:
        resolve("tiny", [*RAMPED, *words], {})
    assert [problem.key for problem in caught.value.problems] == [key]
    assert text in caught.value.problems[0].text


def test_stages_end_one_after_the_other() -> None:
    stages = '[{batch_tokens=1024, until_tokens="9k"}, {batch_tokens=2048, until_tokens="9k"}]'
    with pytest.raises(ConfigError, match="stages must end at growing until_tokens"):
        resolve("tiny", ["train.ramp=stages", f"train.ramp.stages={stages}", "train.micro_batch=4"], {})
    with pytest.raises(ValidationError):
        StagedRamp(stages=[])


@given(
    firsts=st.lists(st.integers(1, 500), max_size=4, unique=True),
    later=st.lists(st.integers(1, 500), max_size=4, unique=True),
    at=st.integers(0, 600),
)
def test_sizes_that_change_on_the_way_are_those_of_before_then_those_of_after(
    firsts: list[int], later: list[int], at: int
) -> None:
    one, other = (
        Batches((0, *sorted(each)), tuple(range(base, base + len(each) + 1)))
        for each, base in ((firsts, 10), (later, 50))
    )
    joined = one.then(at, other)
    assert list(joined.firsts) == sorted(set(joined.firsts))
    assert all(joined.at(tokens) == (one if tokens < at else other).at(tokens) for tokens in range(700))


def test_steps_are_counted_from_any_token_on() -> None:
    batches = Batches((0, 100), (10, 50))
    assert [batches.tokens_of(steps, 80) for steps in (0, 1, 2, 3, 4)] == [0, 10, 20, 70, 120]
