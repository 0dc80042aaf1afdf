"""The teacher of a distillation: it predicts the rows that a run reads, once, before the first step.

What it predicts is kept beside the data (`hornbook.data.teacher`), so a second run, or a resume, computes only rows
that no run has read. Ranks are forked later: where there are several, a process of its own computes.

A teacher of relations (`hornbook.parallel.gradients.live_teacher`) computes in the steps instead.
"""

import contextlib
import functools
import math
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from hornbook.data.config.teacher import NoTerm, RelationTeacher, TopTeacher
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.loader.loader import SkippedRanges, merge_ranges, positions_of
from hornbook.data.teacher import Predictions, TeacherRows, TeacherTable, in_parts
from hornbook.errors import HornbookError, RankLostError, UsageError, quoted
from hornbook.files.artifact import digest_of
from hornbook.files.run_directory import RunDir
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.storage.load import load_model
from hornbook.model.surgery.adapters.adapter_files import tensors_digest
from hornbook.model.surgery.folders import read_merged
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.live_teacher import LiveTeacher
from hornbook.parallel.parallelize import parallelize
from hornbook.progress import progress_bar
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.job import Start
from hornbook.run.job.run_inputs import Inputs
from hornbook.run.job.start.init_from import has_tokenizer
from hornbook.run.ledger.ledger import read_past
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.settings.resume_rules import TRAINING_ONLY

AHEAD = 1.05
"""Rows are predicted for a run longer by this factor: what the guard leaves out, others take the place of."""
BLOCK = 2**20
"""Positions located at once."""


def teach(inputs: Inputs, run: RunDir, start: Start, *, compute: bool = True) -> None:
    """Give the loader what the teacher of the recipe predicts, if it has one; rows that are not there are computed.

    compute: False refuses instead, where ranks are started by others.
    Raises UsageError where the teacher has another vocabulary, is no causal model, or reads shorter rows.
    """
    config = inputs.recipe.train.loss.teacher
    if isinstance(config, NoTerm):
        return
    folder = checkpoint_path(Path(config.path))
    _check_teacher(folder, inputs)
    if isinstance(config, RelationTeacher):
        check_relations(config, read_merged(folder)[0], inputs.recipe.model)
        return
    if config.top > inputs.tokenizer.vocab_size:
        size = inputs.tokenizer.vocab_size
        raise UsageError(
            f"train.loss.teacher.top: {config.top} is more than the tokenizer's {size:,} tokens: take fewer"
        )
    table = _open(inputs, config, folder)
    wanted = _missing(inputs, table, _skipped(run, start))
    if any(map(len, wanted)):
        if not compute:
            raise UsageError(
                "train.loss.teacher: its predictions are not there yet, and ranks of a launcher do not compute them: "
                "start this run on one machine until its first step, with the same data and settings, then here"
            )
        work = functools.partial(_predict_all, inputs, config, folder, wanted, quiet=start.quiet)
        _alone(work) if inputs.recipe.parallel.world > 1 else work()
        table = _open(inputs, config, folder)
    inputs.loader.index.teacher = table


def join_teacher(recipe: Recipe, engine: Engine) -> None:
    """Have the teacher of relations compute beside the model, if the recipe has one."""
    config = recipe.train.loss.teacher
    if isinstance(config, RelationTeacher):
        folder, device = checkpoint_path(Path(config.path)), engine.world.device
        teacher = load_model(folder, device=device, compute_dtype=engine.model.compute_dtype).model
        engine.teacher = LiveTeacher(teacher, engine.model, config, device)


