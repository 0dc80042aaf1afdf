"""Multi-token prediction on ranks of each axis equals one process, and its checkpoints are read in any layout.

The equality matrix (`tests/parallel/layouts.py`) has one model with it; here are the parts that this one lacks.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.parallel.trajectory import Run, compare, perform
from tests.ranks import RankServer

DEEP = {"layers": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "parallel": {
        **DEEP,
        "mtp": {"kind": "parallel", "depth": 2},
        "first": [],
        "mlp": {"kind": "glu", "hidden": 45},
        "head": {"kind": "lm", "tied": False},
    },
    "post norm": {
        **DEEP,
        "block": {"kind": "post"},
        "norm": {"kind": "layer"},
        "position": {"kind": "learned", "length": 64},
        "embedding": {"norm": True, "types": 2, "width": 20},
    },
    "alibi, three ahead": {
        "mtp": {"kind": "sequential", "depth": 3},
        "position": {"kind": "alibi"},
        **DEEP,
        "head": {"kind": "lm", "tied": False, "bias": True, "softcap": 5.0},
    },
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "expert": {"expert": 2},
    "tensor": {"tensor": 2},
    "sequence": {"tensor": 2, "sequence_parallel": True},
    "ring": {"context": 2},
    "all-to-all": {"context": 2, "context_kind": "all-to-all"},
    "three": {"context": 3},
    "1f1b": {"stages": 2},
    "zb-h1": {"stages": 2, "schedule": "zb-h1"},
    "zbv": {"stages": 2, "schedule": "zbv"},
    "dualpipev": {"stages": 2, "schedule": "dualpipev"},
    "ZeRO-3, interleaved": {"stages": 2, "schedule": "interleaved", "world": 2, "shard": "everything"},
    "ZeRO-2, zbv": {"stages": 2, "schedule": "zbv", "world": 2, "shard": "gradients"},
}
DENSE, OF_EXPERTS = "parallel", ("expert",)
CELLS = [
    (name, layout)
    for name in VARIANTS
    for layout in LAYOUTS
    if layout not in (OF_EXPERTS if name == DENSE else ("three",))  # a third of a row's weight is rounded to float32
]
QUICK = {("parallel", "sequence"), ("post norm", "tensor"), ("alibi, three ahead", "expert")}
QUICK |= {("post norm", "all-to-all"), ("alibi, three ahead", "ring"), ("parallel", "three")}
QUICK |= {("parallel", "zbv"), ("post norm", "1f1b"), ("alibi, three ahead", "zb-h1")}


@pytest.mark.parametrize(
    ("name", "layout"), [pytest.param(*cell, marks=() if cell in QUICK else pytest.mark.slow) for cell in CELLS]
)
def test_in_float64_only_the_last_digits_differ(run_ranks: RankServer, tmp_path: Path, name: str, layout: str) -> None:
    sizes = {**VARIANTS[name], "kv_heads": 2}
    common: dict[str, Any] = {"precision": "fp64", "steps": 2, "microbatches": 3, "sequence": 23}
    run = Run(odd="further tokens", sizes=sizes, **common, **LAYOUTS[layout])
    found, alone = (perform(run_ranks, each, tmp_path / str(each.ranks)) for each in (run, run.alone))
    difference = compare(found, alone)
    assert max(difference.losses, difference.norms, difference.weights, difference.gradients) < 1e-9, difference


CASES, MODEL, STEP = "tests/run/sharing.py", "further tokens", "step-00000002"
SAVED: dict[str, dict[str, Any]] = {
    "expert": {"expert": 2},
    "tensor": {"tensor": 2, "sequence": True},
    "context": {"context": 2},
    "pipeline": {"pipeline": {"stages": 2}},
}


@pytest.mark.parametrize("layout", SAVED)
def test_checkpoints_are_those_of_one_process_and_read_by_it(
    run_ranks: RankServer, tmp_path: Path, layout: str
) -> None:
    settings = {"data": 1, **SAVED[layout]}
    folders = tmp_path / "divided", tmp_path / "alone"
    run_ranks(f"{CASES}:save", 2, MODEL, settings, str(folders[0]), [1, 2])
    run_ranks(f"{CASES}:save", 1, MODEL, {}, str(folders[1]), [1, 2])
    divided, alone = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in folders
    )
    assert divided == alone
    assert run_ranks(f"{CASES}:restore", 1, MODEL, {}, str(folders[0]), 2) == [[STEP, True, []]]
    assert run_ranks(f"{CASES}:restore", 2, MODEL, settings, str(folders[1]), 2) == [[STEP, True, []]] * 2
