"""Measures what matters for training on this machine, and names obstacles with their remedies."""

import locale
import os
import platform
import re
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import psutil
import torch

from hornbook.errors import LostDeviceError
from hornbook.files.durable import TEMPORARY, storage_error, write_file
from hornbook.files.extras import install_command
from hornbook.kernels.device_errors import device_error, recognize
from hornbook.kernels.team import team_library
from hornbook.model.layers.precision import choose_precision
from hornbook.model.layers.products import is_own, linear
from hornbook.parallel.device import device_problem, unseen_gpus, visible_gpus
from hornbook.run.machine.environment import package_version
from hornbook.run.machine.rank_checks import NOTICED_SECONDS, REDUCE_BYTES, measure_ranks
from hornbook.text.pool import usable_cores

Verdict = Literal["ok", "warn", "fail"]

MATMUL_SIZE = 1024
MATMUL_SECONDS = 0.4
DISK_BYTES = 64 << 20
FSYNCS = 20
SHARED_BYTES = 1 << 30
_GIGABYTE = 10**9
CANNOT_MEET = (
    "processes of this machine cannot reach each other: allow local connections in the firewall, or name the network "
    "interface: GLOO_SOCKET_IFNAME=lo"
)


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    name: str
    verdict: Verdict
    text: str
    remedy: str = ""
    """What to do; "" where all is well."""
    value: float | None = None
    """The measurement, if any."""


def _check(name: str, text: str, value: float | None = None, *, warn: str = "", fail: str = "") -> Check:
    """A line whose verdict is that of its remedy: `fail`, else `warn`; all is well without one."""
    return Check(name, "fail" if fail else "warn" if warn else "ok", text, fail or warn, value)


def diagnose(folder: Path) -> list[Check]:
    """All checks; disk and space are those of `folder`. Takes a few seconds and uses no network."""
    return [
        *check_python(),
        *check_torch(),
        *check_devices(),
        *check_threads(),
        *check_kernels(),
        *check_matmul(),
        *check_ranks(),
        *check_disk(folder),
        *check_shared(),
        *check_offline(),
        *check_text(),
        *check_extras(),
    ]


def check_python() -> list[Check]:
    """The interpreter."""
    return [_check("python", f"{platform.python_version()} at {sys.executable}")]


def check_torch() -> list[Check]:
    """torch, and whether it sees the GPUs of this machine."""
    build, named, count = torch.version.cuda, visible_gpus(), torch.cuda.device_count()
    text = f"{torch.__version__} ({'CUDA ' + build if build else 'CPU build'})"
    needed = _needed("torch")
    if needed and _numbers(torch.__version__) < _numbers(needed):
        remedy = f"hornbook needs torch {needed} or newer: pip install 'torch>={needed}'"
        return [_check("torch", text, fail=remedy)]
    remedy = "" if count or named == [] else unseen_gpus()
    if named and 0 < count < len(named):
        remedy = f"CUDA_VISIBLE_DEVICES names {len(named)} GPUs, and torch sees {count}: name those of `nvidia-smi -L`"
    return [_check("torch", text, fail=remedy) if build else _check("torch", text, warn=remedy)]


def check_devices() -> list[Check]:
    """Devices and their free memory."""
    memory = psutil.virtual_memory()
    text = f"{memory.available / _GIGABYTE:.1f} GB free of {memory.total / _GIGABYTE:.1f}"
    remedy = "close other programs: even small models need about 2 GB" if memory.available < 2 * _GIGABYTE else ""
    checks = [_check("memory", text, float(memory.available), warn=remedy)]
    for i in range(torch.cuda.device_count()):
        if (problem := device_problem(torch.device("cuda", i))) is not None:
            name = f"GPU {i}" if isinstance(problem, LostDeviceError) else f"cuda:{i}"  # `hardware_faults` by its name
            checks.append(_check(name, "cannot be used", fail=str(problem)))
            continue
        free, total = torch.cuda.mem_get_info(i)
        text = f"{torch.cuda.get_device_name(i)}, {free / _GIGABYTE:.1f} GB free of {total / _GIGABYTE:.1f}"
        remedy = "another process holds its memory: nvidia-smi names it" if free < total / 2 else ""
        checks.append(_check(f"cuda:{i}", text, float(free), warn=remedy))
    if torch.backends.mps.is_available():
        checks.append(_check("mps", "Apple GPU"))
    return checks


