"""Devices and clusters: what `hardware.toml` knows, and what a cluster such as `64x8xH100` is. No torch."""

import os
import platform
import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from hornbook.errors import UsageError
from hornbook.plan.devices.measured import read_machine
from hornbook.plan.devices.names import TEMPLATE, devices_named, key, sizes_in, typed, unknown_device
from hornbook.settings.fields import Config

PRECISIONS = {"auto": "bf16", "bf16-pure": "bf16", "float8": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"}
"""Precision of products -> the key of their rate in the table, where they differ."""
BLOCK_SCALED = ("mxfp8", "nvfp4")
"""Precisions whose scales are part of the product: devices that multiply 4 bits have them."""
_CLUSTER = re.compile(
    r"(?:(?P<first>\d+)\s*x\s*)?(?:(?P<second>\d+)\s*x\s*)?(?P<device>(?!x|\d{1,3}$)[a-z0-9].*)", re.IGNORECASE
)
CPU_EFFICIENCY = 0.6
"""Share of its nominal rate that a CPU is taken to reach in products, where `hornbook bench` has measured nothing."""
CPU_BANDWIDTH = 20.0
"""GB/s of a CPU's memory that nobody measured."""

UNIFIED_SHARE = 0.75
"""Share of memory that a CPU shares with its GPU which a process may take: Metal's recommended working set."""


class Device(Config):
    """A device by its data sheet; units as in `hardware.toml`."""

    name: str
    words: tuple[str, ...] = ()
    """Names that people and drivers use for it, its own first; none: a CPU."""
    like: str = ""
    """The device whose chip it has, and whose calibration."""
    sizes: tuple[int, ...] = ()
    """GB of memory that it is sold with and shares with the CPU: a cluster says which."""
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    fp4: float | None = None
    fp32: float = Field(gt=0)
    memory: float = Field(gt=0)
    """GiB."""
    bandwidth: float = Field(gt=0)
    """GB/s."""
    node: int = Field(default=1, ge=1)
    domain: int = Field(default=1, ge=1)
    link: float = Field(default=10.0, gt=0)
    network: float = Field(default=1.0, gt=0)
    watts: float = 0.0
    units: int = 0
    """Streaming multiprocessors or compute units."""
    attention: float = Field(default=1.0, gt=0)
    """Rate of torch's attention over that of the device's best kernel, of which the calibration has a share."""
    threads: int = 0
    """Of a CPU: threads that compute, and cores that this process may use."""
    cores: int = 0
    hour: float | None = Field(default=None, ge=0)
    """Dollars, of a device of the user's; `prices.toml` has those of others."""
    source: str = ""
    at_once: int = Field(default=1, ge=1)
    """Ranks of a CPU that reach these rates beside each other: by its cores, and the threads of each."""

    @property
    def is_cpu(self) -> bool:
        """Whether it is a CPU, whose ranks share its cores and memory."""
        return not self.words

    def rate(self, precision: str) -> float:
        """Operations per second of products in a precision, at the peak: in 16 bits as in the other 16 bits, or in
        fp32 where it has neither. Raises UsageError for narrower ones that it lacks."""
        name = PRECISIONS.get(precision, precision)
        found = getattr(self, name, None)
        if name in ("fp8", "fp4") and (found is None or (precision in BLOCK_SCALED and self.fp4 is None)):
            raise UsageError(f"{self.name} has no products in {precision}, by its data sheet")
        found = found or self.bf16 or self.fp16
        return 1e12 * (self.fp32 if precision == "fp32" or found is None else found)

    @property
    def memory_bytes(self) -> int:
        """Bytes that a process can allocate at most."""
        return int(self.memory * 2**30)


class Cluster(Config):
    """Devices of one kind: `count` in all, `node` of them in a machine."""

    device: Device
    count: int = Field(default=1, ge=1)
    node: int = Field(default=1, ge=1)
    machine: str = ""
    """Pattern of the name under which measurements of this machine lie; "" for a cluster of a data sheet."""

    def shared(self, ranks: int) -> "Cluster":
        """As each of `ranks` ranks finds it: those of a CPU share its cores and its memory's bandwidth."""
        if not self.device.is_cpu or ranks == 1:
            return self
        device = self.device
        part = min(1.0, device.at_once / ranks)
        rates = {"fp32": device.fp32 * part, "bf16": device.bf16 and device.bf16 * part}
        return self.model_copy(
            update={"device": device.model_copy(update=rates | {"bandwidth": device.bandwidth / ranks})}
        )

    @property
    def domain(self) -> int:
        """Devices that the fast link joins: of racks as many as there are (NVL72), else those of a machine at most."""
        device = self.device
        return device.domain if device.domain > device.node else min(self.node, device.domain)

    @property
    def has_choice(self) -> bool:
        """Whether layouts are compared: on one device of this machine a recipe trains as it is."""
        return self.count > 1 or not self.machine

    def __str__(self) -> str:
        if self.device.is_cpu:
            return self.device.name
        return f"{self.count} x {self.device.name}"


@cache
def known_devices() -> tuple[Device, ...]:
    """The devices of `hardware.toml`."""
    return tuple(
        Device.model_validate(each | {"words": (each["name"], *each.get("words", ()))}) for each in _sheets("device")
    )


@cache
def _sheets(table: str) -> list[dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("hardware.toml").read_text(encoding="utf-8"))[table]


def device_of_driver(name: str) -> Device | None:
    """The device of a name that its driver gives; None where it is not known."""
    return next(iter(devices_named(name, known_devices())), None)


def read_hardware(path: Path) -> tuple[Device, ...]:
    """Devices of a user's file, which has the form of `hardware.toml`; one that is known needs only what differs.

    Raises UsageError with the file and the key.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"--hardware {path}: {error.strerror}; it takes a file with a table [[device]], --cluster takes names"
        ) from error
    except ValueError as error:
        raise UsageError(f"--hardware {path}: {error}") from error
    entries = table.get("device")
    if not isinstance(entries, list) or not all(isinstance(each, dict) and "name" in each for each in entries):
        raise UsageError(
            f"--hardware {path}: write a table [[device]] with a name, memory, bandwidth and rates for each"
        )
    return tuple(_own_device(entry, path) for entry in entries)


def _own_device(entry: dict[str, Any], path: Path) -> Device:
    known = next(iter(devices_named(str(entry["name"]), known_devices())), None)
    base = {"words": (str(entry["name"]),)} if known is None else known.model_dump()
    try:
        return Device.model_validate(base | {"source": path.name} | entry)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(f"--hardware {path}: device {entry['name']}: {problems}") from error


def device_named(text: str, own: Sequence[Device] = ()) -> Device:
    """The device that a person names: `H100`, `a100-40gb`; own: the user's. Raises UsageError with names like it."""
    found = devices_named(text, own) or devices_named(text, known_devices())
    if not found:
        for each in _sheets("unrated"):
            if key(text, sized=False) in map(key, each["names"]):
                raise UsageError(
                    f"--cluster {text}: {each['why']}, so no time can be planned. Measure one (`hornbook bench` there) "
                    f"and name it in a file of your own, --hardware FILE:\n{TEMPLATE.format(name=text)}"
                )
        raise UsageError(f"--cluster: {unknown_device(text, (*own, *known_devices()))}")
    device, sizes = found[0], sizes_in(text)
    if not device.sizes:
        return device
    if not sizes:
        sold = ", ".join(map(str, device.sizes))
        raise UsageError(f"--cluster {text}: it is sold with {sold} GB of memory: write which, {typed(device)}")
    return device.model_copy(update={"memory": UNIFIED_SHARE * sizes[0]})


def parse_cluster(text: str, own: Sequence[Device] = ()) -> Cluster:
    """`8xH100`, `64x8xH100` (machines, devices of each), `H100` or `this`; own: the user's devices.

    Raises UsageError.
    """
    match = _CLUSTER.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--cluster {text!r}: write 8xH100, 64x8xH100 (machines x devices) or this")
    numbers = [int(each) for each in (match["first"], match["second"]) if each is not None]
    if 0 in numbers:
        raise UsageError(f"--cluster {text!r}: no devices; write 1 or more")
    if match["device"].lower() == "this":
        return _like_this(text, this_cluster(), numbers)
    device = device_named(match["device"], own)
    if len(numbers) == 2:
        return Cluster(device=device, count=numbers[0] * numbers[1], node=numbers[1])
    count = numbers[0] if numbers else 1
    return Cluster(device=device, count=count, node=min(count, device.node))


def _like_this(text: str, here: Cluster, numbers: Sequence[int]) -> Cluster:
    """Machines like this one, with so many devices each; a number alone is that of devices. Raises UsageError."""
    if len(numbers) < 2:
        return here.model_copy(update={"count": numbers[0]} if numbers else {})
    if here.device.is_cpu:
        raise UsageError(
            f"--cluster {text!r}: ranks on CPUs of several machines are not planned: {numbers[1]}xthis are ranks here"
        )
    return here.model_copy(update={"count": numbers[0] * numbers[1], "node": numbers[1]})


# ---- This machine


def this_cluster(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> Cluster:
    """The GPUs of this machine, or its CPU."""
    names = []
    with suppress(OSError):
        for info in sorted(drivers.glob("*/information")):
            if found := re.search(r"^Model:\s*(.+)$", info.read_text(), re.MULTILINE):
                names.append(found[1].strip())
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is not None:
        names = names[: len([each for each in shown.split(",") if each.strip() not in ("", "-1")])]
    if names:
        device = device_of_driver(names[0])
        if device is None:
            remedy = "--cluster names another, and CUDA_VISIBLE_DEVICES= the CPU"
            raise UsageError(f"this machine's {names[0]}: {unknown_device(names[0], known_devices())}\n{remedy}")
        return Cluster(device=device, count=len(names), node=len(names), machine=names[0])
    device = this_cpu()
    return Cluster(device=device, machine=_measured_name(device.name, cpu_threads()))


def cpu_threads() -> int:
    """Threads that a process computes with, unless `train.threads` says so."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # one number for each level of nesting
    return int(first) if first.isdecimal() and int(first) else _cores()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _measured_name(model: str, threads: int) -> str:
    return f"{model}, *, {threads} threads"


def this_cpu(processor_info: Path = Path("/proc/cpuinfo"), threads: int | None = None) -> Device:
    """This CPU with so many threads: by what `hornbook bench` measured of it, else by its clock and vector units."""
    text, threads = "", threads or cpu_threads()
    with suppress(OSError):
        text = processor_info.read_text()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    model = found[1].strip() if found else platform.processor() or platform.machine()
    measured = next(iter(read_machine(_measured_name(model, threads))), {})
    rates = {name: rate / 1e3 for name, rate in measured.get("products", {}).items() if name in ("fp32", "bf16")}
    nominal = CPU_EFFICIENCY * _nominal_tera(text, threads)
    source = "measured by hornbook bench" if rates else "its clock and vector units (hornbook bench measures it)"
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(
        name=model or "CPU",
        fp32=rates.get("fp32", nominal),
        bf16=rates.get("bf16", rates.get("fp32", nominal)),
        memory=min(pages, *_limits(pages)) / 2**30,
        bandwidth=measured.get("memory_bandwidth", CPU_BANDWIDTH),
        threads=threads,
        cores=_cores(),
        source=source,
        at_once=max(_cores() // threads, 1),
    )


def _nominal_tera(text: str, threads: int) -> float:
    """TFLOP/s of fp32: two products with sum of a vector register in each cycle."""
    clock = re.search(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)
    width = 16 if " avx512f" in text else 8 if " avx2" in text else 4
    return threads * (float(clock[1]) if clock else 2500.0) * 1e6 * width * 4 / 1e12


def _limits(most: int) -> list[int]:
    """Limits on the memory of this container, as control groups version 2 and 1 say them."""
    found = [most]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return found


# ---- Prices


@cache
def prices() -> tuple[str, dict[str, float]]:
    """(when and from where, name of a device -> dollars of an hour)."""
    table = tomllib.loads(Path(__file__).with_name("prices.toml").read_text(encoding="utf-8"))
    return f"{table['date']}, {table['source']}", table["hour"]
