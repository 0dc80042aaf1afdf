"""Checks that each slot of this machine makes by itself, and votes on the answers.

A slot is what one rank gets: a GPU, or a core of the processor. In each a process multiplies matrices whose bits are
the same on all sound slots, writes patterns into memory and reads them back, and sends bytes to and from every other.
`check_slots` forks, so its caller must have no threads and no CUDA context; `run_slots` starts such a caller.
"""

import contextlib
import datetime
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
import xxhash
from torch.distributed import FileStore, PrefixStore  # pyright: ignore[reportPrivateImportUsage]

SIDE = 384
"""Rows and columns of the golden products."""
ROUNDS = 4
"""Times that each product is made: a fault that comes and goes shows as an answer that changes."""
PATTERNS = (0x5555555555555555, -0x5555555555555556)
"""Every bit is 0 once, and 1 once."""
ECHO_BYTES = 8 << 20
SECONDS, TICK_SECONDS = 60.0, 0.25
"""Longest time for all checks, and between two looks at them."""


@dataclass(frozen=True)
class SlotReport:
    """What the check of one slot found."""

    slot: int
    golden: dict[str, list[str]] = field(default_factory=dict)
    """By dtype: the hash of each round."""
    memory: str = ""
    """What is wrong with its memory; "" where nothing is."""
    echo: dict[str, Any] = field(default_factory=dict)
    """By the number, among the slots checked, of the one it sent to: MB/s, or None where other bytes came back."""
    alone: str = ""
    """Why it could not exchange bytes with the others; "" where it did."""
    error: str = ""
    """Why it could not be checked."""


@dataclass(frozen=True)
class SlotFault:
    """A slot that failed a check."""

    slot: int
    test: str
    evidence: str


@dataclass(frozen=True)
class SlotProblem:
    """A check that failed where no slot can be blamed."""

    test: str
    """products, echo, or alone: bytes could not even be exchanged."""
    text: str


def golden_products(device: torch.device, slot: int) -> dict[str, list[str]]:
    """Hashes of matrix products by dtype, one for each round."""
    del slot  # a test breaks one of them
    index = torch.arange(SIDE * SIDE, dtype=torch.int64)
    left, right = (((index * factor) % 2039 - 1019).view(SIDE, SIDE) / 1019 for factor in (7919, 104729))
    found = dict[str, list[str]]()
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = left.to(device, dtype), right.to(device, dtype)
        found[name] = [_hash(a @ b) for _ in range(ROUNDS)]
    return found


def _hash(tensor: torch.Tensor) -> str:
    return xxhash.xxh3_64_hexdigest(tensor.cpu().contiguous().view(torch.uint8).numpy().data)


def memory_pattern(device: torch.device, num_bytes: int) -> str:
    """Write patterns into memory and read them back; the first wrong word, or ""."""
    words = torch.empty(num_bytes // 8, dtype=torch.int64, device=device)
    for pattern in PATTERNS:
        words.fill_(pattern)
        if int((words != pattern).sum()):
            first = int((words != pattern).nonzero()[0])
            read, written = (value & (1 << 64) - 1 for value in (int(words[first]), pattern))
            return f"word {first} of {len(words)} reads {read:#x} after {written:#x}"
    return ""


def echo_all(number: int, slots: int) -> dict[str, Any]:
    """Exchange bytes with every other slot: MB/s of each pair, None where other bytes came back."""
    sent = (torch.arange(ECHO_BYTES, dtype=torch.int64) * 31 % 251).to(torch.uint8)
    found = dict[str, Any]()
    for low in range(slots):
        for high in range(low + 1, slots):
            back = torch.zeros_like(sent)
            if number == low:
                begun = time.perf_counter()
                dist.send(sent, high)
                dist.recv(back, high)
                rate = 2 * ECHO_BYTES / 1e6 / (time.perf_counter() - begun)
                found[str(high)] = round(rate, 1) if torch.equal(sent, back) else None
            elif number == high:
                dist.recv(back, low)
                dist.send(back, low)
    return found


def be_slot(slot: int, number: int, slots: int, device: str, num_bytes: int, store: str) -> SlotReport:
    """All checks of one slot, the one of this number among `slots` of them, in a process of its own."""
    torch.set_num_threads(1)
    where = torch.device(device, slot) if device == "cuda" else torch.device(device)
    if device == "cpu" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[slot % len(cores)]})
    golden, memory = golden_products(where, slot), memory_pattern(where, num_bytes)
    if slots == 1:
        return SlotReport(slot, golden, memory)
    try:
        group = PrefixStore("group", FileStore(store, slots))
        timeout = datetime.timedelta(seconds=SECONDS / 3)
        dist.init_process_group("gloo", store=group, rank=number, world_size=slots, timeout=timeout)
        echo = echo_all(number, slots)
        dist.barrier()
    except RuntimeError as error:  # another slot died or hangs: that is no fault of this one
        return SlotReport(slot, golden, memory, alone=f"{error}".splitlines()[0])
    return SlotReport(slot, golden, memory, echo)


def check_slots(
    slots: Sequence[int], device: str, num_bytes: int, tick: Callable[[], None] = lambda: None
) -> list[SlotReport]:
    """Fork a process for each slot; the report of each, in their order. Those that die or hang have an error.

    tick: called several times a second.
    """
    with tempfile.TemporaryDirectory(prefix="hornbook-") as folder:
        return _fork_slots(slots, device, num_bytes, tick, f"{folder}/store")


