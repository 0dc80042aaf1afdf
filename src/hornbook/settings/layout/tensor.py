"""Rules of tensor parallelism: what `parallel.tensor` and `parallel.sequence` ask of the model and of the run."""

from collections.abc import Iterator

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.model.config.part import Cut, method
from hornbook.parallel.config import FILL, ParallelConfig
from hornbook.settings.layout.context import norm_kinds
from hornbook.settings.training import TrainConfig


def tensor_problems(parallel: ParallelConfig, train: TrainConfig, model: ModelConfig) -> Iterator[tuple[str, str]]:
    """(Dotted key, what is wrong and the remedy)."""
    ranks = parallel.tensor
    if ranks == FILL:  # checked when the number of ranks is known
        return
    if ranks == 1:
        if parallel.sequence:
            yield "parallel.sequence", "divides time over the ranks of parallel.tensor: set that to 2 or more"
        return
    yield from _check_heads(model, ranks)
    if model.vocab is not None and model.vocab < ranks:
        yield "parallel.tensor", f"a vocabulary of {model.vocab} is less than {ranks} ranks: take fewer"
    if parallel.sequence and "batch" in norm_kinds(model):
        yield "parallel.sequence", 'a norm of kind "batch" needs whole rows: leave it false'
    if parallel.sequence and parallel.context.ranks > 1:
        yield "parallel.sequence", "rows that parallel.context divides are not divided again: leave it false"
    if train.precision == "float8":
        yield "train.precision", "scales of float8 would be those of a rank's part of a matrix: take bf16"
    if train.cuda_graphs:
        yield "train.cuda_graphs", "a graph cannot wait for other ranks: set it to false, or parallel.tensor to 1"


def _check_heads(model: ModelConfig, ranks: int) -> Iterator[tuple[str, str]]:
    """Heads of each layer that has any, and hidden values of its MLP."""
    seen = set[str]()
    for stack in stacks_of(model):
        for number in range(stack.num_blocks):
            text = _layer_problem(stack.layer(number), ranks)
            if text and text not in seen:
                seen.add(text)
                yield "parallel.tensor", text


def _layer_problem(layer: ModelConfig, ranks: int) -> str:
    weights = [each for part in (layer.attention, layer.mlp) for each in method(part, "weights")(layer)]
    return next((text for each in weights if each.cut is not None and (text := _cut_problem(each.cut, ranks))), "")


def _cut_problem(cut: Cut, ranks: int) -> str:
    units = cut.units
    if cut.unit == "heads" and units % ranks:
        fitting = ", ".join(str(n) for n in range(2, units + 1) if units % n == 0) or "none"
        return f"{units} heads (model.heads) do not divide among {ranks} ranks: those that do are {fitting}"
    if cut.unit == "kv_heads" and units % ranks and ranks % units:
        found = f"{units} key-value heads (model.attention.kv_heads)"
        return f"{found} neither divide among {ranks} ranks nor ranks among them: change one"
    if cut.unit == "hidden" and units < ranks:
        return f"{units} hidden values of an MLP (model.mlp.hidden) are fewer than {ranks} ranks: take fewer"
    return ""
