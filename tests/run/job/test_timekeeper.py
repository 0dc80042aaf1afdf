"""When a run is shortened, and to what: by a clock that the test turns."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.files.run_directory import RunDir
from hornbook.optim.config.batch_schedule import LinearRamp, NoRamp
from hornbook.run.job.timekeeper import MARGIN, Timekeeper, seconds_spent
from hornbook.run.ledger.ledger import At, Ledger
from hornbook.run.ledger.step_report import Step
from hornbook.run.ledger.training_length import Cut, TrainingLength

BATCH = 40


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def step_of(number: int, tokens: int, size: int, seconds: float) -> Step:
    return Step(
        attempt=1,
        step=number,
        tokens=tokens,
        step_tokens=size,
        loss=1.0,
        grad_norm=1.0,
        lr=1.0,
        skipped=False,
        token_hash="",
        first_sample=0,
        num_samples=size // 10,
        seconds=seconds,
        data_seconds=0.0,
        final=False,
    )


class Drive:
    """A run whose steps, and what is between them, take as long as the test says."""

    def __init__(self, limit: float, steps: int, spent: float = 0.0, length: TrainingLength | None = None) -> None:
        self.clock = Clock()
        self.keeper = Timekeeper(limit, spent, self.clock)
        self.length = length or TrainingLength(steps * BATCH, NoRamp().batches(BATCH), 10)
        self.done = self.tokens = 0
        self.entries: list[int] = []

    def step(self, seconds: float, beside: float = 0.0) -> None:
        size = self.length.rows(self.tokens) * 10
        self.clock.now += seconds + beside
        self.done, self.tokens = self.done + 1, self.tokens + size
        if self.tokens >= self.length.tokens:
            return
        length = self.keeper.tokens_in_time(step_of(self.done, self.tokens, size, seconds), self.length)
        assert self.tokens < length <= self.length.tokens
        if length < self.length.tokens:
            self.length = self.length.cut([Cut(self.tokens, length)])
            self.entries.append(self.done)

    @property
    def over(self) -> bool:
        return self.tokens >= self.length.tokens

    @property
    def seconds(self) -> float:
        return self.clock.now - 1000


def test_a_run_that_ends_in_time_is_left_alone() -> None:
    drive = Drive(limit=101, steps=100)
    while not drive.over:
        drive.step(1.0)
    assert (drive.done, drive.entries) == (100, [])


def test_the_first_step_compiles_and_says_nothing_about_the_others() -> None:
    drive = Drive(limit=140, steps=100)
    drive.step(30.0)
    while not drive.over:
        drive.step(1.0)
    assert (drive.done, drive.entries) == (100, [])


def test_slow_steps_shorten_the_run_once_and_it_ends_in_time() -> None:
    drive = Drive(limit=100, steps=100)
    while not drive.over:
        drive.step(2.0)
    assert drive.entries == [4]  # the first that is known enough of
    assert 100 * (1 - MARGIN) - 3 <= drive.seconds <= 100


def test_one_measured_step_is_enough_once_half_the_time_is_gone() -> None:
    drive = Drive(limit=100, steps=10)
    while not drive.over:
        drive.step(30.0)
    assert drive.entries[0] == 2
    assert drive.seconds <= 100


def test_what_is_between_the_steps_counts() -> None:
    drive = Drive(limit=100, steps=60)
    while not drive.over:
        drive.step(1.0, beside=10.0 if drive.done % 10 == 9 else 0.0)
    assert drive.entries
    assert drive.seconds + 10 <= 100  # as long as the longest pause, for the last evaluation and save


def test_earlier_attempts_count() -> None:
    drive = Drive(limit=100, steps=60, spent=50.0)
    while not drive.over:
        drive.step(1.0)
    assert drive.entries == [4]
    assert drive.seconds <= 50


def test_a_neighbour_who_comes_later_shortens_it_then() -> None:
    drive = Drive(limit=100, steps=80)
    while not drive.over:
        drive.step(1.0 if drive.done < 40 else 2.5)
    assert 40 < drive.entries[0] < 60
    assert len(drive.entries) <= 8  # the window has to fill with slow steps
    assert drive.seconds <= 100


def test_time_that_is_up_leaves_one_step() -> None:
    drive = Drive(limit=1, steps=100)
    while not drive.over:
        drive.step(5.0)
    assert (drive.done, drive.entries) == (2, [1])


@given(st.integers(0, 10**6), st.floats(0.5, 3.0), st.floats(0, 0.4))
def test_noise_writes_few_entries_and_the_bound_holds(seed: int, slowness: float, noise: float) -> None:
    drive, draw = Drive(limit=300, steps=300), random.Random(seed)
    while not drive.over:
        drive.step(slowness * draw.uniform(1 - noise, 1 + noise))
    assert len(drive.entries) <= 12
    assert drive.seconds <= 300 + 2 * slowness * (1 + noise)
    if slowness * (1 + noise) < 1:
        assert not drive.entries


def test_a_ramp_is_cut_at_whole_steps() -> None:
    ramp = LinearRamp(start_tokens=10, over_tokens=300).batches(40)
    drive = Drive(limit=10, steps=0, length=TrainingLength(2000, ramp, 10))
    sizes = []
    while not drive.over:
        before = drive.tokens
        drive.step(drive.length.rows(drive.tokens) * 0.1)
        sizes.append(drive.tokens - before)
    assert drive.entries
    assert sizes == [ramp.at(sum(sizes[:number])) for number in range(len(sizes))]
    assert drive.seconds <= 10


@pytest.mark.parametrize("allowed", [0, 39, 40, 79.5, 80, 1e9])
def test_the_end_is_a_whole_step(allowed: float) -> None:
    length = TrainingLength(1000, NoRamp().batches(40), 10)
    assert length.end_within(400, allowed) == min(400 + max(int(allowed // 40), 1) * 40, 1000)


def test_seconds_are_those_of_all_starts_without_the_time_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, now = RunDir(tmp_path).create(), Clock()
    monkeypatch.setattr("hornbook.run.ledger.ledger.time.time", now)
    assert seconds_spent(run) == 0
    with Ledger(run) as ledger:
        ledger.note("start", At())
        now.now += 10
        ledger.note("save", At(5, 50))
    run.metrics.write_text(f'{{"attempt": 1, "step": 9, "tokens": 90, "time": {now.now + 7}}}\n')  # then it was killed
    now.now += 5000
    with Ledger(run) as ledger:
        ledger.note("restart", At())
        now.now += 100
        ledger.note("resume", At(5, 50))
        now.now += 3
        ledger.note("finish", At(9, 90))
    assert seconds_spent(run) == pytest.approx(20)
