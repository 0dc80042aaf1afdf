"""Where measurements of this machine stay: JSON files in the user's cache, for the planner and for runs.

`$HORNBOOK_HOME/bench`, else `$XDG_CACHE_HOME/hornbook/bench` (`~/.cache/hornbook/bench`); a folder for each device:
`machine.json`, and `NAME-DIGEST.json` for the step of each recipe.
"""

import contextlib
import json
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hornbook.errors import StorageError
from hornbook.files.durable import write_atomic
from hornbook.files.journal import finite
from hornbook.plan.devices.measured import FORMAT, bench_folder, folder_name, step_name
from hornbook.settings.recipe import Recipe


def device_name(device: torch.device, processor_info: Path = Path("/proc/cpuinfo")) -> str:
    """`NVIDIA H100 80GB HBM3`, or the CPU's model, its vector instructions and torch's threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", processor_info.read_text(), re.MULTILINE)
        model = found[1].strip() if found else model
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    words = [model, torch.backends.cpu.get_cpu_capability(), f"{torch.get_num_threads()} threads"]
    return ", ".join([*words, *([f"ONEDNN_MAX_CPU_ISA={limit}"] if limit else [])])


def machine_file(name: str) -> Path | None:
    """The measurements of the device of a name (`device_name`)."""
    folder = bench_folder()
    return None if folder is None else folder / folder_name(name) / "machine.json"


def step_file(name: str, recipe: Recipe) -> Path | None:
    """The measurements of a recipe's step on a device; another shape, batch or layout is another file."""
    machine = machine_file(name)
    return None if machine is None else machine.with_name(step_name(recipe))


def write(path: Path | None, value: Mapping[str, Any], *, named: bool = False) -> Path | None:
    """Write measurements; returns the file, None where the cache cannot be written.

    named: a person named the file, so a failure is an error (StorageError).
    """
    if path is None:
        return None
    try:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(finite({"format": FORMAT, **value}), indent=2) + "\n")
    except StorageError:
        if named:
            raise
        return None
    return path
