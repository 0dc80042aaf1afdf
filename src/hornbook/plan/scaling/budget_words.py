"""Budgets as people write them: `$500`, `3d`, `1e19`, `12 PFd`."""

import math
import re
from collections.abc import Sequence

from pydantic import PositiveFloat

from hornbook.errors import UsageError
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.scaling.compute import PETAFLOPS_DAY
from hornbook.settings.fields import Config, parse_number

_TIME = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_KINDS = {"dollars": "money", "seconds": "time", "operations": "operations"}
_UNITS = {"": 1.0, "flop": 1.0, "flops": 1.0, "pfd": PETAFLOPS_DAY}
_BUDGET = re.compile(r"(?P<dollar>\$?)\s*(?P<number>[0-9.][0-9_.]*(?:e[+-]?[0-9]+)?)\s*(?P<unit>[a-z]*)")
LEAST = 1e9
"""Operations of the smallest budget: fewer are a slip of the unit."""
MOST = 1e28
"""Hundreds of times what any run took: a model for more has no layout, and the search for one has no end."""
FORMS = "write dollars ('$500'), a time (90min, 12h, 3d, 2w) or operations (1e19, or 12PFd, petaFLOP/s-days)"


class Budget(Config):
    """What a run may take: operations, and limits of time and money."""

    operations: PositiveFloat | None = None
    seconds: PositiveFloat | None = None
    dollars: PositiveFloat | None = None


def parse_budgets(texts: Sequence[str], option: str = "--budget") -> Budget:
    """One budget of the words of an option. Raises UsageError where a word is not one, or two are of one kind."""
    found: dict[str, float] = {}
    for text in texts:
        kind, value = _parse(text, option)
        if kind in found:
            raise UsageError(f"{option}: two budgets of {_KINDS[kind]} contradict each other; give one")
        found[kind] = value
    return Budget(**found)


def _parse(text: str, option: str) -> tuple[str, float]:
    match = _BUDGET.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"{option} {text!r}: {FORMS}")
    unit, number = match["unit"], _number(match["number"])
    if match["dollar"]:
        scaled = _number(match["number"] + unit)
        kind, value = "dollars", scaled
    elif unit in _TIME:
        kind, value = "seconds", None if number is None else number * _TIME[unit]
    elif unit in _UNITS:
        kind, value = "operations", None if number is None else number * _UNITS[unit]
    else:
        raise UsageError(f"{option} {text!r}: there is no unit {unit!r}; {FORMS}")
    if value is None or not 0 < value < math.inf:
        raise UsageError(f"{option} {text!r}: it must be a number above 0; {FORMS}")
    if kind == "operations" and value < LEAST:
        raise UsageError(f"{option} {text!r}: {value:g} operations train nothing; {FORMS}")
    if kind == "operations" and value > MOST:
        raise UsageError(f"{option} {text!r}: {value:g} operations are more than {MOST:g}; {FORMS}")
    return kind, value


def _number(text: str) -> float | None:
    value = parse_number(text)
    if isinstance(value, int | float):
        return float(value)
    try:
        return float(text)  # an exponent beyond those of settings
    except ValueError:
        return None


def seconds_of(budget: Budget, cluster: Cluster, price: float | None) -> tuple[float | None, list[str]]:
    """(seconds on the cluster that time and money allow, notes). None where neither is limited.

    Raises UsageError where money is given and the device has no price.
    """
    limits: dict[str, float] = {}
    if budget.seconds is not None:
        limits["time"] = budget.seconds
    if budget.dollars is not None:
        if not price:
            raise UsageError(
                f"--budget in dollars: {cluster.device.name} has no price; --price DOLLARS sets that of a device-hour, "
                "--cluster 8xH100 takes devices that have one"
            )
        limits["money"] = budget.dollars / (price * cluster.count) * 3600
    if not limits:
        return None, []
    least = min(limits, key=lambda name: limits[name])
    notes = [f"the {least} runs out first"] if len(limits) == 2 else []
    return limits[least], notes
