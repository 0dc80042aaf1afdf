"""Measures what matters for training on this machine, and names obstacles with their remedies."""

import locale
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from hornbook.errors import StorageError
from hornbook.extras import install_command
from hornbook.files.durable import TEMPORARY, storage_error, write_file
from hornbook.model.cpu.team import team_library
from hornbook.model.layers.precision import choose_precision
from hornbook.run.checkpoints.commit import free_bytes
from hornbook.run.diagnose.doctor_ranks import NOTICED_SECONDS, REDUCE_BYTES, measure_ranks
from hornbook.run.start.environment import package_version

Verdict = Literal["ok", "warn", "fail"]

MATMUL_SIZE = 1024
MATMUL_SECONDS = 0.4
DISK_BYTES = 64 << 20
FSYNCS = 20
_GIGABYTE = 10**9
_CANNOT_MEET = (
    "processes of this machine cannot reach each other: allow local connections in the firewall, or name the network "
    "interface: GLOO_SOCKET_IFNAME=lo"
)
_CANNOT_MISS = "a run would hang when a rank dies: update torch"


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


def diagnose(folder: Path) -> list[Check]:
    """All checks; disk and space are those of `folder`. Takes a few seconds and uses no network."""
    checks: list[Callable[[], list[Check]]] = [
        check_python,
        check_torch,
        check_devices,
        check_threads,
        check_kernels,
        check_matmul,
        check_ranks,
        lambda: check_disk(folder),
        check_offline,
        check_text,
        check_extras,
    ]
    return [line for check in checks for line in check()]


def check_python() -> list[Check]:
    """The interpreter."""
    version = platform.python_version()
    return [Check("python", "ok", f"{version} at {sys.executable}")]


def check_torch(
    driver: Path = Path("/proc/driver/nvidia/version"), build: str | None = torch.version.cuda
) -> list[Check]:
    """torch, and whether its build fits the driver: `driver` is the file the kernel module makes."""
    text = f"{torch.__version__} ({'CUDA ' + build if build else 'CPU build'})"
    needed = _needed("torch")
    if needed and _numbers(torch.__version__) < _numbers(needed):
        return [Check("torch", "fail", text, f"hornbook needs torch {needed} or newer: pip install 'torch>={needed}'")]
    if driver.exists() and not build:
        remedy = "there is an NVIDIA driver, but this torch cannot use it: install a CUDA build (pytorch.org)"
        return [Check("torch", "warn", text, remedy)]
    if driver.exists() and not torch.cuda.is_available():
        remedy = "the driver is too old for this build, or hides its devices: update it, or see CUDA_VISIBLE_DEVICES"
        return [Check("torch", "fail", text, remedy)]
    return [Check("torch", "ok", text)]


def check_devices() -> list[Check]:
    """Devices and their free memory."""
    memory = psutil.virtual_memory()
    text = f"{memory.available / _GIGABYTE:.1f} GB free of {memory.total / _GIGABYTE:.1f}"
    low = memory.available < 2 * _GIGABYTE
    remedy = "close other programs: even small models need about 2 GB" if low else ""
    checks = [Check("memory", "warn" if low else "ok", text, remedy, float(memory.available))]
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        name = torch.cuda.get_device_name(i)
        text = f"{name}, {free / _GIGABYTE:.1f} GB free of {total / _GIGABYTE:.1f}"
        busy = free < total / 2
        remedy = "another process holds its memory: nvidia-smi names it" if busy else ""
        checks.append(Check(f"cuda:{i}", "warn" if busy else "ok", text, remedy, float(free)))
    if torch.backends.mps.is_available():
        checks.append(Check("mps", "ok", "Apple GPU"))
    return checks


def check_threads() -> list[Check]:
    """Number of torch's CPU threads, compared with the cores that this process may use."""
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    text = f"{threads} for {cores} cores, {torch.backends.cpu.get_cpu_capability()}"
    if threads > cores:
        return [Check("threads", "warn", text, f"they will wait for each other: set OMP_NUM_THREADS={cores}", threads)]
    physical = min(cores, psutil.cpu_count(logical=False) or cores)
    if threads < physical:
        return [Check("threads", "warn", text, f"cores stay idle: set OMP_NUM_THREADS={physical}", threads)]
    return [Check("threads", "ok", text, "", threads)]


def check_kernels() -> list[Check]:
    """Whether the CPU kernels run on torch's threads."""
    threads, library = torch.get_num_threads(), team_library()
    if library is None and threads > 1:
        text = "one thread: no OpenMP library with GOMP_parallel is beside this torch, or it uses another"
        remedy = "norms, losses and gates on the CPU run on one core: install torch from PyPI, whose wheels bring one"
        return [Check("kernels", "warn", text, remedy, 1)]
    return [
        Check(
            "kernels",
            "ok",
            f"{threads} threads of torch's own OpenMP ({library.name})" if library else "one thread",
            "",
            threads,
        )
    ]


