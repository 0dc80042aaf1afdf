"""The rate of matrix products that MFU is a share of: a known GPU's published one, else the measured one."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from hornbook.plan.devices.hardware import PRECISIONS, device_of_driver
from hornbook.plan.devices.measured import read_machine
from hornbook.run.machine.saved import device_name


@dataclass(frozen=True)
class Peak:
    """Operations per second of one device, and where the figure is from."""

    rate: float
    source: str


def published_peak(name: str, precision: str) -> Peak | None:
    """Of a GPU by the name that its driver gives; None where it is not known, or has no such arithmetic."""
    device = device_of_driver(name)
    if device is None or (rate := getattr(device, PRECISIONS.get(precision, precision), None)) is None:
        return None
    return Peak(rate * 1e12, f"published for {device.name}, {precision} dense")


def known_peak(device: torch.device, precision: str) -> Peak | None:
    """The peak of a device in `train.precision`; on a CPU that of the last `hornbook bench`, None before any."""
    name = device_name(device)
    if device.type == "cuda" and (found := published_peak(name, precision)) is not None:
        return found
    return measured_peak(next(iter(read_machine(name)), None), precision)


def measured_peak(machine: dict[str, Any] | None, precision: str) -> Peak | None:
    """The fastest measured product. Where the CPU widens a precision, its products are those of fp32."""
    rates = (machine or {}).get("products", {})
    widened = precision in (machine or {}).get("widened", ())
    rate = rates.get("fp32" if widened else precision)
    if not isinstance(rate, int | float) or rate <= 0:
        return None
    return Peak(rate * 1e9, f"{'fp32' if widened else precision} products measured here")


def num_devices(device: torch.device, ranks: int) -> int:
    """Devices that `ranks` ranks compute on: a GPU each; on CPUs the ranks of a machine share its cores."""
    if device.type == "cuda":
        return ranks
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(ranks // int(here), 1) if here.isdigit() and int(here) else 1
