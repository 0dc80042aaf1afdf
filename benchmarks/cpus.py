"""Sets of rows by instruction set: a benchmark on this machine's CPU as it is, and as one that has AVX2 alone.

The libraries read the variables (`tests.cpus`) when they are loaded, so each set is measured by a process of its own,
which writes `benchmarks/results/NAME.json` or `NAME-avx2.json`. Code that gcc compiles for torch.compile takes its
vectors from ATEN_CPU_CAPABILITY, but is free to use the machine's other instructions in the rest.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from tests.cpus import AVX2

VARIABLES: dict[str, dict[str, str]] = {"native": {}, "avx2": AVX2}
"""Environment of each set of rows."""


def capability() -> str:
    """The widest vectors that torch's kernels use here: AVX512, AVX2, DEFAULT ..."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def kind() -> str:
    """The set that this process measures."""
    return "avx2" if AVX2.items() <= os.environ.items() else "native"


def instruction_set() -> str:
    """`capability`, and whether bfloat16 products have instructions."""
    import torch

    bf16 = " with bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ""
    capped = ", by variables of the environment" if kind() == "avx2" else ""
    return capability() + bf16 + capped


def kinds() -> list[str]:
    """Sets that this machine can measure and that differ."""
    if kind() == "avx2":
        return ["avx2"]
    return ["native", "avx2"] if capability() == "AVX512" else ["native"]


def precisions() -> tuple[str, ...]:
    """Those that all contenders are timed in: with AVX2 alone a step in torch's own bf16 takes minutes."""
    return ("fp32",) if kind() == "avx2" else ("bf16", "fp32")


def each_cpu(module: str, *arguments: str, chosen: str | None = None) -> None:
    """Run `python -m MODULE --cpu KIND` for each set of rows, or for the chosen one."""
    for name in [chosen] if chosen else kinds():
        command = [sys.executable, "-m", module, "--cpu", name, *arguments]
        subprocess.run(command, env={**os.environ, **VARIABLES[name]}, check=True)


def main(module: str, run: Callable[..., Any], *options: str) -> None:
    """Command line of a benchmark: `--cpu native` or `--cpu avx2` (both if not given), and switches that `run` has."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--cpu", choices=VARIABLES)
    for option in options:
        parser.add_argument(f"--{option}", action="store_true")
    given = vars(parser.parse_args())
    chosen = given.pop("cpu")
    if chosen == kind():
        run(**given)
    else:
        each_cpu(module, *(f"--{name}" for name, on in given.items() if on), chosen=chosen)