def drop_cached(file: int) -> None:
    """Ask the system to forget what it holds of a file in memory, where it can be asked (not on macOS)."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)


def check_threads() -> list[Check]:
    """Number of torch's CPU threads, compared with the cores that this process may use."""
    cores, threads = usable_cores(), torch.get_num_threads()
    text = f"{threads} for {cores} cores, {torch.backends.cpu.get_cpu_capability()}"
    physical, remedy = min(cores, psutil.cpu_count(logical=False) or cores), ""
    if threads > cores:
        remedy = f"they will wait for each other: set OMP_NUM_THREADS={cores}"
    elif threads < physical:
        remedy = f"cores stay idle: set OMP_NUM_THREADS={physical}"
    return [_check("threads", text, threads, warn=remedy)]


def check_kernels() -> list[Check]:
    """Whether the CPU kernels run on torch's threads."""
    threads, library = torch.get_num_threads(), team_library()
    if library is None and threads > 1:
        text = "one thread: no OpenMP library with GOMP_parallel is beside this torch, or it uses another"
        remedy = "norms, losses and gates on the CPU run on one core: install torch from PyPI, whose wheels bring one"
        return [_check("kernels", text, 1, warn=remedy)]
    text = f"{threads} threads of torch's own OpenMP ({library.name})" if library else "one thread"
    return [_check("kernels", text, threads)]


def check_matmul() -> list[Check]:
    """Matrix products per second on the best device, in fp32 and bf16."""
    gpus = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    device = next((each for each in gpus if device_problem(each) is None), torch.device("cpu"))
    try:
        single, half = (matmul_rate(device, dtype) for dtype in (torch.float32, torch.bfloat16))
        choice = choose_precision(device)
    except RuntimeError as error:
        if (known := device_error(error)) is None:
            raise
        name = f"GPU {device.index}" if isinstance(known, LostDeviceError) else "matmul"
        return [_check(name, f"cannot compute on {device}", fail=str(known))]
    return [
        _check("matmul fp32", f"{single:,.0f} GFLOP/s on {device}", single),
        _check("matmul bf16", f"{half:,.0f} GFLOP/s on {device}", half),
        _check("precision", f"train.precision auto takes {choice.precision}: {choice.reason}"),
    ]


def matmul_rate(device: torch.device, dtype: torch.dtype, side: int = MATMUL_SIZE) -> float:
    """GFLOP/s (2 n^3 per product) of square products of side n, the best of MATMUL_SECONDS."""
    left = torch.randn(side, side, device=device).to(dtype)
    right = torch.randn(side, side, device=device).to(dtype)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    product = linear if is_own(left, side) else torch.mm

    def multiply() -> None:
        product(left, right)
        wait()

    multiply()
    best, until = float("inf"), time.perf_counter() + MATMUL_SECONDS
    while time.perf_counter() < until:
        best = min(best, timed(multiply))
    return 2 * side**3 / best / 1e9


