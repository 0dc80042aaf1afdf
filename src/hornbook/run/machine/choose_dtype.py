"""`train.precision = "auto"` becomes bf16 or fp32 when a run starts, and its recipe keeps that.

A resume on another machine therefore computes the same numbers; where that is slow, the run warns.
"""

import subprocess
import sys

import torch

from hornbook.errors import Exit, HornbookError, LostDeviceError, UsageError
from hornbook.model.layers.float8 import check_float8
from hornbook.model.layers.precision import Choice, Precision, choose_precision, missing_bf16
from hornbook.model.layers.products import is_widened
from hornbook.parallel.device import check_device, choose_device
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved

ORIGIN = "auto: "
"""Prefix of the origin of a precision that was chosen here."""
_DTYPES = {"bf16": torch.bfloat16, "bf16-pure": torch.bfloat16, "float8": torch.bfloat16, "fp16": torch.float16}


def settle_precision(resolved: Resolved) -> Resolved:
    """The recipe with a precision in place of `auto`. UsageError for a device that is missing or lacks it."""
    recipe = resolved.recipe
    if recipe.train.precision != "auto":
        _refuse_missing(recipe)
        return resolved
    choice = _choose(recipe)
    train = recipe.train.model_copy(update={"precision": choice.precision})
    origins = resolved.origins | {"train.precision": f"{ORIGIN}{choice.reason}"}
    return Resolved(recipe.model_copy(update={"train": train}), origins)


def slow_precision(precision: str, device: torch.device) -> str:
    """A warning about a precision that is slow on this device; "" where it is not."""
    if precision == "fp32":
        return ""
    if device.type == "cpu" and is_widened(torch.empty(0, dtype=_DTYPES[precision])):
        reason = choose_precision(device).reason if precision != "fp16" else "this CPU has no fp16 instructions"
        return f"{precision} is slow here ({reason}), its products run in fp32: --train.precision fp32 is faster"
    if precision != "fp16" and device.type != "cpu" and (missing := missing_bf16(device)):
        return f"{missing} of its own, so bf16 is slow: --train.precision fp32 (or fp16) is faster"
    return ""


def describe_precision(resolved: Resolved) -> str:
    """`bf16`, or `fp32 (auto: REASON)` where it was chosen here."""
    precision, origin = resolved.recipe.train.precision, resolved.origins.get("train.precision", "")
    return f"{precision} ({origin})" if origin.startswith(ORIGIN) else precision


def _refuse_missing(recipe: Recipe) -> None:
    """Raise UsageError for bf16 on MPS without it; a CPU or a GPU without it computes bf16 more slowly. For float8 on
    any device without it, unless it is emulated."""
    if recipe.train.precision == "float8":
        device = choose_device(recipe.train.device)
        if (
            device.type != "cuda" or recipe.parallel.world == 1
        ):  # ranks, forks of this process, ask their GPUs themselves
            check_float8(device, recipe.train.float8.emulate)
    if (
        recipe.train.precision not in ("bf16", "bf16-pure")
        or recipe.train.device == "cpu"
        or not torch.backends.mps.is_available()
    ):
        return
    device = choose_device(recipe.train.device)
    if device.type == "mps" and (missing := missing_bf16(device)):
        raise UsageError(f"train.precision is bf16, and {missing}: use --train.precision fp32")


def _choose(recipe: Recipe) -> Choice:
    """The faster precision; on a GPU measured in a child process where this process will fork ranks.

    After a measurement here forked ranks could not use the GPU. One on a CPU starts no thread that a fork would lack.
    """
    device = choose_device(recipe.train.device)
    if recipe.parallel.world == 1 or device.type == "cpu":
        return choose_precision(device)
    command = [sys.executable, "-m", __name__, recipe.train.device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        kind = LostDeviceError if done.returncode == Exit.HARDWARE else UsageError
        raise kind(done.stderr.strip().splitlines()[-1])
    name, _, reason = done.stdout.strip().partition(" ")
    precision: Precision = "bf16" if name == "bf16" else "fp32"
    return Choice(precision, reason)


def main() -> None:
    """`python -m hornbook.run.machine.choose_dtype DEVICE` prints the choice and its reason."""
    try:
        device = choose_device(sys.argv[1])
        check_device(device)
        print(*choose_precision(device))
    except HornbookError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
