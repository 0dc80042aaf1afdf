"""A teacher of relations beside the model: its weights, the work of its forward pass, and what relations take.

The shapes are those of its files (the names of layers have numbers), so no configuration of another format is read. Of
experts all count, as if every token saw them; of a folder of adapters the base is not counted.
"""

from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

from hornbook.data.config.teacher import RelationTeacher
from hornbook.errors import UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.safetensors import Entry, read_header
from hornbook.model.config.part import Rows
from hornbook.plan.devices.device_rates import Rates
from hornbook.plan.update_work import CALLS, Multiply, Work
from hornbook.settings.recipe import Recipe

FORWARD_PASSES = 23
"""Times that scores of one kind of relation are read or written forward, those of both models: products, scaling, mask,
log-softmax; then exponentials, the difference, their product, its sum (`hornbook.model.heads.relations`)."""
BACKWARD_PASSES = 12
"""The same backward, of the model alone."""
KEPT, PASSING = 8, 12
"""Bytes of each score that are kept for backward (log-probabilities of the model, probabilities of the teacher), and
that are there beside them while the term is computed."""


@dataclass(frozen=True)
class Teacher:
    """A model by its shapes."""

    values: int
    width: int
    blocks: int
    matrices: tuple[tuple[int, int], ...]
    """(inputs, outputs) of the linear layers of blocks."""


def live_teacher(recipe: Recipe) -> Teacher | None:
    """The teacher that computes in each step of a recipe, if it has one. Raises UsageError where it is not there."""
    config = recipe.train.loss.teacher
    return _read(config.path) if isinstance(config, RelationTeacher) else None


@cache
def _read(path: str) -> Teacher:
    tensors = dict[str, Entry]()
    for file in _weights(Path(path)):
        tensors |= read_header(file)
    sizes = {name: each.shape for name, each in tensors.items()}
    if not sizes:
        raise UsageError(
            f"train.loss.teacher.path: {path} has no weights, whose shapes count: name a run with a checkpoint, a "
            "checkpoint or a model folder"
        )
    numbers = {name: next((part for part in name.split(".") if part.isdigit()), "") for name in sizes}
    inside = [sizes[name] for name, number in numbers.items() if number and len(sizes[name]) > 1]
    ends = [sizes[name] for name, number in numbers.items() if not number and len(sizes[name]) == 2]
    matrices = [(shape[-1], shape[-2]) for shape in inside for _ in range(prod(shape[:-2]))]
    width = max(ends or inside, key=prod, default=(0,))[-1]
    return Teacher(sum(map(prod, sizes.values())), width, len({*numbers.values()} - {""}), tuple(matrices))


def _weights(path: Path) -> list[Path]:
    """Files of the newest checkpoint of a run, or of a folder."""
    for folder in (path, *sorted(RunDir(path).checkpoints.glob("*"), reverse=True)):
        if found := sorted(folder.glob("*.safetensors")):
            return found
    return []


def teacher_bytes(recipe: Recipe, rows: Rows) -> tuple[int, int]:
    """Bytes beside its weights: (kept until backward, there while the loss is computed); 0 without a teacher.

    Kept are scores, which of them are seen, and vectors as products of heads read them, in float32.
    """
    teacher, config = live_teacher(recipe), recipe.train.loss.teacher
    if teacher is None or not isinstance(config, RelationTeacher):
        return 0, 0
    scores = rows.tokens * rows.sequence * config.heads
    each = KEPT * scores + rows.tokens * (rows.sequence + 8 * recipe.model.width)
    return config.layers * len(config.of) * each, PASSING * scores


def teacher_seconds(recipe: Recipe, tokens: int, rates: Rates, item: int) -> tuple[float, float]:
    """Of a microbatch of `tokens` tokens: (forward, backward), 0 without a teacher."""
    teacher, config = live_teacher(recipe), recipe.train.loss.teacher
    if teacher is None or not isinstance(config, RelationTeacher):
        return 0.0, 0.0
    sequence, kinds = recipe.train.sequence, config.layers * len(config.of)
    work = Work(
        tuple(Multiply(tokens, inner, columns) for inner, columns in teacher.matrices),
        attention=2.0 * teacher.blocks * tokens * sequence * teacher.width,
        moved=float(item * tokens * sum(columns for _, columns in teacher.matrices)),
        calls=CALLS * teacher.blocks,
    )
    moved = 4.0 * kinds * tokens * sequence * config.heads
    forward, backward = (Work(moved=times * moved) for times in (FORWARD_PASSES, BACKWARD_PASSES))
    ours, theirs = (
        2.0 * kinds * tokens * sequence * width / rates.vector for width in (recipe.model.width, teacher.width)
    )
    return (work + forward).forward(rates, item) + ours + theirs, backward.forward(rates, item) + 2 * ours
