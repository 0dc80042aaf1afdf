"""Where our LoRA tensors lie in peft's, which name the modules of transformers.

Where a matrix of theirs is one of ours, so is its A and B. Where it holds several of ours side by side (GPT-2's c_attn
is query, key and value), one LoRA of theirs holds ours too: their A below one another, their B along the diagonal of a
block matrix, zero elsewhere. Its rank is the sum of the ranks, and its alpha grows with it.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import Dora, Ia3Config, Lora
from hornbook.model.hf.hf_config import choose_architecture
from hornbook.model.hf.hf_layout import Layout, Placed, lay_out, part_of, slices_of
from hornbook.model.storage.tensor_slices import TensorSlice

PREFIX = "base_model.model."
"""Before the name of a module in an adapter file."""


@dataclass(frozen=True)
class Placement:
    """Where one of our tensors lies in one of theirs."""

    theirs: str
    shape: tuple[int, ...]
    """Of theirs."""
    own: tuple[int, ...]
    """Shape of ours."""
    start: tuple[int, ...]
    """Where ours begins in theirs, once its rows are where the matrix has them."""
    rows: Placed | None = None
    """The matrix of which ours has the rows; None where it has them all or none."""

    def tensor_slices(self, ours: TensorSlice) -> Iterator[TensorSlice]:
        """A slice of our tensor as slices of theirs."""
        for part in [ours] if self.rows is None else slices_of(ours, self.rows):
            yield part.within(self.start)

    def read(self, theirs: Tensor) -> Tensor:
        """Ours, of all of theirs."""
        begin, sizes = self.start, self.own if self.rows is None else (theirs.shape[0], *self.own[1:])
        found = theirs[tuple(slice(first, first + size) for first, size in zip(begin, sizes, strict=True))]
        return (found if self.rows is None else part_of(found, self.rows)).contiguous()


@dataclass(frozen=True)
class TheirModule:
    """One LoRA of theirs."""

    name: str
    """Of the module in transformers."""
    parts: tuple[Placed, ...]
    """The weights of our linear layers that it holds updates of, in order; all as [out, in]."""
    inputs: int
    outputs: int
    transpose: bool
    """Whether theirs stores its weight as [in, out]."""


def their_modules(config: ModelConfig, vocab: int, step: Lora | Ia3Config, layers: Sequence[str]) -> list[TheirModule]:
    """The modules of transformers that hold the layers (our names). UsageError for part of a module under DoRA."""
    layout, found = lay_out(config, vocab, choose_architecture(config)), []
    for theirs, parts in layout.items():
        chosen = [part for part in parts if part.name.endswith(".weight") and layer_of(part) in layers]
        if chosen and isinstance(step, Dora) and len(chosen) < len(parts):
            missing = ", ".join(part.name for part in parts if part not in chosen)
            raise UsageError(f"surgery dora targets: {theirs} is one matrix in transformers: take {missing} too")
        if chosen:
            found.append(their_module(theirs, chosen))
    return found


def their_module(theirs: str, chosen: Sequence[Placed]) -> TheirModule:
    """One LoRA of theirs that holds updates of the chosen parts."""
    first = chosen[0]
    return TheirModule(
        name=theirs.removesuffix(".weight"),
        parts=tuple(replace(part, row=replace(part.row, form="same")) for part in chosen),
        inputs=first.shape[1],
        outputs=first.blocks * first.rows,
        transpose=first.row.form == "transposed",
    )


def layer_of(part: Placed) -> str:
    """Our linear layer whose weight this is."""
    return part.name.removesuffix(".weight")


def lora_placements(modules: Sequence[TheirModule], step: Lora, *, shared: bool = False) -> dict[str, Placement]:
    """Our tensors of a LoRA, by name, in theirs; `shared`: the parts of a module have the same A."""
    placements = {}
    for module in modules:
        theirs, outputs, rank = PREFIX + module.name, module.outputs, step.rank * (1 if shared else len(module.parts))
        for number, part in enumerate(module.parts):
            ours, first, rows = f"{layer_of(part)}.adapter", 0 if shared else number * step.rank, part.shape[0]
            a, b = (rank, module.inputs), (outputs, rank)
            placements[f"{ours}.a"] = Placement(f"{theirs}.lora_A.weight", a, (step.rank, module.inputs), (first, 0))
            placements[f"{ours}.b"] = Placement(f"{theirs}.lora_B.weight", b, (rows, step.rank), (0, first), part)
            if isinstance(step, Dora):
                length = Placement(f"{theirs}.lora_magnitude_vector", (outputs,), (rows,), (0,), part)
                placements[f"{ours}.magnitude.weight"] = length
    return placements


def ia3_placements(modules: Sequence[TheirModule], inputs: Collection[str]) -> dict[str, Placement]:
    """Our factors, by name, in theirs; inputs: our layers whose inputs have them."""
    placements = {}
    for module in modules:
        for part in module.parts:
            ours, theirs = f"{layer_of(part)}.adapter.scale", f"{PREFIX}{module.name}.ia3_l"
            read, made = (1, module.inputs), (module.outputs, 1)
            if layer_of(part) in inputs:
                placements[ours] = Placement(theirs, read, read, (0, 0))
            else:
                placements[ours] = Placement(theirs, made, (part.shape[0], 1), (0, 0), part)
    return placements


def head_placements(config: ModelConfig, vocab: int) -> dict[str, Placement]:
    """The parameters of a head for labels, by our names, in an adapter's file: whole, under their own names."""
    layout = lay_out(config, vocab, choose_architecture(config))
    parts = ((theirs, parts[0]) for theirs, parts in layout.items() if parts[0].name.startswith("head."))
    return {
        part.name: Placement(PREFIX + theirs, part.shape, part.shape, (0,) * len(part.shape)) for theirs, part in parts
    }


def head_modules(layout: Layout) -> list[str]:
    """The modules of transformers that are a head for labels: the largest that hold nothing else."""
    of_head = {theirs.rpartition(".")[0]: parts[0].name.startswith("head.") for theirs, parts in layout.items()}
    others = {name.partition(".")[0] for name, head in of_head.items() if not head}
    tops = {name: name.partition(".")[0] for name, head in of_head.items() if head}
    return sorted({name if top in others else top for name, top in tops.items()})


def short_names(names: Sequence[str], layout: Layout) -> list[str]:
    """Names of modules as peft matches them, by their ends: without numbers of layers where all that end so are named.

    BERT's `output.dense` is the end of `attention.output.dense` too.
    """
    everywhere = {f".{theirs.removesuffix('.weight')}" for theirs in layout if theirs.endswith(".weight")}
    short = {name: re.sub(r"^.*\.\d+\.", "", name) for name in names}
    chosen = {f".{name}" for name in names}
    whole = {each for each in short.values() if {name for name in everywhere if name.endswith(f".{each}")} <= chosen}
    return sorted({short[name] if short[name] in whole else name for name in names})
