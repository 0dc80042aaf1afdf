"""The layouts of the equality matrix, as data: tests and `benchmarks.training.layouts`.

A layout that a recipe would be refused with before a run begins stays in the table, with the reason.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from typing import Any

from pydantic import ValidationError

from hornbook.settings.recipe import Recipe, cross_check
from tests.parallel import odd
from tests.parallel.trajectory import Difference, Result, Run, compare, largest_of
from tests.ranks import RankError

FURTHER = "further tokens"
EVERY = tuple(name for name in odd.MODELS if name != FURTHER)
"""Families of every layout; multi-token prediction has those of `FURTHER_LAYOUTS`."""
FIGURES = ("losses", "norms", "weights", "gradients")
"""Of a `Difference`, those that have limits."""
EXACT, SINGLE = 1e-9, 1e-5
"""Limits: of every figure in float64, and of losses in float32."""
MICROBATCHES, SEQUENCE = 7, 25
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev")
KINDS = ("ring", "all-to-all")
HEADS: dict[int, dict[str, int]] = {2: {"kv_heads": 2}, 4: {"heads": 12, "kv_heads": 2}}
"""Sizes of models by tensor ranks: heads must divide among them, key-value heads may be fewer."""
OBJECTIVES = {"encoder": {"kind": "masked"}, "encoder-decoder": {"kind": "span"}}


@dataclass(frozen=True)
class Layout:
    """One way to divide a run."""

    name: str
    fields: Mapping[str, Any]
    """Of `Run`."""
    families: tuple[str, ...] = EVERY
    """Of `tests.parallel.odd`."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the model, where the layout needs others."""

    @property
    def ranks(self) -> int:
        """Over all axes."""
        return Run(**self.fields).ranks

    def run(self, family: str, precision: str, **settings: Any) -> Run:
        """The run of a family in this layout."""
        sizes = odd.deeper(family, self.sizes)
        common = {"odd": family, "precision": precision, "microbatches": MICROBATCHES, "sequence": SEQUENCE}
        return Run(**{**common, **self.fields, "sizes": sizes, **settings})


def _layouts() -> list[Layout]:
    full = {"shard": "everything"}
    found = [Layout(f"data {n}", {"world": n}) for n in (2, 4)]
    stages = {"ZeRO-1": "optimizer", "ZeRO-2": "gradients", "ZeRO-3": "everything"}
    found += [
        Layout(f"{name}, data {n}", {"world": n, "shard": shard}) for name, shard in stages.items() for n in (2, 3)
    ]
    found.append(Layout("hybrid 2 x 2", {"world": 4, "replicas": 2, **full}))
    for n in (2, 4):
        found.append(Layout(f"tensor {n}", {"tensor": n}, sizes=HEADS[n]))
        found.append(Layout(f"tensor {n} + sequence", {"tensor": n, "sequence_parallel": True}, sizes=HEADS[n]))
    for n in (2, 4):
        for schedule in SCHEDULES:
            sizes = {"layers": 2 * n + 1} if n > 2 else {}
            found.append(Layout(f"pipeline {n}, {schedule}", {"stages": n, "schedule": schedule}, sizes=sizes))
    found += [Layout(f"context 2, {kind}", {"context": 2, "context_kind": kind}) for kind in KINDS]
    found += [Layout(f"expert {n}", {"expert": n}, ("experts",)) for n in (2, 4)]
    found += [*_pairs(), *map(_together, TRIPLES)]
    found += [
        replace(each, name=f"{kind}, {each.name}", fields={**each.fields, "surgery": [step]}, families=("decoder",))
        for kind, step in ADAPTERS.items()
        for each in map(_together, ADAPTED)
    ]
    further = (_together(names) for names in FURTHER_LAYOUTS)
    return [*found, *(replace(each, name=f"{each.name}, {FURTHER}", families=(FURTHER,)) for each in further)]


FULL: dict[str, Any] = {"world": 2, "shard": "everything"}
AXES: dict[str, dict[str, Any]] = {
    "data 2": {"world": 2},
    "ZeRO-3, data 2": FULL,
    "tensor 2": {"tensor": 2},
    "tensor 2 + sequence": {"tensor": 2, "sequence_parallel": True},
    "pipeline 2": {"stages": 2},
    "context 2": {"context": 2},
    "expert 2": {"expert": 2},
}
"""One axis of two ranks."""
STAGED = {
    "ZeRO-1, data 2": {"world": 2, "shard": "optimizer"},
    "ZeRO-2, data 2": {"world": 2, "shard": "gradients"},
}
"""Shared by data ranks beside a pipeline; ZeRO-3 is in the pairs."""
TRIPLES = [
    ("ZeRO-1, data 2", "pipeline 2"),
    ("ZeRO-2, data 2", "pipeline 2"),
    ("ZeRO-1, data 2", "tensor 2", "pipeline 2"),
    ("ZeRO-3, data 2", "tensor 2", "pipeline 2"),
    ("ZeRO-3, data 2", "tensor 2", "context 2"),
    ("ZeRO-3, data 2", "tensor 2 + sequence", "expert 2"),
    ("data 2", "tensor 2", "pipeline 2"),
    ("data 2", "tensor 2", "context 2"),
    ("data 2", "pipeline 2", "context 2"),
    ("tensor 2", "pipeline 2", "context 2"),
    ("tensor 2", "pipeline 2", "expert 2"),
]
ADAPTERS: dict[str, dict[str, Any]] = {
    "LoRA": {"kind": "lora", "rank": 3, "alpha": 6.0},
    "DoRA": {"kind": "dora", "rank": 3, "alpha": 6.0},
}
"""Updates are scaled by 2: ZeRO-3 gathers B in bf16, and another factor would round B once more."""
ADAPTED = [
    ("tensor 2",),
    ("tensor 2 + sequence",),
    ("pipeline 2",),
    ("tensor 2", "pipeline 2"),
    ("ZeRO-3, data 2", "tensor 2 + sequence"),
    ("ZeRO-3, data 2", "pipeline 2"),
]
"""Layouts of models with adapters."""
FURTHER_LAYOUTS = [
    ("data 2",),
    ("ZeRO-3, data 2",),
    ("expert 2",),
    ("data 2", "expert 2"),
    ("tensor 2",),
    ("tensor 2 + sequence",),
    ("ZeRO-3, data 2", "tensor 2"),
    ("tensor 2 + sequence", "expert 2"),
    ("ZeRO-3, data 2", "tensor 2 + sequence", "expert 2"),
    ("context 2",),
    ("context 2", "expert 2"),
    ("ZeRO-3, data 2", "tensor 2", "context 2"),
    ("pipeline 2",),
    ("pipeline 2", "expert 2"),
    ("ZeRO-3, data 2", "pipeline 2"),
    ("tensor 2 + sequence", "pipeline 2"),
    ("pipeline 2", "context 2"),
]
"""Of multi-token prediction."""


