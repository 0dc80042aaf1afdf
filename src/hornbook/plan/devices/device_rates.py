"""What a device reaches in training: its data sheet, times the shares of `calibration.toml`."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hornbook.plan.devices.hardware import Device
from hornbook.settings.fields import Config

NARROW = ("float8", "mxfp8", "nvfp4", "fp8", "fp4")
"""Precisions of products in 8 bits or fewer."""


CPU_SOFTMAX = 0.385
"""Operations in fp32 of a CPU's attention for each of its products': exponentials and sums, in every precision
(`python -m benchmarks.plan.runs`)."""
GAP_SECONDS = 2e-6
"""Seconds between two kernels on a device."""


class Shares(Config):
    """Shares of the data sheet that are reached."""

    products: float
    narrow: float
    attention: float
    bandwidth: float
    link: float
    network: float
    fitted_on: tuple[str, ...] = ()
    """Sources of the published runs that they were fitted on."""


@dataclass(frozen=True)
class Rates:
    """Of one device: operations and bytes per second."""

    products: float
    """Of products in blocks."""
    wide: float
    """Of products in 16 bits, or fp32: the head."""
    attention: float
    bandwidth: float
    link: float
    network: float
    narrow: bool = False
    """Products in blocks are in 8 bits or fewer."""
    units: int = 0
    """Among which a device divides a product."""
    core: float = 0.0
    """Of a CPU: of products in fp32; 0 on other devices."""
    vector: float = 0.0
    """Of products in fp32."""
    gap: float = GAP_SECONDS
    """Seconds between two kernels."""


@cache
def calibration() -> dict[str, Shares]:
    """Kind of device -> shares; `default` for others."""
    table = tomllib.loads(Path(__file__).with_name("calibration.toml").read_text(encoding="utf-8"))
    return {name: Shares.model_validate(entry) for name, entry in table.items()}


def shares_of(device: Device) -> Shares:
    """The shares of a device: its own, those of the device whose chip it has, or the default ones."""
    if device.is_cpu:  # its rates are measured
        return Shares(products=1.0, narrow=1.0, attention=1.0, bandwidth=1.0, link=1.0, network=1.0)
    table = calibration()
    return table.get(device.name) or table.get(device.like) or table["default"]


def rates_of(device: Device, precision: str, shares: Shares | None = None) -> Rates:
    """What the device reaches in `train.precision`."""
    shares = shares or shares_of(device)
    narrow = precision in NARROW
    wide = device.rate("bf16" if narrow else precision)
    core = device.rate("fp32") if device.is_cpu else 0.0
    attention = wide * shares.attention
    return Rates(
        products=device.rate(precision) * (shares.narrow if narrow else shares.products),
        wide=wide * shares.products,
        attention=1 / (1 / attention + CPU_SOFTMAX / core) if core else attention,
        bandwidth=1e9 * device.bandwidth * shares.bandwidth,
        link=1e9 * device.link * shares.link,
        network=1e9 * device.network * shares.network,
        narrow=narrow,
        units=device.units,
        core=core,
        vector=device.rate("fp32") * shares.products,
    )
