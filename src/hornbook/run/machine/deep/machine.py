"""`hornbook doctor --deep`: is this machine sound? What one process can see, and what the slots found."""

import os
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch
import xxhash

from hornbook.data.corpus import Corpus
from hornbook.data.shards.shard import BLOCK_BYTES, TokenShard
from hornbook.errors import IntegrityError, UsageError
from hornbook.files.durable import TEMPORARY, storage_error, write_file
from hornbook.run.machine.checks import CANNOT_MEET, Check, Verdict, check_shared, drop_cached
from hornbook.run.machine.deep.slots import SlotReport, judge, run_slots
from hornbook.text.pool import usable_cores

MEMORY_BYTES = 1 << 30
"""Memory that all slots of a CPU write patterns into between them; of a GPU each."""
DISK_BYTES = 64 << 20
BLOCKS = 3
"""Blocks of the data that are compared with their checksums."""
CLOCK_SECONDS = 0.2
OPEN_FILES = 1024
THROTTLED = 0.05
_COUNTERS = ("ecc.errors.uncorrected.volatile.total", "clocks_throttle_reasons.hw_slowdown", "temperature.gpu")
_REPLACE = "leave it out: see the machine's own log, and have it replaced"
_REMEDIES = {
    "products": f"one of them is wrong: {_REPLACE}",
    "echo": f"one of them is wrong, or what connects them: {_REPLACE}",
    "alone": CANNOT_MEET,
}
"""By the test of a problem that no slot can be blamed for."""
_TESTS = {"products": ("answer", "products"), "memory": ("answer", "memory"), "echo": ("answer", "echo", "alone")}
"""By line: tests whose faults and problems it shows."""


def _line(name: str, text: str, verdict: Verdict = "ok", remedy: str = "", value: float | None = None) -> Check:
    return Check(name, verdict, text, remedy, value)


def examine(folder: Path, data: Path | None = None, *, whole: bool = False) -> list[Check]:
    """All checks; `folder` is on the disk to check, `whole` reads all of the data. Uses no network."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    slots = torch.cuda.device_count() if device == "cuda" else usable_cores()
    free = psutil.virtual_memory().available // 4
    num_bytes = MEMORY_BYTES if device == "cuda" else min(MEMORY_BYTES, free) // slots
    reports = run_slots(range(slots), device, num_bytes)
    return [
        *slot_lines(reports, device, num_bytes),
        *check_read_back(folder),
        *check_clock(folder),
        *check_limits(),
        *check_shared(),
        *check_throttling(),
        *check_counters(),
        *(check_data(data, whole=whole) if data is not None else ()),
    ]


def slot_lines(reports: Sequence[SlotReport], device: str, num_bytes: int) -> list[Check]:
    """What the slots found, with the slots to blame."""
    faults, problems = judge(reports)
    what = f"{len(reports)} {'GPUs' if device == 'cuda' else 'cores'}"
    texts = {
        "products": f"fp32 and bf16 have the same bits on {what}",
        "memory": f"{num_bytes * len(reports) >> 20:,} MiB hold what is written, on {what}",
        "echo": _slowest(reports),
    }
    lines = list[Check]()
    for name, text in texts.items():
        found = {f"slot {each.slot}: {each.evidence}": _REPLACE for each in faults if each.test in _TESTS[name]}
        found |= {each.text: _REMEDIES[each.test] for each in problems if each.test in _TESTS[name]}
        if found:
            lines.append(_line(name, "; ".join(found), "fail", "; ".join(dict.fromkeys(found.values()))))
        else:
            lines.append(_line(name, text))
    return lines


def _slowest(reports: Sequence[SlotReport]) -> str:
    rates = [rate for each in reports for rate in each.echo.values() if rate is not None]
    return f"{len(rates)} pairs, {min(rates):,.0f} MB/s the slowest" if rates else "one slot: nobody to send to"


def check_read_back(folder: Path) -> list[Check]:
    """Whether the disk gives back what was written, from the disk and not from the cache."""
    probe, block = folder / f"{TEMPORARY}doctor-{os.getpid()}", os.urandom(DISK_BYTES)
    try:
        write_file(probe, block)
        with probe.open("rb") as file:
            drop_cached(file.fileno())
            begun = time.perf_counter()
            same = xxhash.xxh3_64_digest(file.read()) == xxhash.xxh3_64_digest(block)
            rate = DISK_BYTES / 1e6 / (time.perf_counter() - begun)
        inodes = os.statvfs(folder).f_favail
    except OSError as error:
        return [
            _line("read-back", str(storage_error(error, folder)), "fail", "name another place: doctor --folder DIR")
        ]
    finally:
        probe.unlink(missing_ok=True)
    lines = [
        _line("read-back", f"{DISK_BYTES >> 20} MiB come back as they were, {rate:,.0f} MB/s", value=rate)
        if same
        else _line("read-back", f"other bytes came back from {folder}", "fail", "do not save there: replace the disk")
    ]
    few = 0 < inodes < 10_000  # 0: the file system has no such limit
    remedy = "delete files: a full table of files refuses saves" if few else ""
    return [*lines, _line("inodes", f"{inodes:,} files may still be made", "warn" if few else "ok", remedy, inodes)]


def check_clock(folder: Path) -> list[Check]:
    """Whether the clocks go alike, and as that of the disk."""
    wall, monotonic = time.time(), time.monotonic()
    time.sleep(CLOCK_SECONDS)
    drift = abs((time.time() - wall) - (time.monotonic() - monotonic))
    probe = folder / f"{TEMPORARY}doctor-{os.getpid()}"
    try:
        probe.touch()
        offset = abs(probe.stat().st_mtime - time.time())
    except OSError:
        offset = 0.0
    finally:
        probe.unlink(missing_ok=True)
    text = f"wall and monotonic clock part by {drift * 1e3:.1f} ms, the disk's is {offset:.1f} s off"
    wrong = drift > 0.1 or offset > 5
    return [_line("clock", text, "warn" if wrong else "ok", "set the clocks by NTP" if wrong else "", offset)]


def check_limits() -> list[Check]:
    """Files that may be open at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = files != resource.RLIM_INFINITY and files < OPEN_FILES
    return [_line("open files", f"{files:,} at once", "warn" if few else "ok", "ulimit -n 4096" if few else "", files)]