def _together(names: tuple[str, ...]) -> Layout:
    """Several axes at once."""
    fields = {key: value for name in names for key, value in {**AXES, **STAGED}[name].items()}
    has_tensor = any(name.startswith("tensor") for name in names)
    families = ("experts",) if "expert 2" in names else EVERY
    return Layout(" x ".join(names), fields, families, HEADS[2] if has_tensor else {})


def _pairs() -> list[Layout]:
    """Two axes of two ranks each, but two forms of one axis."""
    alike = {"data 2": "ZeRO-3, data 2", "tensor 2": "tensor 2 + sequence"}
    return [_together(pair) for pair in combinations(AXES, 2) if alike.get(pair[0]) != pair[1]]


LAYOUTS = {layout.name: layout for layout in _layouts()}


def refusal(run: Run) -> str | None:
    """Why a recipe with this layout is refused before a run begins; None where it is not."""
    rows = 8 * run.world * run.expert * odd.ROWS
    train = {"sequence": run.sequence, "micro_batch": odd.ROWS, "batch_tokens": rows * run.sequence}
    recipe: dict[str, Any] = {"model": {**odd.tree(run.odd, run.sizes), "vocab": odd.VOCAB}}
    recipe |= {"parallel": run.parallel, "train": {**train, "precision": "bf16" if run.precision == "bf16" else "fp32"}}
    recipe["surgery"] = run.surgery
    recipe["data"] = {"objective": OBJECTIVES.get(run.odd, {"kind": "causal"})}
    try:
        problems = cross_check(Recipe.model_validate(recipe))
    except ValidationError as error:
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return "; ".join(f"{key}: {text}" for key, text in problems) or None


# ---- Cells


@dataclass(frozen=True)
class Cell:
    """What became of a run in a layout."""

    state: str
    """`equal`, `rounds` (as equal as half precision lets sums be that are rounded in parts), `differs`, `refused` or
    `failed`."""
    reason: str = ""
    """Why it was refused, or how it failed."""
    difference: Difference | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    """By figure: those that it was held against."""

    def tree(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


HALF = ("losses", "norms", "weights")
"""Figures with limits in half precision."""


def limits_of(do: Callable[[Run], Result], run: Run) -> dict[str, float]:
    """By figure. In half precision: three times what other orders of the same microbatches make in one process."""
    if run.precision == "fp64":
        return dict.fromkeys(FIGURES, EXACT)
    if run.precision == "fp32":
        return {"losses": SINGLE}
    orders = _orders(do, run)
    return {name: 3 * largest_of(getattr(each, name) for each in orders) for name in HALF}


def _orders(do: Callable[[Run], Result], run: Run) -> list[Difference]:
    """The microbatches in other orders, in one process, beside the order of the grid."""
    alone = run.alone
    others = [replace(alone, backwards=True), replace(alone, exact=True)]
    others += [replace(alone, rotated=first) for first in (2, 4, 6)]
    return [compare(do(other), do(alone)) for other in others]


def _rounding(do: Callable[[Run], Result], run: Run) -> dict[str, float]:
    """By figure: three times how far half precision is from float32 in one process."""
    found = compare(do(run.alone), do(replace(run.alone, precision="fp32")))
    return {name: 3 * getattr(found, name) for name in HALF}


def rounds_parts(run: Run) -> bool:
    """Whether each rank rounds its part of a sum over products, as no order of microbatches does.

    With multi-token prediction two stages read the tokens' vectors, and each rounds its part of their gradient.
    """
    apart = run.tensor * run.context > 1 or (run.odd == FURTHER and run.stages > 1)
    return run.precision == "bf16" and apart


def examine(do: Callable[[Run], Result], run: Run) -> Cell:
    """Do a run and compare it with one process."""
    if reason := refusal(run):
        return Cell("refused", reason)
    limits = limits_of(do, run)
    try:
        difference = compare(do(run), do(run.alone))
    except (RankError, AssertionError) as error:
        return Cell("failed", told(error))
    if _keeps(difference, limits):
        return Cell("equal", "", difference, limits)
    if rounds_parts(run) and _keeps(difference, wider := _rounding(do, run)):
        return Cell("rounds", "", difference, wider)
    return Cell("differs", "", difference, limits)


def _keeps(difference: Difference, limits: Mapping[str, float]) -> bool:
    return all(getattr(difference, name) <= most for name, most in limits.items())


def told(error: BaseException) -> str:
    """The last line of the first rank's words, or the error's own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line.split(":")[0] and not line.startswith("File")]
    return (named or lines or [type(error).__name__])[0][:300]
