"""What a reference model says of the answers of a data folder, computed once before training (`hornbook reference`)."""

from pathlib import Path
from typing import Any

import numpy as np

from hornbook.data.batch_builder import BuildContext, SampleRefs
from hornbook.data.config.preferences import Referenced
from hornbook.data.corpus import Corpus
from hornbook.data.labelled.comparisons import Comparisons, build_comparisons
from hornbook.data.labelled.references import find_references, keep_references, model_digest
from hornbook.errors import UsageError, quoted
from hornbook.model.heads.preference import answer_logps
from hornbook.model.storage.load import load_model
from hornbook.model.surgery.adapters.adapter_files import is_adapter
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.progress import Progress
from hornbook.run.job.start.init_from import check_tokenizer
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.text.tokenizer.tokenizer import Tokenizer


def with_reference(resolved: Resolved, checkpoint: Path) -> Resolved:
    """The recipe with the model that it starts from as the reference, where its objective names no other.

    A digest stands in place of the folder, so that a resume does not need the model.
    """
    recipe, objective = resolved.recipe, resolved.recipe.data.objective
    if not isinstance(objective, Referenced) or objective.reference is not None:
        return resolved
    chosen = objective.model_copy(update={"reference": model_digest(checkpoint)})
    data = recipe.data.model_copy(update={"objective": chosen})
    origins = {**resolved.origins, "data.objective.reference": str(checkpoint)}
    return Resolved(recipe.model_copy(update={"data": data}), origins)


def keep_reference(resolved: Resolved, before: Recipe) -> Resolved:
    """The recipe of a run that goes on, with its reference where the words of its start are given again."""
    objective, old = resolved.recipe.data.objective, before.data.objective
    if not isinstance(objective, Referenced) or objective.reference is not None or not isinstance(old, Referenced):
        return resolved
    chosen = objective.model_copy(update={"reference": old.reference})
    data = resolved.recipe.data.model_copy(update={"objective": chosen})
    return Resolved(resolved.recipe.model_copy(update={"data": data}), resolved.origins)


def compute_references(recipe: Recipe, folder: Path, progress: Progress) -> dict[str, Any]:
    """Write the log-probabilities of all training answers; returns their files, by source.

    What is there stays: asked again, by other rounding, the numbers of runs that go on would be others.
    UsageError where the recipe compares with no reference, or the model is an adapter or has another tokenizer than
    the data.
    """
    objective, path = recipe.data.objective, recipe.data.path
    if not isinstance(objective, Referenced) or path is None:
        raise UsageError("hornbook reference needs --data DATA, and a recipe whose data.objective is dpo, ipo or kto")
    if is_adapter(folder):
        raise UsageError(f"{folder} is an adapter: merge it first with `hornbook export {quoted(folder)} --out MERGED`")
    corpus = Corpus.open(path)
    check_tokenizer(folder, Tokenizer.load(corpus.root / "tokenizer"))
    loaded, digest = load_model(folder), model_digest(folder)
    if loaded.vocab < corpus.vocab_size:
        raise UsageError(
            f"{folder} has {loaded.vocab} tokens and the data {corpus.vocab_size}: a reference has the same vocabulary"
        )
    engine = parallelize(loaded.model, ParallelConfig(), recipe.train, num_tokens=corpus.vocab_size)
    files: dict[str, str] = {}
    for stream in corpus.train.values():
        context = BuildContext(corpus, [stream], recipe.data, recipe.train.sequence, recipe.seed)
        if kept := find_references(context, stream, objective, digest):
            files[stream.source] = str(kept)
            continue
        builder = build_comparisons(context, objective, referenced=False, ordered=True)
        table = _log_probabilities(engine, builder, stream.documents, recipe.train.micro_rows, progress)
        files[stream.source] = str(keep_references(context, stream, objective, digest, table))
    return {"reference": str(folder), "digest": digest, "files": files}


def _log_probabilities(
    engine: Engine, builder: Comparisons, documents: int, micro_batch: int, progress: Progress
) -> np.ndarray:
    """float32 [documents, 2]; NaN of documents that no row holds."""
    table, rows = np.full((documents, 2), np.nan, np.float32), builder.plans[0].rows
    for first in range(0, rows, micro_batch):
        numbers = np.arange(first, min(first + micro_batch, rows))
        none = np.zeros_like(numbers)
        refs = SampleRefs(numbers, none, numbers, none)
        batch = builder.build(refs, micro_batch).microbatch(0)
        assert batch.compared is not None
        most = batch.compared.sides.shape[1]
        found = answer_logps(engine.evaluate(batch), batch.compared.marks, most).numpy()
        for row, (_, mine) in enumerate(builder.documents(refs)):
            each = int((batch.compared.sides[row] >= 0).sum()) // len(mine)
            table[mine, :each] = found[row, : each * len(mine)].reshape(len(mine), each)
        progress("ask the reference", int(numbers[-1]) + 1, rows)
    return table
