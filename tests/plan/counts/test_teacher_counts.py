"""A live teacher in a plan: its weights, what relations keep (against autograd), the time of its pass."""

from math import prod
from pathlib import Path

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.files.safetensors import make_header
from hornbook.model.config.part import Rows
from hornbook.model.heads.relations import divergence, seen_tokens
from hornbook.plan.counts.teacher_counts import live_teacher, teacher_bytes
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planned_memory import estimate_memory
from hornbook.plan.planner import estimate_layout
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

SHAPES = {"embedding.weight": (1000, 64), "norm.weight": (64,)} | {
    f"blocks.{number}.{name}.weight": shape
    for number in range(3)
    for name, shape in (("attention.query", (64, 64)), ("mlp.up", (256, 64)), ("mlp.down", (64, 256)))
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run whose newest checkpoint has a model of these shapes."""
    found = tmp_path / "run" / "checkpoints" / "step-00000010"
    found.mkdir(parents=True)
    header = make_header(SHAPES, dict.fromkeys(SHAPES, "F32"), None)
    (found / "model.safetensors").write_bytes(header + bytes(4 * sum(map(prod, SHAPES.values()))))
    return tmp_path / "run"


def recipe_of(*words: str) -> Recipe:
    return resolve(
        "llama-1b", ["train.precision=bf16", "train.compile=false", "parallel.recompute=none", *words], environ={}
    ).recipe


def taught_by(folder: Path, *words: str) -> Recipe:
    teacher = ["train.loss.teacher.kind=relations", f"train.loss.teacher.path={folder}"]
    return recipe_of(*teacher, *words)


def test_shapes_say_what_a_teacher_is(folder: Path) -> None:
    teacher = live_teacher(taught_by(folder))
    assert teacher is not None
    assert (teacher.values, teacher.width, teacher.blocks) == (sum(map(prod, SHAPES.values())), 64, 3)
    assert sorted(teacher.matrices) == sorted(3 * [(64, 64), (64, 256), (256, 64)])
    assert live_teacher(recipe_of()) is None
    with pytest.raises(UsageError, match=r"train\.loss\.teacher\.path"):
        live_teacher(taught_by(folder.parent / "none"))


def test_its_weights_and_relations_take_memory_and_its_pass_takes_time(folder: Path) -> None:
    device = parse_cluster("H100").device
    (bare,), (taught,) = (estimate_memory(each, 128256, device) for each in (recipe_of(), taught_by(folder)))
    for phase, memory in taught.phases.items():
        assert memory.weights - bare.phases[phase].weights == 4 * sum(map(prod, SHAPES.values()))
    scores = 8 * 2048**2 * recipe_of().train.micro_rows  # of eight heads
    assert taught.phases["loss"].logits - bare.phases["loss"].logits > (2 * 8 + 12) * scores
    alone, beside = (estimate_layout(each, 128256, parse_cluster("H100")) for each in (recipe_of(), taught_by(folder)))
    assert beside.step.compute > alone.step.compute
    assert beside.step.update == alone.step.update


def test_what_relations_keep_is_what_autograd_keeps(folder: Path) -> None:
    recipe = taught_by(folder, "train.loss.teacher.heads=4")
    rows, time, width = 2, 16, recipe.model.width
    kept = dict[int, int]()

    def keep(each: torch.Tensor) -> torch.Tensor:
        kept[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        return each

    names = ("query", "key", "value")
    ours, theirs = ({name: torch.randn(rows, time, size) for name in names} for size in (width, 64))
    alive = [each.requires_grad_() for each in ours.values()]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        seen = seen_tokens([[time]] * rows, torch.device("cpu"))
        found = divergence(ours, theirs, ("attention", "value"), 4, seen)
    assert found.requires_grad
    assert len(alive) == 3
    assert sum(kept.values()) == teacher_bytes(recipe, Rows(rows, time, 4))[0]
