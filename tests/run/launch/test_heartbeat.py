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

from hornbook.run.launch import supervisor
from hornbook.run.launch.pulse import PHASES, SLOT_BYTES, Pulse, shared_pulses
from hornbook.run.launch.supervisor import FIRST_SILENCE, LEAST_SILENCE, Silence
from hornbook.run.ledger import At
from hornbook.run.train import longest_wait


def test_a_beat_says_where_the_rank_is() -> None:
    pulse = Pulse(rank=2, incarnation=3)
    before = pulse.read()
    assert (before.incarnation, before.phase, before.step, before.slowest) == (3, "setup", 0, 0)
    pulse.enter("clip", At(7, 896))
    beat = pulse.read()
    assert (beat.phase, beat.step, beat.tokens, beat.at) == ("clip", 7, 896, At(7, 896))
    assert beat.sequence == before.sequence + 1
    assert before.entered <= beat.entered <= time.monotonic_ns()


def test_what_came_before_the_first_phase_is_no_measure_of_it() -> None:
    pulse = Pulse()
    pulse.enter("setup", At())
    assert pulse.read().slowest == 0  # so that a long set-up has FIRST_SILENCE, not some microseconds times five


def test_a_phase_is_known_by_its_longest_time() -> None:
    pulse = Pulse()
    began = time.monotonic_ns()
    pulse.enter("data", At())
    time.sleep(0.02)
    pulse.enter("clip", At())
    ended = time.monotonic_ns()
    pulse.enter("data", At())
    pulse.enter("clip", At())
    assert pulse.read().phase == "clip"
    pulse.enter("data", At())
    assert 0.02e9 <= pulse.read().slowest <= max(ended - began, time.monotonic_ns() - ended)
    assert pulse.slowest_seconds >= 0.02


def test_other_processes_see_the_beats_of_each_rank() -> None:
    pulses = shared_pulses(3, incarnation=1)

    def beat(rank: int) -> None:
        pulses[rank].enter(PHASES[rank], At(rank, 10 * rank))

    context = multiprocessing.get_context("fork")
    for rank in range(3):
        worker = context.Process(target=beat, args=(rank,))
        worker.start()
        worker.join(60)
        assert worker.exitcode == 0
    assert [(b.phase, b.step, b.tokens, b.sequence) for b in (pulse.read() for pulse in pulses)] == [
        (PHASES[rank], rank, 10 * rank, 1) for rank in range(3)
    ]


def test_nothing_half_written_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.run.launch.pulse.READS", 10**9)  # the writer may have to wait for a busy machine
    (pulse,) = shared_pulses(1, incarnation=0)
    writer = os.fork()
    if writer == 0:
        for number in itertools.count():
            pulse.enter("data", At(number, 3 * number))
            sum(range(500))  # a phase of some microseconds
    try:
        steps, deadline = set(), time.monotonic() + 60
        while len(steps) < 200:
            beat = pulse.read()
            assert beat.tokens == 3 * beat.step
            steps.add(beat.step)
            assert time.monotonic() < deadline
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def half_a_beat(memory: bytearray) -> None:
    """As if the rank had been interrupted within its second beat: sequence and step are new, the rest is old."""
    struct.pack_into("=Q", memory, 0, 2)
    struct.pack_into("=Q", memory, 24, 9)


def test_a_beat_is_waited_for_until_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.run.launch.pulse.READS", 10**9)
    memory = bytearray(SLOT_BYTES)
    pulse = Pulse(memory)
    pulse.enter("data", At(1, 3))
    half_a_beat(memory)
    threading.Timer(0.1, pulse.enter, ("clip", At(9, 27))).start()
    assert pulse.read().at == At(9, 27)


def test_a_rank_that_died_within_a_beat_is_not_waited_for() -> None:
    memory = bytearray(SLOT_BYTES)
    pulse = Pulse(memory)
    pulse.enter("data", At(1, 3))
    half_a_beat(memory)
    assert pulse.read().step == 9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock.now)
    return clock


def listen(silence: Silence, clock: Any, seconds: float, hang_seconds: float, tick: float = supervisor.PERIOD) -> float:
    """Look every so often; after how many seconds it was called a hang, or infinity."""
    began = clock.now
    while clock.now < began + seconds:
        clock.now += tick
        if silence.lasts(hang_seconds):
            return clock.now - began
    return float("inf")


def hear(pulse: Pulse) -> Silence:
    return Silence(SimpleNamespace(pulse=pulse))  # pyright: ignore[reportArgumentType]


def test_silence_is_a_hang_after_what_the_phase_took_before(clock: Any) -> None:
    pulse = Pulse()
    assert listen(hear(pulse), clock, 400, 0.0) == pytest.approx(FIRST_SILENCE, abs=0.6)
    assert listen(hear(pulse), clock, 400, 2.0) == pytest.approx(FIRST_SILENCE, abs=0.6)
    pulse.enter("data", At())
    pulse.enter("data", At())  # now it was once through it
    assert listen(hear(pulse), clock, 400, 0.0) == pytest.approx(LEAST_SILENCE, abs=0.6)
    assert listen(hear(pulse), clock, 400, 2.0) == pytest.approx(2.0, abs=0.6)
    pulse._slowest[PHASES.index("data")] = int(4e9)
    pulse.enter("data", At())
    assert listen(hear(pulse), clock, 400, 0.0) == pytest.approx(20.0, abs=0.6)


def test_a_beat_ends_the_silence(clock: Any) -> None:
    pulse = Pulse()
    silence = hear(pulse)
    for _ in range(10):
        pulse.enter("data", At())
        assert listen(silence, clock, 8, 0.0) == float("inf")


def test_a_machine_that_was_frozen_is_not_a_hang(clock: Any) -> None:
    pulse = Pulse()
    for _ in range(2):
        pulse.enter("data", At())
    silence = hear(pulse)
    clock.now += 3600
    assert not silence.lasts(0.0)
    assert listen(silence, clock, 30, 0.0, tick=1.0) > LEAST_SILENCE


def test_a_collective_waits_much_longer_than_anything_took() -> None:
    pulse = Pulse()
    assert longest_wait(pulse) == 120
    pulse._slowest[0] = int(10e9)
    assert longest_wait(pulse) == 200
    pulse._slowest[0] = int(100e9)
    assert longest_wait(pulse) == 600
