"""Rules of surgery on ranks that divide a model or its rows."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import parameters_of
from hornbook.model.config.surgery_config import BottleneckConfig, positions_ahead
from hornbook.parallel.config import FILL, ParallelConfig

DIVIDED = ("lora", "dora", "ia3", "bottleneck", "freeze", "sparse")
"""Kinds that ranks of `parallel.tensor` can divide."""


def divided_surgery_problems(
    parallel: ParallelConfig, model: ModelConfig, surgery: Sequence[Any]
) -> Iterator[tuple[str, str]]:
    """(Dotted key, what is wrong and the remedy)."""
    if parallel.tensor not in (1, FILL):
        yield from (("parallel.tensor", text) for step in surgery if (text := _tensor_problem(model, step)))
    if not positions_ahead(surgery):
        return
    if parallel.context.ranks > 1:
        text = "a prompt or a prefix stands before documents, which are divided over ranks: leave parallel.context 1"
        yield "surgery", text
    if parallel.pipeline.stages > 1:
        text = "a prompt or a prefix stands before documents, of which one stage of a pipeline alone sees the tokens"
        yield "surgery", f"{text}: take lora, or leave parallel.pipeline.stages 1"


def _tensor_problem(model: ModelConfig, step: Any) -> str:
    if step.kind not in DIVIDED:
        return f"layers with {step.kind} (surgery) cannot be divided: leave it 1, or take shard"
    if isinstance(step, BottleneckConfig):
        for each in parameters_of(model, 1):
            is_target = each.layer and any(fnmatchcase(each.layer, glob) for glob in step.targets)
            if is_target and each.cut is not None and each.cut.dim == 0:
                text = f"a bottleneck (surgery) reads all outputs of {each.layer}, which ranks would divide"
                return f"{text}: leave it out of the targets, take lora, or leave parallel.tensor 1"
    return ""