def _fork_slots(
    slots: Sequence[int], device: str, num_bytes: int, tick: Callable[[], None], store: str
) -> list[SlotReport]:
    pipes, pids = dict[int, int](), dict[int, int]()
    try:
        for number, slot in enumerate(slots):
            reader, writer = os.pipe()
            sys.stdout.flush()
            sys.stderr.flush()
            pids[slot] = os.fork()
            if not pids[slot]:
                _run(functools.partial(be_slot, slot, number, len(slots), device, num_bytes, store), slot, writer)
            os.close(writer)
            pipes[slot] = reader
        said, deadline = dict.fromkeys(slots, b""), time.monotonic() + SECONDS
        waiting = {reader: slot for slot, reader in pipes.items()}
        while waiting and time.monotonic() < deadline:
            tick()
            for reader in select.select(list(waiting), [], [], TICK_SECONDS)[0]:
                part = os.read(reader, 1 << 16)
                said[waiting[reader]] += part
                if not part:
                    del waiting[reader]
        return [_report(slot, said[slot], late=slot in waiting.values()) for slot in slots]
    finally:
        for slot, pid in pids.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipes[slot])


def _run(check: Callable[[], SlotReport], slot: int, writer: int) -> NoReturn:
    try:
        answer = asdict(check())
    except BaseException as error:  # noqa: BLE001 - any error is the finding
        answer = {"slot": slot, "error": f"{type(error).__name__}: {error}"}
    with contextlib.suppress(OSError):
        os.write(writer, json.dumps(answer).encode())
    os._exit(0)


def _report(slot: int, said: bytes, *, late: bool) -> SlotReport:
    if late or not said:
        return SlotReport(slot, error="gave no answer in time" if late else "was killed within the check")
    return SlotReport(**{**json.loads(said), "slot": slot})


def run_slots(slots: Sequence[int], device: str, num_bytes: int) -> list[SlotReport]:
    """The same from a process that may have threads: a fresh one forks."""
    words = [sys.executable, "-m", __name__, json.dumps([list(slots), device, num_bytes])]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS + 60, cwd=Path.cwd())
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return [SlotReport(slot, error=last) for slot in slots]
    return [SlotReport(**each) for each in json.loads(done.stdout)]


def judge(reports: Sequence[SlotReport]) -> tuple[list[SlotFault], list[SlotProblem]]:
    """(slots that are faulty, problems that no slot can be blamed for)."""
    faults = [fault for each in reports for fault in _own_faults(each)]
    problems = list[SlotProblem]()
    for dtype in ("fp32", "bf16"):
        odd, apart = _vote_on_products(reports, dtype)
        faults, problems = faults + odd, problems + apart
    if not any(each.error for each in reports) and (alone := [each for each in reports if each.alone]):
        problems.append(SlotProblem("alone", f"slot {alone[0].slot} cannot reach the others: {alone[0].alone}"))
    wrong, doubtful = _vote_on_echoes(reports, {each.slot for each in faults})
    return faults + wrong, problems + doubtful


def _own_faults(report: SlotReport) -> Iterator[SlotFault]:
    """Faults that a report shows by itself."""
    if report.error:
        yield SlotFault(report.slot, "answer", report.error)
    if report.memory:
        yield SlotFault(report.slot, "memory", report.memory)
    for dtype, hashes in report.golden.items():
        if len(set(hashes)) > 1:
            yield SlotFault(report.slot, "products", f"the same {dtype} product has {len(set(hashes))} results")


def _vote_on_products(reports: Sequence[SlotReport], dtype: str) -> tuple[list[SlotFault], list[SlotProblem]]:
    """The slots whose product differs from that of most."""
    steady = {each.slot: each.golden[dtype][0] for each in reports if len(set(each.golden.get(dtype, ()))) == 1}
    counts = Counter(steady.values())
    if len(counts) < 2:
        return [], []
    right, votes = counts.most_common(1)[0]
    if votes * 2 <= len(steady):
        text = f"{dtype} products differ between slots {', '.join(map(str, steady))}, without a majority"
        return [], [SlotProblem("products", text)]
    evidence = f"its {dtype} product differs from that of {votes} slots"
    return [SlotFault(slot, "products", evidence) for slot, found in steady.items() if found != right], []


def _vote_on_echoes(reports: Sequence[SlotReport], faulty: set[int]) -> tuple[list[SlotFault], list[SlotProblem]]:
    """The slots to blame for pairs that got other bytes: faulty ones, and a minority that explains all other pairs.

    faulty: slots that failed another check; their pairs say nothing of anybody else.
    """
    pairs = {(each.slot, reports[int(to)].slot): rate for each in reports for to, rate in each.echo.items()}
    wrong = [pair for pair, rate in pairs.items() if rate is None]
    doubtful = [pair for pair in wrong if faulty.isdisjoint(pair)]
    made = Counter(slot for pair in pairs if faulty.isdisjoint(pair) for slot in pair)
    failed = Counter(slot for pair in doubtful for slot in pair)
    worst = {slot for slot, count in failed.items() if count * 2 > made[slot]}
    if len(worst) * 2 < len(made) and not any(worst.isdisjoint(pair) for pair in doubtful):
        faulty, doubtful = faulty | worst, []
    faults = list[SlotFault]()
    for slot in sorted({slot for pair in wrong for slot in pair} & faulty):
        others = ", ".join(str(sum(pair) - slot) for pair in wrong if slot in pair)
        faults.append(SlotFault(slot, "echo", f"other bytes came back between it and slot {others}"))
    named = ", ".join(f"{low} and {high}" for low, high in doubtful)
    return faults, [SlotProblem("echo", f"other bytes came back between slots {named}")] if doubtful else []


if __name__ == "__main__":
    print(json.dumps([asdict(each) for each in check_slots(*json.loads(sys.argv[1]))]))
