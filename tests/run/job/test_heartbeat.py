"""Heartbeats: what a rank writes, another process reads; and when silence is a hang."""

import itertools
import multiprocessing
import os
import signal
import struct
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hornbook.run.job import heartbeat as heartbeats
from hornbook.run.job.heartbeat import (
    MIN_FIRST_SILENCE,
    MIN_SILENCE,
    PERIOD,
    PHASES,
    RECENT,
    SLOT_BYTES,
    Heartbeat,
    Watchdog,
    shared_heartbeats,
)
from hornbook.run.launch.rank import QUIET_SECONDS
from hornbook.run.ledger.ledger import At
from hornbook.run.loop.training_loop import longest_wait


def test_a_beat_says_where_the_rank_is() -> None:
    heartbeat = Heartbeat(rank=2)
    before = heartbeat.read()
    assert (before.phase, before.step, before.slowest) == ("setup", 0, 0)
    heartbeat.enter("clip", At(7, 896))
    status = heartbeat.read()
    assert (status.phase, status.step, status.tokens) == ("clip", 7, 896)
    assert status.sequence == before.sequence + 1


def test_what_came_before_the_first_phase_is_no_measure_of_it() -> None:
    heartbeat = Heartbeat()
    heartbeat.enter("setup", At())
    assert heartbeat.read().slowest == 0  # a long set-up gets MIN_FIRST_SILENCE, not five times some microseconds


def test_a_phase_is_known_by_its_longest_time() -> None:
    heartbeat = Heartbeat()
    began = time.monotonic_ns()
    heartbeat.enter("data", At())
    time.sleep(0.02)
    heartbeat.enter("clip", At())
    ended = time.monotonic_ns()
    heartbeat.enter("data", At())
    heartbeat.enter("clip", At())
    assert heartbeat.read().phase == "clip"
    heartbeat.enter("data", At())
    assert 0.02e9 <= heartbeat.read().slowest <= max(ended - began, time.monotonic_ns() - ended)
    assert heartbeat.slowest_seconds >= 0.02


def test_other_processes_see_the_beats_of_each_rank() -> None:
    heartbeats = shared_heartbeats(3)

    def status(rank: int) -> None:
        heartbeats[rank].enter(PHASES[rank], At(rank, 10 * rank))

    context = multiprocessing.get_context("fork")
    for rank in range(3):
        worker = context.Process(target=status, args=(rank,))
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
    assert [(b.phase, b.step, b.tokens, b.sequence) for b in (heartbeat.read() for heartbeat in heartbeats)] == [
        (PHASES[rank], rank, 10 * rank, 1) for rank in range(3)
    ]


def test_nothing_half_written_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.run.job.heartbeat.READS", 10**9)  # the writer may have to wait for a busy machine
    (heartbeat,) = shared_heartbeats(1)
    writer = os.fork()
    if writer == 0:
        for number in itertools.count():
            heartbeat.enter("data", At(number, 3 * number))
            sum(range(500))  # a phase of some microseconds
    try:
        steps, deadline = set(), time.monotonic() + 60
        while len(steps) < 200:
            status = heartbeat.read()
            assert status.tokens == 3 * status.step
            steps.add(status.step)
            assert time.monotonic() < deadline
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def half_a_beat(memory: bytearray) -> None:
    """As if the rank had been interrupted within its second beat: sequence and step are new, the rest is old."""
    struct.pack_into("=Q", memory, 0, 2)
    struct.pack_into("=Q", memory, 16, 9)


def test_a_beat_is_waited_for_until_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.run.job.heartbeat.READS", 10**9)
    memory = bytearray(SLOT_BYTES)
    heartbeat = Heartbeat(memory)
    heartbeat.enter("data", At(1, 3))
    half_a_beat(memory)
    threading.Timer(0.1, heartbeat.enter, ("clip", At(9, 27))).start()
    status = heartbeat.read()
    assert (status.step, status.tokens) == (9, 27)


def test_a_rank_that_died_within_a_beat_is_not_waited_for() -> None:
    memory = bytearray(SLOT_BYTES)
    heartbeat = Heartbeat(memory)
    heartbeat.enter("data", At(1, 3))
    half_a_beat(memory)
    assert heartbeat.read().step == 9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: clock.now)
    return clock