def check_relations(config: RelationTeacher, teacher: ModelConfig, model: ModelConfig) -> None:
    """UsageError where the layers of a teacher and a model have not the relations that are asked for."""
    key, layer = "train.loss.teacher", teacher.layers if config.layer is None else config.layer
    if layer > teacher.layers:
        raise UsageError(f"{key}.layer: {layer} is more than the teacher's {teacher.layers} layers: take one of them")
    if config.layers > (most := min(layer, model.layers)):
        text = f"the model has {model.layers} layers, and learns from the teacher's first {layer}"
        raise UsageError(f"{key}.layers: {config.layers} is too many: {text}: take {most} at most")
    pairs = config.pairs(model.layers, teacher.layers)
    compared = [("the teacher", teacher, each) for _, each in pairs] + [("the model", model, each) for each, _ in pairs]
    for name, whole, number in compared:
        attention = whole.layer(number).attention
        inner = [each for each in config.of if each != "hidden"]
        if inner and not isinstance(attention, FullAttentionConfig):
            text = (
                f"{name}'s layer {number + 1} has attention of kind {attention.kind!r}, without {inner[0]} to compare"
            )
            raise UsageError(f'{key}.of: {text}: take of = ["hidden"]')
        sizes = {each: whole.width if each == "hidden" else whole.heads * whole.head_dim for each in config.of}
        if odd := next((each for each, size in sizes.items() if size % config.heads), None):
            text = f"{name}'s {odd} vectors have {sizes[odd]} values, which {config.heads} heads do not divide"
            fitting = math.gcd(*sizes.values(), teacher.width, model.width)
            raise UsageError(f"{key}.heads: {text}: take a number that divides both models' sizes, as {fitting}")


def pin_teacher(resolved: Resolved, before: Recipe | None = None) -> Resolved:
    """The recipe with the checkpoint of the teacher in place of its run, which may train on and have others later.

    before: the recipe of a run that goes on; its checkpoint stays where the same run is named again. Raises as
    `checkpoint_path`.
    """
    recipe = resolved.recipe
    loss, config = recipe.train.loss, recipe.train.loss.teacher
    if isinstance(config, NoTerm):
        return resolved
    named, old = Path(config.path).resolve(), None if before is None else before.train.loss.teacher
    kept = None if old is None or isinstance(old, NoTerm) else old.path
    stays = kept is not None and Path(kept).is_relative_to(named)
    path = kept if stays else str(checkpoint_path(named).resolve())
    loss = loss.model_copy(update={"teacher": config.model_copy(update={"path": path})})
    return Resolved(
        recipe.model_copy(update={"train": recipe.train.model_copy(update={"loss": loss})}), resolved.origins
    )