def check_throttling(stat: Path = Path("/sys/fs/cgroup/cpu.stat")) -> list[Check]:
    """The share of its periods in which the container was held back for using its processors too much."""
    try:
        found = dict(line.split() for line in stat.read_text().splitlines())
        share = int(found["nr_throttled"]) / max(int(found["nr_periods"]), 1)
    except (OSError, ValueError, KeyError):
        return []
    much = share > THROTTLED
    remedy = "give the container more cores, or start fewer ranks" if much else ""
    text = f"held back in {share:.1%} of its periods"
    return [_line("throttling", text, "warn" if much else "ok", remedy, share)]


def check_counters() -> list[Check]:
    """Of each GPU: memory errors that could not be corrected, whether it slows down, its temperature."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = f"--query-gpu={','.join(_COUNTERS)}"
    words = [program, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return [_line("GPU counters", f"{program} fails: {error}", "warn", "see the driver's log")]
    return [_counters(i, line.split(", ")) for i, line in enumerate(done.stdout.strip().splitlines())]


def _counters(gpu: int, values: Sequence[str]) -> Check:
    errors, slow, degrees = (value.strip() for value in values)
    text = f"{errors} uncorrected memory errors, {degrees} C, slowed down by the hardware: {slow.lower()}"
    if errors.isdigit() and int(errors):
        return _line(f"GPU {gpu}", text, "fail", _REPLACE, int(errors))
    hot = slow == "Active"
    return _line(f"GPU {gpu}", text, "warn" if hot else "ok", "see to its cooling and power" if hot else "")


def check_data(data: Path, *, whole: bool = False) -> list[Check]:
    """Blocks of token shards, compared with their checksums: a few at random, or all of them."""
    try:
        corpus = Corpus.open(data)
        if whole:
            corpus.verify()
            return [_line("data", f"every file of {data} is as its checksums say")]
        blocks = [(shard, block) for shard in corpus.shards for block in range(_blocks(shard))]
        for shard, block in random.sample(blocks, min(BLOCKS, len(blocks))):
            shard.check_block(block)
    except (IntegrityError, UsageError) as error:
        return [_line("data", str(error), "fail", "put back the files, or make them again")]
    return [_line("data", f"{min(BLOCKS, len(blocks))} of {len(blocks)} blocks of {data} are as their checksums say")]


def _blocks(shard: TokenShard) -> int:
    return -(-shard.mapped.nbytes // BLOCK_BYTES)


def hardware_faults(lines: Sequence[Check]) -> list[Check]:
    """The lines that say that the hardware is faulty."""
    names = ("products", "memory", "echo")
    return [each for each in lines if each.verdict == "fail" and (each.name in names or each.name.startswith("GPU"))]
