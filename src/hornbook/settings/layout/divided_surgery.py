"""Rules of surgery on ranks that divide a model or its rows."""

from collections.abc import Iterator, Sequence
from typing import Any

from hornbook.model.config.surgery_config import positions_ahead
from hornbook.parallel.config import ParallelConfig


def divided_surgery_problems(parallel: ParallelConfig, surgery: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """(Dotted key, what is wrong and the remedy)."""
    if not positions_ahead(surgery):
        return
    if parallel.context.ranks > 1:
        text = "a prompt or a prefix stands before documents, which are divided over ranks: leave parallel.context 1"
        yield "surgery", text
    if parallel.pipeline.stages > 1:
        text = "a prompt or a prefix stands before documents, of which one stage of a pipeline alone sees the tokens"
        yield "surgery", f"{text}: take lora, or leave parallel.pipeline.stages 1"