def _alone(work: Callable[[], None]) -> None:
    """Do it in a fork, and raise here the error that it ends with: threads of torch would not survive later forks."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def child() -> None:
        try:
            work()
        except HornbookError as error:
            there.send(error)

    process = context.Process(target=child)
    process.start()
    there.close()
    with contextlib.suppress(EOFError):
        raise here.recv()
    process.join()
    if process.exitcode:
        raise RankLostError(f"the process in which the teacher predicts ended with {process.exitcode}: start again")


def _skipped(run: RunDir, start: Start) -> SkippedRanges:
    """Positions that a start leaves out of the data."""
    if start.mode == "resume":
        return merge_ranges(read_past(run).skipped_ranges)
    return () if start.init_from is None else start.init_from.skipped_ranges


def _check_teacher(folder: Path, inputs: Inputs) -> None:
    key = "train.loss.teacher.path"
    if not has_tokenizer(folder, inputs.tokenizer):
        raise UsageError(
            f"{key}: {folder} has another vocabulary than {inputs.corpus.root}, so its probabilities are of other "
            f"tokens: make the data anew with `hornbook tokenize` and --tokenizer {quoted(folder / 'tokenizer.json')}, "
            "or take a teacher that was trained on this data"
        )
    config = read_merged(folder)[0]
    if inputs.recipe.model.kind == "encoder" and config.kind != "encoder":
        raise UsageError(f"{key}: {folder} does not see both ways as the model does: take one of model.kind encoder")
    if inputs.recipe.model.kind == "decoder" and (config.kind, config.head.kind) != ("decoder", "lm"):
        raise UsageError(f"{key}: {folder} is no causal language model: take one of model.kind decoder, with a head lm")
    if config.position.length < (sequence := inputs.recipe.train.sequence):
        text = f"{folder} reads {config.position.length} tokens, and train.sequence is {sequence}"
        raise UsageError(f"{key}: {text}: take rows of {config.position.length}, or another teacher")


def _open(inputs: Inputs, config: TopTeacher, folder: Path) -> TeacherTable:
    """What was predicted before, of each source."""
    shape, _, stream, _ = read_merged(folder)
    facts = {"teacher": tensors_digest(stream), "top": config.top, "temperature": config.temperature}
    # Weights alone are not a model: angles of positions, windows and scales are settings.
    facts |= {"model": shape.model_dump(mode="json", exclude=set(TRAINING_ONLY))}
    facts["mask"] = inputs.recipe.data.document_mask
    plans, cache = inputs.loader.index.plans, inputs.corpus.root / "plans"
    names = [digest_of(facts | {"plan": plan.digest})[:16] for plan in plans]
    return TeacherTable(
        [TeacherRows(cache / f"teacher-{name}", plan.rows) for name, plan in zip(names, plans, strict=True)]
    )


def _missing(inputs: Inputs, table: TeacherTable, skipped: SkippedRanges) -> list[np.ndarray]:
    """Of each source, rows that the run reads and nobody has predicted."""
    index, length = inputs.loader.index, inputs.length
    rows, found = int(-(-length.planned // length.sequence) * AHEAD) + 1, [list[np.ndarray]() for _ in table.sources]
    for first in range(0, rows, BLOCK):
        refs = index.refs(positions_of(first, min(BLOCK, rows - first), skipped))
        for source, some in enumerate(found):
            some.append(np.unique(refs.rows[refs.sources == source]))
    return [each.missing(np.concatenate(some)) for each, some in zip(table.sources, found, strict=True)]


def _predict_all(inputs: Inputs, config: TopTeacher, folder: Path, wanted: list[np.ndarray], *, quiet: bool) -> None:
    """Predict rows of each source and keep what was found."""
    index, tokens, micro, done = inputs.loader.index, inputs.tokenizer.vocab_size, inputs.recipe.train.micro_rows, 0
    engine, table = _engine(folder, inputs.recipe), _open(inputs, config, folder)
    with progress_bar(shown=not quiet) as progress:
        for source, rows in enumerate(wanted):
            for part in in_parts(rows, index.sequence, config.top):
                found: list[Predictions] = []
                for some in np.split(part, range(micro, len(part), micro)):
                    progress("the teacher predicts", done, sum(map(len, wanted)))
                    found.append(predict(engine, index, source, some, config, tokens))
                    done += len(some)
                whole = Predictions(*(np.concatenate(each) for each in zip(*found, strict=True)))
                table.sources[source].add(part, whole, wide=tokens > 2**16)


def _engine(folder: Path, recipe: Recipe) -> Engine:
    """The teacher on one device, in the precision that suits it."""
    train = recipe.train.model_copy(update={"precision": "auto", "compile": False, "cuda_graphs": False})
    return parallelize(load_model(folder).model, ParallelConfig(), train)


def predict(
    engine: Engine, index: GlobalIndex, source: int, rows: np.ndarray, config: TopTeacher, tokens: int
) -> Predictions:
    """The likeliest of the first `tokens` ids at each token of some rows, and their log-probabilities."""
    with engine.evaluation_mode() as model:
        assert model.head is not None
        hidden, _ = model(**engine.inputs(index.rows(source, rows)))
        pairs = [_likeliest(model.head.logits(one)[:, :tokens], config) for one in _in_pieces(hidden.flatten(0, 1))]
    ids, logs = (torch.cat(each).view(*hidden.shape[:2], -1).cpu().numpy() for each in zip(*pairs, strict=True))
    return Predictions(ids, logs)


def _in_pieces(hidden: torch.Tensor) -> Iterator[torch.Tensor]:
    yield from hidden.split(1024)  # all logits at once are the largest tensor


def _likeliest(logits: torch.Tensor, config: TopTeacher) -> tuple[torch.Tensor, torch.Tensor]:
    logs, ids = (logits / config.temperature).log_softmax(-1).topk(config.top, dim=-1)
    return ids, logs
