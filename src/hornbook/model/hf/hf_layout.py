"""Where each of our parameters lies in the tensors of a Hugging Face folder, by the rows of a table.

Which of our tensors exist, and their shapes, come from the model of the configuration itself, built without values.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.tables.vocabulary_names import Architecture, Row
from hornbook.model.storage.tensor_slices import TensorSlice

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Placed:
    """A parameter of ours, or one expert's matrix of it, in one of their tensors."""

    name: str
    shape: Shape
    """Of what lies there."""
    row: Row
    expert: int | None
    blocks: int
    """Number of times that parts alternate along the output dim: once for each head, else once."""
    start: int
    """First row, in each block."""
    rows: int
    """Rows of each block of their tensor."""

    @property
    def own(self) -> int:
        """Rows of ours in each block."""
        return self.shape[0] // self.blocks


Layout = dict[str, list[Placed]]
"""Their tensor -> what of ours it holds, in order."""


def parameter_shapes(config: ModelConfig, vocab: int) -> dict[str, Shape]:
    """Name and shape of every parameter, without allocating any."""
    return {name: tuple(each.shape) for name, each in build_model(config, vocab, "meta").named_parameters()}


def lay_out(config: ModelConfig, vocab: int, architecture: Architecture | None) -> Layout:
    """Where each of our parameters lies, in the order of the layers."""
    shapes = parameter_shapes(config, vocab)
    rows = None if architecture is None else _rows(architecture, {_pattern(name)[0] for name in shapes})
    found: dict[str, list[_Part]] = {}
    for name, shape in shapes.items():
        pattern, layer = _pattern(name)
        row = Row(name, name) if rows is None else rows[pattern]
        theirs = row.theirs.replace("{i}", layer)
        if "{e}" in theirs:
            for expert in range(shape[0]):
                found.setdefault(theirs.replace("{e}", str(expert)), []).append((name, shape[1:], row, expert))
        else:
            found.setdefault(theirs, []).append((name, shape, row, None))
    return {theirs: list(_side_by_side(parts, config.heads)) for theirs, parts in found.items()}


_Part = tuple[str, Shape, Row, int | None]


def _rows(architecture: Architecture, patterns: set[str]) -> dict[str, Row]:
    """The row of each parameter of a model that has the parameters `patterns`."""
    always = {row.ours: row for row in architecture.rows if not row.beside}
    return always | {row.ours: row for row in architecture.rows if row.beside in patterns}


def _pattern(name: str) -> tuple[str, str]:
    """`blocks.3.norm1.weight` -> (`blocks.{i}.norm1.weight`, `3`)."""
    number = re.search(r"(?<=\bblocks\.)\d+(?=\.)", name)
    return (name, "") if number is None else (f"{name[: number.start()]}{{i}}{name[number.end() :]}", number[0])


def _side_by_side(parts: list[_Part], heads: int) -> Iterator[Placed]:
    parts = sorted(parts, key=lambda part: part[2].part)
    blocks = heads if parts[0][2].form == "heads" else 1
    sizes = [shape[0] // blocks for _, shape, _, _ in parts]
    for i, (name, shape, row, expert) in enumerate(parts):
        yield Placed(name, shape, row, expert, blocks, sum(sizes[:i]), sum(sizes))


def stored_shape(parts: list[Placed]) -> Shape:
    """Shape of their tensor: ours side by side along the output dim, in the form that the row says."""
    first = parts[0]
    shape = (first.blocks * first.rows, *first.shape[1:])
    if first.row.form == "transposed":
        return shape[::-1]
    return (1, *shape) if first.row.form == "row" else shape


def slices_of(ours: TensorSlice, part: Placed) -> Iterator[TensorSlice]:
    """A slice of our parameter as slices of their tensor; none where it holds nothing of that tensor."""
    if part.expert is not None:
        number = part.expert - ours.start[0]
        if not 0 <= number < len(ours.tensor):
            return
        ours = TensorSlice(ours.tensor[number], ours.start[1:])
    first, rest = (ours.start[0], ours.start[1:]) if ours.start else (0, ())
    # Rows [block * own, (block + 1) * own) of ours begin at row block * rows + start of theirs.
    for block in range(part.blocks):
        low, high = max(first, block * part.own), min(first + len(ours.tensor), (block + 1) * part.own)
        if low < high:
            row = block * part.rows + part.start + low - block * part.own
            yield _formed(TensorSlice(ours.tensor[low - first : high - first], (row, *rest)), part.row)


def _formed(tensor_slice: TensorSlice, row: Row) -> TensorSlice:
    if row.form == "transposed":
        return TensorSlice(tensor_slice.tensor.T, tensor_slice.start[::-1])
    if row.form == "row":
        return TensorSlice(tensor_slice.tensor[None], (0, *tensor_slice.start))
    return tensor_slice


def part_of(stored: Tensor, part: Placed) -> Tensor:
    """What their tensor holds of our parameter: a view, or a copy where parts alternate."""
    if part.row.form == "transposed":
        stored = stored.T
    elif part.row.form == "row":
        stored = stored[0]
    if part.blocks == 1:
        return stored[part.start : part.start + part.own]
    whole = stored.unflatten(0, (part.blocks, part.rows))
    return whole[:, part.start : part.start + part.own].flatten(0, 1)


def placements(layout: Layout) -> dict[str, list[tuple[str, Placed]]]:
    """Our parameter -> (their tensor, part): one, or one of each expert in order."""
    found: dict[str, list[tuple[str, Placed]]] = {}
    for theirs, parts in layout.items():
        for part in parts:
            found.setdefault(part.name, []).append((theirs, part))
    return {name: sorted(each, key=lambda placement: placement[1].expert or 0) for name, each in found.items()}


def expected_shapes(layout: Layout) -> dict[str, Shape]:
    """Our parameters and their shapes."""
    return {
        name: each[0][1].shape if each[0][1].expert is None else (len(each), *each[0][1].shape)
        for name, each in placements(layout).items()
    }


def joined(tensors: list[Tensor]) -> Tensor:
    """One parameter from what its places hold."""
    return tensors[0] if len(tensors) == 1 else torch.stack(tensors)
