"""`train.precision = "auto"` becomes bf16 or fp32 when a run starts, and its recipe keeps that.

A resume on another machine therefore computes the same numbers; where they are slow there, it says so.
"""

import subprocess
import sys
from collections.abc import Mapping

import torch

from hornbook.errors import UsageError
from hornbook.model.layers.precision import Choice, Precision, choose_precision, missing_bf16
from hornbook.model.layers.products import is_widened
from hornbook.parallel.world import choose_device
from hornbook.settings.recipe import Recipe

ORIGIN = "auto: "
"""Begins what the recipe says of a precision that was chosen here."""


def settle_precision(recipe: Recipe, origins: Mapping[str, str]) -> tuple[Recipe, dict[str, str]]:
    """The recipe without `auto`, and where its values come from.

    Raises UsageError for a device that is not there, or that cannot compute what is asked for.
    """
    settled = dict(origins)
    if recipe.train.precision != "auto":
        _check(recipe)
        return recipe, settled
    choice = _choose(recipe)
    settled["train.precision"] = f"{ORIGIN}{choice.reason}"
    train = recipe.train.model_copy(update={"precision": choice.precision})
    return recipe.model_copy(update={"train": train}), settled


def slow_precision(precision: str, device: torch.device) -> str:
    """What to say of a run whose precision is slow on this device; "" where it is not."""
    if precision == "fp32":
        return ""
    if device.type == "cpu" and is_widened(torch.empty(0, dtype=getattr(torch, _NAMES[precision]))):
        reason = choose_precision(device).reason if precision == "bf16" else "this CPU has no fp16 instructions"
        return f"{precision} is slow here ({reason}), its products run in fp32: --train.precision fp32 is faster"
    if precision == "bf16" and device.type != "cpu" and (missing := missing_bf16(device)):
        return f"{missing} of its own, so bf16 is slow: --train.precision fp32 (or fp16) is faster"
    return ""


def describe_precision(precision: str, origins: Mapping[str, str]) -> str:
    """`bf16`, or `fp32 (auto: REASON)` where it was chosen."""
    origin = origins.get("train.precision", "")
    return f"{precision} ({origin})" if origin.startswith(ORIGIN) else precision


_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


def _check(recipe: Recipe) -> None:
    """MPS refuses what it has not; a GPU or a CPU computes it in a slower way."""
    if recipe.train.precision != "bf16" or recipe.train.device == "cpu" or not torch.backends.mps.is_available():
        return
    device = choose_device(recipe.train.device)
    if device.type == "mps" and (missing := missing_bf16(device)):
        raise UsageError(f"train.precision is bf16, and {missing}: use --train.precision fp32")


def _choose(recipe: Recipe) -> Choice:
    """In a process of its own where ranks will be forked from this one: they could use neither a GPU that was asked
    here nor the threads of OpenMP, which a measurement starts and a fork does not copy.
    """
    if recipe.parallel.data == 1:
        return choose_precision(choose_device(recipe.train.device))
    command = [sys.executable, "-m", __name__, recipe.train.device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(done.stderr.strip().splitlines()[-1])
    name, _, reason = done.stdout.strip().partition(" ")
    precision: Precision = "bf16" if name == "bf16" else "fp32"
    return Choice(precision, reason)


def main() -> None:
    """`python -m hornbook.run.start.precision DEVICE` prints the choice and its reason."""
    try:
        print(*choose_precision(choose_device(sys.argv[1])))
    except UsageError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
