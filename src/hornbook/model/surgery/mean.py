"""The mean of several models of one shape, tensor by tensor (Izmailov et al. 2018, arXiv 1803.05407)."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hornbook.errors import IntegrityError
from hornbook.files.durable import storage_errors
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.hf import create_hf, fill_hf
from hornbook.model.storage.tensor_slices import TensorSlice, whole

Stream = Iterator[tuple[str, Tensor]]
HELD_BYTES = 2**30
"""Averaged tensors that are held before they are written."""


def mean_tensors(streams: Sequence[Stream], weights: Sequence[float]) -> Stream:
    """(name, float32 tensor) of sum_i w_i x_i / sum_i w_i, added up and divided in float64, then rounded.

    Products with weights that are small whole numbers are exact, so that plain means are the nearest float32 values.
    The names may come in any order, the same in all. Raises IntegrityError where a stream lacks a tensor or has it in
    another shape.
    """
    first, others = streams[0], [_ByName(stream) for stream in streams[1:]]
    for name, tensor in first:
        total = tensor.double() * weights[0]
        for other, weight in zip(others, weights[1:], strict=True):
            part = other.take(name)
            if part.shape != tensor.shape:
                raise IntegrityError(f"{name} is {list(tensor.shape)} in one model and {list(part.shape)} in another")
            total.add_(part.double(), alpha=weight)
        yield name, (total / sum(weights)).to(torch.float32)


class _ByName:
    """Takes tensors of a stream by name; those that come before it are held."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._held = stream, dict[str, Tensor]()

    def take(self, name: str) -> Tensor:
        while name not in self._held:
            found = next(self._stream, None)
            if found is None:
                raise IntegrityError(f"{name} is in one of the models only")
            self._held[found[0]] = found[1]
        return self._held.pop(name)


def write_streamed(
    folder: Path, stream: Stream, config: ModelConfig, vocab: int, tokenizer: Path | None, decoder_start: int | None
) -> None:
    """As `write_hf` in float32, of a stream that is never whole in memory."""
    with storage_errors(folder):
        create_hf(folder, config, vocab, tokenizer, decoder_start=decoder_start)
        held: dict[str, TensorSlice] = {}
        for name, tensor in stream:
            held[name] = whole(tensor)
            if sum(each.tensor.nbytes for each in held.values()) >= HELD_BYTES:
                fill_hf(folder, held, config, vocab)
                held = {}
        fill_hf(folder, held, config, vocab)