def seconds_to_hang(watchdog: Watchdog, clock: Any, seconds: float, hang_seconds: float, tick: float = PERIOD) -> float:
    """Look every so often; after how many seconds it was called a hang, or infinity."""
    began = clock.now
    while clock.now < began + seconds:
        clock.now += tick
        if watchdog.expired(hang_seconds):
            return clock.now - began
    return float("inf")


def test_silence_is_a_hang_after_what_the_phase_took_before(clock: Any) -> None:
    heartbeat = Heartbeat()
    assert seconds_to_hang(Watchdog(heartbeat), clock, 400, 0.0) == pytest.approx(MIN_FIRST_SILENCE, abs=0.6)
    assert seconds_to_hang(Watchdog(heartbeat), clock, 400, 2.0) == pytest.approx(MIN_FIRST_SILENCE, abs=0.6)
    heartbeat.enter("data", At())
    heartbeat.enter("data", At())  # now it was once through it
    assert seconds_to_hang(Watchdog(heartbeat), clock, 400, 0.0) == pytest.approx(MIN_SILENCE, abs=0.6)
    assert seconds_to_hang(Watchdog(heartbeat), clock, 400, 2.0) == pytest.approx(2.0, abs=0.6)
    heartbeat._slowest[PHASES.index("data")] = int(4e9)
    heartbeat.enter("data", At())
    assert seconds_to_hang(Watchdog(heartbeat), clock, 400, 0.0) == pytest.approx(20.0, abs=0.6)


def test_a_hang_and_its_stacks_are_known_within_ten_seconds(clock: Any) -> None:
    heartbeat = Heartbeat()
    heartbeat.enter("data", At())
    heartbeat.enter("data", At())
    watchdog = Watchdog(heartbeat)
    clock.now += 0.99 * PERIOD  # the first look comes so long after the last sign of life
    assert not watchdog.expired(0.0)
    assert 0.99 * PERIOD + seconds_to_hang(watchdog, clock, 20, 0.0) + QUIET_SECONDS + 0.2 < 10


def test_a_phase_that_took_long_once_is_forgotten_after_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compilation of a minute must not give every later hang five: the limit follows the 99.9th percentile."""
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    heartbeat = Heartbeat()

    def go_through(seconds: int, times: int) -> None:
        for _ in range(times):
            heartbeat.enter("data", At())
            now[0] += seconds * 10**9
            heartbeat.enter("clip", At())
        heartbeat.enter("data", At())
        heartbeat.enter("clip", At())

    def slowest() -> float:
        heartbeat.enter("data", At())
        return heartbeat.read().slowest / 1e9

    go_through(60, 1)
    go_through(1, RECENT - 100)
    assert slowest() == 60
    go_through(1, 2 * RECENT)
    assert slowest() == 1
    assert heartbeat.slowest_seconds == 60  # collectives go on to wait for the slowest ever
    heartbeat.expect_change()
    assert slowest() == 0


def test_a_beat_ends_the_silence(clock: Any) -> None:
    heartbeat = Heartbeat()
    watchdog = Watchdog(heartbeat)
    for _ in range(10):
        heartbeat.enter("data", At())
        assert seconds_to_hang(watchdog, clock, 8, 0.0) == float("inf")


def test_a_machine_that_was_frozen_is_not_a_hang(clock: Any) -> None:
    heartbeat = Heartbeat()
    for _ in range(2):
        heartbeat.enter("data", At())
    watchdog = Watchdog(heartbeat)
    clock.now += 3600
    assert not watchdog.expired(0.0)
    assert seconds_to_hang(watchdog, clock, 30, 0.0, tick=1.0) > MIN_SILENCE


def test_a_collective_waits_much_longer_than_anything_took() -> None:
    heartbeat = Heartbeat()
    assert longest_wait(heartbeat) == 120
    heartbeat._slowest[0] = int(10e9)
    assert longest_wait(heartbeat) == 200
    heartbeat._slowest[0] = int(100e9)
    assert longest_wait(heartbeat) == 600


def test_waiting_is_no_measure_of_a_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waited for hours on standby has 300 s for its set-up like any other, not five times those hours."""
    now = [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])
    heartbeat = Heartbeat()
    heartbeat.enter("setup", At())
    now[0] += 7_200 * 10**9
    heartbeat.begin()
    heartbeat.enter("setup", At())
    assert heartbeat.read().slowest == 0
    assert heartbeat.slowest_seconds == 0
