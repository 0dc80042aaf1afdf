"""The text that a model is made smaller by, and what the model is before and after: loss, size, speed."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.cli.model.subject import text_of
from hornbook.errors import UsageError

if TYPE_CHECKING:
    import torch

    from hornbook.data.batch import Batch
    from hornbook.model.config.model_config import ModelConfig
    from hornbook.model.transformer import Transformer
    from hornbook.parallel.engine import Engine

TOKENS = 32_768
"""Held-out tokens of each source that losses are of."""


def before_and_after(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """A line for each of what `SampleText.measure` found."""
    return [f"{name}: {_said(name, before[name])} -> {_said(name, after[name])}" for name in before]


def _said(name: str, value: float) -> str:
    return "not measured" if math.isnan(value) else f"{value:.4f}" if name == "loss" else f"{value:,.0f}"


class SampleText:
    """The text of the run that a model is from, or of a folder."""

    def __init__(self, folder: Path, data: Path | None) -> None:
        """Raises UsageError where there is none, IntegrityError where it was made with another tokenizer."""
        from hornbook.data.config.data import DataConfig
        from hornbook.data.loader.loader import build_loader
        from hornbook.model.storage.load import load_model

        self._recipe, path, self._sequence = text_of(folder, load_model(folder), data)
        config = DataConfig(document_mask=self._recipe.data.document_mask)
        sizes = {"sequence": self._sequence, "micro_batch": 1, "seed": self._recipe.seed}
        self._index = build_loader(config, path, **sizes, prefetch=False).index

    def engine(self, folder: Path) -> "tuple[Engine, ModelConfig]":
        """The model of a folder, in float32 on one device; adapters merged and nothing frozen, but for codes."""
        from hornbook.model.build_model import build_model
        from hornbook.model.storage.load import load_model
        from hornbook.model.surgery.folders import read_merged
        from hornbook.model.surgery.operate import fill
        from hornbook.model.surgery.quantization.quantize import is_quantized
        from hornbook.parallel.config import ParallelConfig
        from hornbook.parallel.parallelize import parallelize

        if is_quantized(folder):
            loaded = load_model(folder)
            model, config = loaded.model, loaded.config
        else:
            config, vocab, tensors, _ = read_merged(folder)
            model = fill(build_model(config, vocab, "meta"), tensors, None).requires_grad_(True)
        train = self._recipe.train.model_copy(update={"device": "auto", "precision": "fp32", "compile": False})
        return parallelize(model, ParallelConfig(), train), config

    @property
    def device(self) -> "torch.device":
        """Where models compute on it."""
        from hornbook.parallel.device import choose_device

        return choose_device("auto")

    def microbatches(self, model: "Transformer", rows: int) -> list[dict[str, Any]]:
        """Arguments of `Transformer.forward` for the first rows of training text, where the model is."""
        from hornbook.parallel.runner import model_inputs

        device = next(model.parameters()).device
        return [model_inputs(model, batch, None, device, masked=True) for batch in self.batches(rows)]

    def batches(self, rows: int) -> "Iterator[Batch]":
        """The first rows of training text."""
        import numpy as np

        for number in range(rows):
            yield self._index.batch(np.array([number]), 1).batches[0]

    def measure(self, folder: Path) -> dict[str, float]:
        """Loss on held-out text, parameters, bytes of the weights, and tokens per second of the evaluation.

        What serves training alone (blocks of multi-token prediction) is in none of them.
        """
        from hornbook.model.layers.linear import Linear
        from hornbook.model.surgery.folders import left_out_bytes
        from hornbook.model.surgery.quantization.quantize import QUANTIZED

        engine, _ = self.engine(folder)
        loss, tokens, first, started = 0.0, 0, 0, 0.0
        for number, batch in enumerate(self._held_out()):
            if number == 1:
                started, first = time.perf_counter(), tokens  # kernels are loaded by now
            loss += float((engine.evaluate(batch).cpu().double() * batch.weights.double()).sum())
            tokens += int(batch.weights.count_nonzero())
        if not tokens:
            raise UsageError(
                f"{self._index.corpus.root} has no validation text: tokenize it with text.validation above 0"
            )
        rate = (tokens - first) / (time.perf_counter() - started) if started else math.nan
        coded = sum(each.weight.numel() for each in engine.model.modules() if isinstance(each, Linear) and each.code)
        parameters = engine.num_parameters + coded
        files = (*folder.glob("model*.safetensors"), *folder.glob(QUANTIZED))
        size = sum(path.stat().st_size - left_out_bytes(path) for path in files) or 4 * parameters
        return {"loss": loss / tokens, "parameters": parameters, "bytes": size, "tokens per second": rate}

    def _held_out(self) -> "Iterator[Batch]":
        from hornbook.data.validation import held_out

        corpus, mask = self._index.corpus, self._recipe.data.document_mask
        for source in corpus.validation:
            rows = held_out(corpus, source, sequence=self._sequence, document_mask=mask, max_tokens=TOKENS)
            yield from rows.batches(self._recipe.train.micro_rows)
