"""Energy of a stretch of work in joules, where the machine says it: RAPL of the CPU's packages, NVML of the GPUs."""

import importlib
import re
from pathlib import Path
from typing import Any

import torch

RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Reads counters at its start and at `stop`. Packages and GPUs are the whole machine's, whoever uses them."""

    def __init__(self, device: torch.device, folder: Path = RAPL) -> None:
        self._packages = sorted(each for each in _entries(folder) if re.fullmatch(r"intel-rapl:\d+", each.name))
        self._gpu = _nvml_handle(device)
        self._before = self._read()

    def stop(self) -> dict[str, Any]:
        """{"joules": sum, "source": text}; or {"joules": None, "source": why not}."""
        after = self._read()
        if not after or after.keys() != self._before.keys():
            return {
                "joules": None,
                "source": "no counter of energy can be read here (RAPL needs root, NVML its package)",
            }
        joules = sum(_difference(self._before[name], after[name], self._range(name)) for name in after)
        names = ["NVML"] if "gpu" in after else []
        count = len(after) - len(names)
        if count:
            names.insert(0, f"RAPL of {count} CPU package{'s' if count > 1 else ''}")
        return {"joules": joules, "source": " and ".join(names)}

    def _read(self) -> dict[str, float]:
        found = {each.name: value for each in self._packages if (value := _number(each / "energy_uj")) is not None}
        if self._gpu is not None:
            nvml, handle = self._gpu
            found["gpu"] = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * 1e3  # from millijoules
        return found

    def _range(self, name: str) -> float:
        """Microjoules after which a counter starts again at zero; 0: it does not."""
        package = next((each for each in self._packages if each.name == name), None)
        return (_number(package / "max_energy_range_uj") or 0.0) if package is not None else 0.0


def _difference(before: float, after: float, wraps_at: float) -> float:
    """Joules between two readings in microjoules."""
    return (after - before + (wraps_at if after < before else 0.0)) / 1e6


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


def _nvml_handle(device: torch.device) -> tuple[Any, Any] | None:
    if device.type != "cuda":
        return None
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except Exception:  # noqa: BLE001 - whatever the driver's library says, there is no energy to read
        return None
    return nvml, handle
