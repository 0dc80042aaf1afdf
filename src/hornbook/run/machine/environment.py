"""The environment of a run (`env.json`).

Only environment variables from a list of names are recorded: others may hold secrets. What looks like a secret in
these, or in the command, is hidden.
"""

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from hornbook.files.artifact import digest_file, digest_of
from hornbook.files.filesystem import walk_files
from hornbook.files.secrets import hide_secrets
from hornbook.parallel.world import World

PACKAGES = ("hornbook", "torch", "numpy", "numba", "tokenizers", "safetensors", "pyarrow", "pydantic")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "SLURM_JOB_ID",
    "SLURM_RESTART_COUNT",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "NO_COLOR",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "HORNBOOK_SET",
    "HORNBOOK_RUNS",
)


_COMMIT = "# branch.oid "


def describe_environment(world: World, seed: int, argv: list[str]) -> dict[str, Any]:
    """Versions, hardware, threads, seed, command, code revision."""
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: package_version(name) for name in PACKAGES},
            "torch": torch.__version__,  # with the build (+cpu, +cu130), which the version of the package lacks
        },
        "hardware": _hardware(world),
        "code": code_digest(),
        "threads": torch.get_num_threads(),
        "seed": seed,
        "argv": [hide_secrets(word) for word in argv],
        "folder": os.getcwd(),
        "variables": {name: hide_secrets(os.environ[name]) for name in VARIABLES if name in os.environ},
        "git": {"code": _code_state(), "folder": git_state(Path.cwd())},
    }


@functools.cache
def code_digest() -> str:
    """Digest over path and content of every source file of this package."""
    package = Path(__file__).parents[2]
    sources = (path for path in walk_files(package) if path.suffix == ".py")
    return digest_of({path.relative_to(package).as_posix(): digest_file(path) for path in sources})


def bits_depend_on(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an environment on which the last bits of a sum depend; `code` is missing in those of older runs."""
    code = {"code": environment["code"]} if "code" in environment else {}
    return code | {
        "torch": environment["versions"]["torch"],
        "threads": environment["threads"],
        "device": environment["hardware"]["device"],
        "cpu": environment["hardware"]["cpu"],
    }


@functools.cache
def package_version(package: str) -> str | None:
    """Version of an installed package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _hardware(world: World) -> dict[str, Any]:
    device = torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else str(world.device)
    return {
        "device": device,
        "cpu": torch.backends.cpu.get_cpu_capability() + " " + platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "executable": sys.executable,
    }


@functools.cache
def _code_state() -> dict[str, Any] | None:
    """Git state of the folder of this package when the process first asks: what it has loaded does not change later."""
    return git_state(Path(__file__).parent)


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository around a folder, and whether it has changes; None outside of a repository."""
    words = ["status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=no"]
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    commit = next(line.removeprefix(_COMMIT) for line in lines if line.startswith(_COMMIT))
    changed = not all(line.startswith("# ") for line in lines)
    return None if commit == "(initial)" else {"commit": commit, "changed": changed}