def check_matmul() -> list[Check]:
    """Matrix products per second on the best device, in fp32 and bf16."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    single, half = (matmul_rate(device, dtype) for dtype in (torch.float32, torch.bfloat16))
    checks = [Check("matmul fp32", "ok", f"{single:,.0f} GFLOP/s on {device}", "", single)]
    text = f"{half:,.0f} GFLOP/s on {device}"
    checks.append(Check("matmul bf16", "ok", text, "", half))
    choice = choose_precision(device)
    checks.append(Check("precision", "ok", f"train.precision auto takes {choice.precision}: {choice.reason}"))
    return checks


def matmul_rate(device: torch.device, dtype: torch.dtype) -> float:
    """GFLOP/s (2 n^3 per product) of square products of side 1024, the best of MATMUL_SECONDS."""
    left = torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device).to(dtype)
    right = torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device).to(dtype)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    (left @ right).sum()
    wait()
    best, until = float("inf"), time.perf_counter() + MATMUL_SECONDS
    while time.perf_counter() < until:
        begun = time.perf_counter()
        torch.mm(left, right)
        wait()
        best = min(best, time.perf_counter() - begun)
    return 2 * MATMUL_SIZE**3 / best / 1e9


def check_ranks() -> list[Check]:
    """Whether two ranks can all-reduce, how fast, and whether one notices that the other is gone."""
    devices = torch.cuda.device_count()
    backend = "nccl" if devices > 1 and torch.distributed.is_nccl_available() else "gloo"
    found = measure_ranks(backend)
    where = f"2 ranks over {backend}" + (", on the CPU: NCCL needs two devices" if devices == 1 else "")
    if "error" in found:
        return [Check("ranks", "fail", f"{where}: {found['error']}", _CANNOT_MEET)]
    wrong = "" if found["right"] else "do not train on several processes here: update torch, or the driver"
    rate, small = REDUCE_BYTES / 1e6 / found["large_seconds"], found["small_seconds"] * 1e3
    slow = "ranks would wait for it: see what else runs here, or name a faster interface: GLOO_SOCKET_IFNAME=lo"
    reduced = f"{rate:,.0f} MB/s for {REDUCE_BYTES >> 20} MiB, {small:.2f} ms for 4 bytes"
    lost = found["lost_seconds"]
    noticed = f"a rank that stays away is {'not ' if lost is None else ''}noticed within {NOTICED_SECONDS:g} s"
    return [
        Check("ranks", "fail" if wrong else "ok", f"{where}: sums are {'wrong' if wrong else 'right'}", wrong),
        Check("all-reduce", "warn" if rate < 100 else "ok", reduced, slow if rate < 100 else "", rate),
        Check("time-out", "fail" if lost is None else "ok", noticed, _CANNOT_MISS if lost is None else "", lost),
    ]


def check_disk(folder: Path) -> list[Check]:
    """Write rate, time of an fsync, and free space of the folder."""
    try:
        rate, milliseconds = disk_rate(folder)
        free = free_bytes(folder)
    except OSError as error:
        return [Check("disk", "fail", str(storage_error(error, folder)), "name another place: doctor --folder DIR")]
    except StorageError as error:
        return [Check("disk", "fail", str(error), "name another place: doctor --folder DIR")]
    slow = "checkpoints will be slow: use a local disk" if rate < 50 else ""
    late = "each save waits for it: use a local disk" if milliseconds > 100 else ""
    few = "checkpoints of a 100M model take 1.2 GB each: free some space" if free < 5 * _GIGABYTE else ""
    return [
        Check("disk write", "warn" if slow else "ok", f"{rate:,.0f} MB/s in {folder}", slow, rate),
        Check("fsync", "warn" if late else "ok", f"{milliseconds:.1f} ms", late, milliseconds),
        Check("free space", "warn" if few else "ok", f"{free / _GIGABYTE:,.1f} GB", few, float(free)),
    ]


def disk_rate(folder: Path) -> tuple[float, float]:
    """(MB/s of writing and syncing 64 MiB, median milliseconds of syncing a small file); raises OSError."""
    probe = folder / f"{TEMPORARY}doctor-{os.getpid()}"
    block = os.urandom(1 << 20) * (DISK_BYTES >> 20)
    try:
        begun = time.perf_counter()
        write_file(probe, block)
        rate = DISK_BYTES / 1e6 / (time.perf_counter() - begun)
        times = []
        for _ in range(FSYNCS):
            begun = time.perf_counter()
            write_file(probe, b"hornbook")
            times.append(time.perf_counter() - begun)
    finally:
        probe.unlink(missing_ok=True)
    return rate, statistics.median(times) * 1e3


def check_offline() -> list[Check]:
    """The offline variables of Hugging Face libraries; hornbook itself uses no network."""
    names = [name for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name, "0") not in ("", "0")]
    said = f"set: {', '.join(names)}" if names else "nothing here needs the network; HF_HUB_OFFLINE is not set"
    return [Check("offline", "ok", said)]


def check_text() -> list[Check]:
    """Whether files, names and the terminal use UTF-8."""
    found = {
        "files": locale.getpreferredencoding(False),
        "names": sys.getfilesystemencoding(),
        "terminal": getattr(sys.stdout, "encoding", None) or "utf-8",
    }
    other = [f"{what} {encoding}" for what, encoding in found.items() if re.sub("[-_]", "", encoding.lower()) != "utf8"]
    if other:
        remedy = "set LANG=C.UTF-8 (or PYTHONUTF8=1): text would be misread"
        return [Check("text", "warn", ", ".join(other), remedy)]
    return [Check("text", "ok", "UTF-8")]


def check_extras() -> list[Check]:
    """Optional packages, by the extra that brings them."""
    extras: dict[str, list[str]] = {}
    for line in metadata.requires("hornbook") or []:
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
    return [Check("extras", "ok", text)]


def worst(checks: list[Check]) -> Verdict:
    """The worst verdict of all checks."""
    verdicts: set[Any] = {check.verdict for check in checks}
    return "fail" if "fail" in verdicts else "warn" if "warn" in verdicts else "ok"


def _needed(package: str) -> str | None:
    """The lowest version of a package that hornbook accepts."""
    for line in metadata.requires("hornbook") or []:
        if match := re.match(rf"{package}\s*>=\s*([\d.]+)", line):
            return match.group(1)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+", maxsplit=1)[0])[:3])