def timed(act: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def check_ranks() -> list[Check]:
    """Whether two ranks can all-reduce, how fast, and whether one notices that the other is gone."""
    devices = torch.cuda.device_count()
    backend = "nccl" if devices > 1 and torch.distributed.is_nccl_available() else "gloo"
    found = measure_ranks(backend)
    where = f"2 ranks over {backend}" + (", on the CPU: NCCL needs two devices" if devices == 1 else "")
    if "error" in found:
        return [_check("ranks", f"{where}: {found['error']}", fail=str(recognize(found["error"]) or CANNOT_MEET))]
    wrong = "" if found["right"] else "do not train on several processes here: update torch, or the driver"
    rate, small = REDUCE_BYTES / 1e6 / found["large_seconds"], found["small_seconds"] * 1e3
    slow = "ranks would wait for it: see what else runs here, or name a faster interface: GLOO_SOCKET_IFNAME=lo"
    deaf = "a run would hang when a rank dies: update torch"
    reduced = f"{rate:,.0f} MB/s for {REDUCE_BYTES >> 20} MiB, {small:.2f} ms for 4 bytes"
    lost = found["lost_seconds"]
    noticed = f"a rank that stays away is {'not ' if lost is None else ''}noticed within {NOTICED_SECONDS:g} s"
    return [
        _check("ranks", f"{where}: sums are {'wrong' if wrong else 'right'}", fail=wrong),
        _check("all-reduce", reduced, rate, warn=slow if rate < 100 else ""),
        _check("time-out", noticed, lost, fail=deaf if lost is None else ""),
    ]


def check_disk(folder: Path) -> list[Check]:
    """Write rate, time of an fsync, and free space of the folder."""
    try:
        rate, milliseconds = disk_rate(folder)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return [_check("disk", str(storage_error(error, folder)), fail="name another place: doctor --folder DIR")]
    slow = "checkpoints will be slow: use a local disk" if rate < 50 else ""
    late = "each save waits for it: use a local disk" if milliseconds > 100 else ""
    few = "checkpoints of a 100M model take 1.2 GB each: free some space" if free < 5 * _GIGABYTE else ""
    return [
        _check("disk write", f"{rate:,.0f} MB/s in {folder}", rate, warn=slow),
        _check("fsync", f"{milliseconds:.1f} ms", milliseconds, warn=late),
        _check("free space", f"{free / _GIGABYTE:,.1f} GB", float(free), warn=few),
    ]


def check_shared(shared: Path = Path("/dev/shm")) -> list[Check]:
    """Free shared memory, which NCCL needs between ranks and torch between processes; a container often has 64 MB."""
    if not shared.is_dir():
        return []
    free = shutil.disk_usage(shared).free
    remedy = "" if free >= SHARED_BYTES else "give the container more: docker run --shm-size 8g"
    return [_check("shared", f"{free / _GIGABYTE:.1f} GB free in {shared}", float(free), warn=remedy)]


def disk_rate(folder: Path) -> tuple[float, float]:
    """(MB/s of writing and syncing 64 MiB, median milliseconds of syncing a small file); raises OSError."""
    probe = folder / f"{TEMPORARY}doctor-{os.getpid()}"
    block = os.urandom(1 << 20) * (DISK_BYTES >> 20)
    try:
        rate = DISK_BYTES / 1e6 / timed(lambda: write_file(probe, block))
        times = [timed(lambda: write_file(probe, b"hornbook")) for _ in range(FSYNCS)]
    finally:
        probe.unlink(missing_ok=True)
    return rate, statistics.median(times) * 1e3


def check_offline() -> list[Check]:
    """The offline variables of Hugging Face libraries; hornbook itself uses no network."""
    names = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name, "0") not in ("", "0")]
    said = f"set: {', '.join(names)}" if names else "nothing here needs the network; HF_HUB_OFFLINE is not set"
    return [_check("offline", said)]


def check_text() -> list[Check]:
    """Whether files, names and the terminal use UTF-8."""
    found = {
        "files": locale.getpreferredencoding(False),
        "names": sys.getfilesystemencoding(),
        "terminal": getattr(sys.stdout, "encoding", None) or "utf-8",
    }
    other = [f"{what} {encoding}" for what, encoding in found.items() if re.sub("[-_]", "", encoding.lower()) != "utf8"]
    if other:
        return [_check("text", ", ".join(other), warn="set LANG=C.UTF-8 (or PYTHONUTF8=1): text would be misread")]
    return [_check("text", "UTF-8")]


def check_extras() -> list[Check]:
    """Optional packages, by the extra that brings them."""
    extras: dict[str, list[str]] = {}
    for line in requirements():
        if match := re.match(r"([\w.-]+).*extra == ['\"](\w+)['\"]", line):
            extras.setdefault(match.group(2), []).append(match.group(1))
    extras.pop("dev", None)
    present = [extra for extra in sorted(extras) if all(map(package_version, extras[extra]))]
    absent = []
    for extra in sorted(extras.keys() - set(present)):
        missing = [package for package in extras[extra] if not package_version(package)]
        absent.append(extra if len(missing) == len(extras[extra]) else f"{extra} (lacks {', '.join(missing)})")
    text = f"installed: {', '.join(present) or 'none'}"
    if absent:
        text += f"; not installed: {', '.join(absent)}: {install_command('NAME')}"
    return [_check("extras", text)]


def worst(checks: list[Check]) -> Verdict:
    """The worst verdict of all checks."""
    verdicts = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"


def requirements() -> list[str]:
    """Requirements of the installed hornbook; none in a checkout that is not installed."""
    try:
        return metadata.requires("hornbook") or []
    except metadata.PackageNotFoundError:
        return []


def _needed(package: str) -> str | None:
    """The lowest version of a package that hornbook accepts."""
    for line in requirements():
        if match := re.match(rf"{package}\s*>=\s*([\d.]+)", line):
            return match.group(1)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])
