"""`hornbook prune`: a smaller model from a larger one, with loss, size and speed of both."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.model.out_folder import check_free, new_model, report_text, tell_left_out, with_tokenizer
from hornbook.cli.result import Result
from hornbook.cli.shell import Target
from hornbook.errors import UsageError
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.data.batch import Batch
    from hornbook.model.config.model import ModelConfig
    from hornbook.model.surgery.prune import Importance
    from hornbook.parallel.engine import Engine
    from hornbook.settings.recipe import Recipe

TOKENS = 32_768
"""Held-out tokens of each source that losses are of."""


def prune(
    target: Target,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write; new or empty.")],
    heads: Annotated[int | None, typer.Option(help="Query heads that each layer keeps.")] = None,
    hidden: Annotated[int | None, typer.Option(help="MLP channels that each layer keeps.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers that stay.")] = None,
    sparse: Annotated[bool, typer.Option("--sparse", help="Set two of four neighbouring weights to 0 (2:4).")] = False,
    data: Annotated[
        Path | None, typer.Option(help="A folder written by `hornbook tokenize`, instead of the run's own.")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of training text that importance is measured on.")] = 64,
) -> Result:
    """Write a smaller model: the heads, MLP channels and layers that matter most for a text, as an ordinary folder.

    Training heals it, best with the larger model as teacher: `hornbook train RECIPE --from DIR
    --train.loss.teacher.kind top --train.loss.teacher.path RUN`.
    """
    from hornbook.model.hf.hf import write_hf
    from hornbook.model.surgery.folders import decoder_start_of, read_merged
    from hornbook.model.surgery.prune import choose, pruned, sparsify
    from hornbook.model.surgery.prune import prune as cut
    from hornbook.run.checkpoints.path import checkpoint_path

    if heads is None and hidden is None and layers is None and not sparse:
        raise UsageError("there is nothing to take out: give --heads, --hidden, --layers or --sparse")
    folder = checkpoint_path(target)
    old, vocab, stream, tokenizer = read_merged(folder)
    new = pruned(old, heads, hidden, layers)
    check_free(out)
    text = _Text(folder, data)
    kept = choose(text.importance(folder, rows), new)
    before = text.measure(folder)
    tensors = cut(stream, old, kept)
    report: dict[str, Any] = {"source": str(folder), "out": str(out), "model": new.model_dump(mode="json")}
    tell_left_out(folder, report)
    report |= {"layers": kept.layers, "before": before}
    with new_model(out, "prune", folder, report) as partial:
        values = sparsify(tensors) if sparse else tensors
        write_hf(partial, values, new, vocab, with_tokenizer(tokenizer), decoder_start=decoder_start_of(folder))
    report["after"] = after = text.measure(out)
    lines = [f"{name}: {_said(name, before[name])} -> {_said(name, after[name])}" for name in before]
    lines.append(f"layers kept: {', '.join(map(str, kept.layers))}")
    return Result(report, report_text(out, report["files"], "\n".join(lines)))


def _said(name: str, value: float) -> str:
    return f"{value:.4f}" if name == "loss" else f"{value:,.0f}"


class _Text:
    """The text that a model is measured on: that of its run, or of a folder."""

    def __init__(self, folder: Path, data: Path | None) -> None:
        from hornbook.cli.model.subject import recipe_of
        from hornbook.data.config.data import DataConfig
        from hornbook.data.loader.loader import build_loader
        from hornbook.model.storage.load import load_model
        from hornbook.run.start.init_from import check_tokenizer
        from hornbook.text.tokenizer.tokenizer import Tokenizer

        loaded = load_model(folder)
        recipe = recipe_of(folder, loaded)
        if (path := recipe.data.path if data is None else str(data)) is None:
            raise UsageError(f"{folder} belongs to no run, so there is no text: give --data DATA")
        check_tokenizer(folder, Tokenizer.load(Path(path) / "tokenizer"))
        self._recipe: Recipe = recipe
        self._sequence = min(recipe.train.sequence, loaded.config.position.length)
        config = DataConfig(document_mask=recipe.data.document_mask)
        sizes = {"sequence": self._sequence, "micro_batch": 1, "seed": recipe.seed}
        self._index = build_loader(config, path, **sizes, prefetch=False).index

    def _engine(self, folder: Path) -> "tuple[Engine, ModelConfig]":
        from hornbook.model.build import build_model
        from hornbook.model.surgery.folders import read_merged
        from hornbook.model.surgery.operate import fill
        from hornbook.parallel.config import ParallelConfig
        from hornbook.parallel.parallelize import parallelize

        config, vocab, tensors, _ = read_merged(folder)  # the weights that are cut: adapters merged, nothing frozen
        model = fill(build_model(config, vocab, "meta"), tensors, None)
        train = self._recipe.train.model_copy(update={"device": "auto", "precision": "fp32", "compile": False})
        return parallelize(model.requires_grad_(True), ParallelConfig(), train), config

    def importance(self, folder: Path, rows: int) -> "Importance":
        """Of the parts of a model, on the first rows of training text."""
        import numpy as np

        from hornbook.model.surgery.prune import Meter

        engine, config = self._engine(folder)
        with Meter(engine.model, config) as meter, progress_bar() as progress:
            for number in range(rows):
                progress("measure importance", number, rows)
                batch = self._index.batch(np.array([number]), 1).batches[0]
                engine.forward_backward([batch], float(batch.weights.sum()))
                meter.take()
        return meter.importance()

    def measure(self, folder: Path) -> dict[str, float]:
        """Loss on held-out text, parameters, bytes of the weights, and tokens per second of the evaluation."""
        engine, _ = self._engine(folder)
        loss, tokens, first, started = 0.0, 0, 0, 0.0
        for number, batch in enumerate(self._held_out()):
            if number == 1:
                started, first = time.perf_counter(), tokens  # kernels are loaded by now
            loss += float(engine.evaluate(batch).double().sum())
            tokens += int(batch.weights.count_nonzero())
        if not tokens:
            raise UsageError(
                f"{self._index.corpus.root} has no validation text: tokenize it with text.validation above 0"
            )
        rate = (tokens - first) / (time.perf_counter() - started) if started else math.nan
        size = sum(path.stat().st_size for path in folder.glob("model*.safetensors")) or 4 * engine.num_parameters
        return {"loss": loss / tokens, "parameters": engine.num_parameters, "bytes": size, "tokens per second": rate}

    def _held_out(self) -> "Iterator[Batch]":
        from hornbook.data.validation import held_out

        corpus, mask = self._index.corpus, self._recipe.data.document_mask
        for source in corpus.validation:
            rows = held_out(corpus, source, sequence=self._sequence, document_mask=mask, max_tokens=TOKENS)
            yield from rows.batches(self._recipe.train.micro_rows)
