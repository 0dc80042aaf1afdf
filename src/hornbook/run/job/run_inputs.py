"""The fixed part of a run: its complete recipe, the data, tokenizer and length that follow from it, and its kernels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hornbook.data.corpus import Corpus
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.order import sampler
from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.evals.config import EvalConfig, FileTask, GenerationFile, TaskConfig, WrittenFile
from hornbook.evals.evaluate import Evaluator
from hornbook.kernels.ahead import Job, compile_ahead
from hornbook.kernels.cache import is_ready
from hornbook.kernels.team import Kernel
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import count_parameters, embedding_rows
from hornbook.model.config.replaced_config import HeadConfig
from hornbook.model.cpu.cpu_kernels import kernels_of
from hornbook.model.init.init import initial_values
from hornbook.model.layers.precision import choose_precision
from hornbook.model.surgery.operate import build_operated
from hornbook.optim.low_precision.narrow_kernels import kernels_of as optimizer_kernels
from hornbook.parallel.device import choose_device
from hornbook.parallel.parallelize import PRECISIONS
from hornbook.run.checkpoints.state import ModelSpec
from hornbook.run.ledger.ledger import LENGTH_SETTINGS, Monotone
from hornbook.run.ledger.training_length import TrainingLength, training_length
from hornbook.settings.fields import kept_by_config
from hornbook.settings.recipe import Recipe, unlike
from hornbook.settings.resolve import Resolved
from hornbook.settings.resume_rules import Change
from hornbook.settings.training import TrainConfig
from hornbook.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Inputs:
    """A complete recipe and what it reads."""

    resolved: Resolved
    """The recipe with `data.path` absolute, `model.vocab` and labels filled in, and the origin of every value."""
    loader: Loader
    tokenizer: Tokenizer
    length: TrainingLength
    parameters: int
    """Number of parameters of the model, those added by surgery included."""

    @property
    def recipe(self) -> Recipe:
        """The complete recipe."""
        return self.resolved.recipe

    @property
    def corpus(self) -> Corpus:
        """The token shards."""
        return self.loader.corpus

    @property
    def vocab(self) -> int:
        """Rows of the embedding."""
        assert self.recipe.model.vocab is not None
        return self.recipe.model.vocab

    def initial_values(self) -> Iterator[tuple[str, Tensor]]:
        """Initial values by the recipe's scheme; of parameters that surgery adds there are none."""
        model = self.recipe.model
        return initial_values(build_model(model, self.vocab, "meta"), model, self.recipe.seed)

    @property
    def model_spec(self) -> ModelSpec:
        """The description of the model that checkpoints hold."""
        recipe, tokenizer = self.recipe, self.corpus.root / "tokenizer"
        steps = tuple(recipe.surgery)
        dtype = "bfloat16" if recipe.train.precision == "bf16-pure" else "float32"
        return ModelSpec(recipe.model, self.vocab, tokenizer, steps, decoder_start=self.decoder_start, dtype=dtype)

    @property
    def decoder_start(self) -> int | None:
        """The first token of the decoder's input in training; None for a model without an encoder beside it."""
        start, pad = self.recipe.data.objective.decoder_start, self.tokenizer.special.pad
        if start is None:
            return None
        return self.tokenizer.end_id if start == "end" or pad is None else pad


def open_inputs(resolved: Resolved) -> Inputs:
    """Open the data that a recipe names, and fill in the settings that follow from it.

    Raises UsageError if no data is named, the length is not set, the tokenizer has more tokens than model.vocab,
    surgery does not fit the model, or there are evaluation tasks but no validation text, or one that cannot be asked.
    """
    recipe = resolved.recipe
    if recipe.data.path is None:
        raise UsageError("missing --data DATA: a folder made by `hornbook tokenize`")
    loader = open_loader(recipe, recipe.data.path)
    corpus = loader.corpus
    tokenizer = Tokenizer.load(corpus.root / "tokenizer")
    if tokenizer.digest != corpus.tokenizer_digest:
        raise IntegrityError(
            f"{corpus.root / 'tokenizer'} is not the tokenizer that made the token shards: restore it, "
            f"or run `hornbook tokenize {quoted(corpus.root)}` again"
        )
    if recipe.eval.tasks and not corpus.validation:
        raise UsageError(
            f"eval.tasks: {corpus.root} has no validation text, and without it nothing is evaluated: tokenize it again "
            "with text.validation above 0, or leave eval.tasks out"
        )
    head = labelled_head(recipe.model.head, corpus)
    vocab, origins = _vocabulary(recipe.model, tokenizer.vocab_size)
    model = recipe.model.model_copy(update={"vocab": vocab, "head": head})
    if head != recipe.model.head:
        origins["model.head.labels"] = f"the labels of {corpus.root}"
    parameters = sum(parameter.numel() for parameter in build_operated(model, vocab, recipe.surgery).parameters())
    replay = recipe.data.replay
    if replay.path is not None:
        replay = replay.model_copy(update={"path": str(Path(replay.path).resolve())})
    data = recipe.data.model_copy(update={"path": str(corpus.root.resolve()), "replay": replay})
    update = {"data": data, "model": model, "eval": _complete_tasks(recipe)}
    complete = Resolved(recipe.model_copy(update=update), {**resolved.origins, **origins})
    if recipe.eval.tasks:  # what is wrong with them is said before training
        Evaluator(corpus, tokenizer, complete.recipe, recipe.train.sequence).tasks  # noqa: B018
    return Inputs(complete, loader, tokenizer, training_length(recipe.train, loader.index.epoch_tokens), parameters)


def _complete_tasks(recipe: Recipe) -> EvalConfig:
    """`eval` with the paths of its tasks' files absolute, so that a resume reads the same files from anywhere."""
    tasks: list[TaskConfig] = []
    for task in recipe.eval.tasks:
        if isinstance(task, GenerationFile | WrittenFile) and recipe.parallel.pipeline.stages > 1:
            raise UsageError(
                f"eval.tasks, {task.label}: no rank of a pipeline has the whole model, so nothing is generated in "
                "training: score this task with `hornbook eval RUN --tasks`"
            )
        update = {"path": str(Path(task.path).absolute())} if isinstance(task, FileTask) else {}
        tasks.append(task.model_copy(update=update))
    return recipe.eval.model_copy(update={"tasks": tasks})


def open_loader(recipe: Recipe, data: str, *, prefetch: bool = True) -> Loader:
    """The batches of a recipe over a folder of token shards."""
    sizes = {"sequence": recipe.train.sequence, "micro_batch": recipe.train.micro_rows}
    return build_loader(recipe.data, data, **sizes, seed=recipe.seed, prefetch=prefetch)


def _vocabulary(model: ModelConfig, size: int) -> tuple[int, dict[str, str]]:
    """(rows of the embedding, the origin of model.vocab where the tokenizer decides it)."""
    rows = embedding_rows(model, size)
    if size > rows:
        raise UsageError(
            f"the tokenizer has {size:,} tokens and model.vocab has room for {rows:,}: raise model.vocab, or leave it "
            "out (it then follows the tokenizer)"
        )
    return rows, ({} if model.vocab else {"model.vocab": f"the tokenizer's {size}, rounded up to a multiple of 64"})


def labelled_head(head: HeadConfig, corpus: Corpus) -> HeadConfig:
    """The head with the labels of the data where the recipe names none. UsageError where a label head does not fit."""
    labels = corpus.labels
    if not isinstance(head, LabelHeadConfig) or labels is None:
        return head
    if problem := unlike(head, labels, str(corpus.root)):
        raise UsageError(": ".join(problem))
    names = getattr(labels, "labels", [])
    if len(names) == 1 and not getattr(labels, "multiple", False):
        raise UsageError(f"every row of {corpus.root} has the label {names[0]!r}: there is nothing to tell apart")
    return head.model_copy(update={"labels": names}) if names else head


def vocabulary_warning(inputs: Inputs) -> str:
    """A warning about rows of the embedding that no token of the tokenizer uses; "" where they are few."""
    rows, tokens = inputs.vocab, inputs.tokenizer.vocab_size
    if rows <= 1.1 * tokens + 64:
        return ""
    unused = count_parameters(inputs.recipe.model, rows) - count_parameters(inputs.recipe.model, tokens)
    return (
        f"model.vocab is {rows:,} and the tokenizer has {tokens:,} tokens: {unused:,} parameters are never used; "
        "--model.vocab none lets it follow the tokenizer"
    )


def resumed_length(inputs: Inputs, past: Monotone, changes: Sequence[Change]) -> TrainingLength:
    """Length of a resumed run: shortened as its ledger says, unless `changes` set a new length."""
    anew = any(change.key in LENGTH_SETTINGS for change in changes)
    return inputs.length.cut(() if anew else past.cuts)


def compile_for(inputs: Inputs) -> None:
    """Compile the missing kernels of training with these inputs, then load all: forks of this process inherit them."""
    model, train, index = inputs.recipe.model, inputs.recipe.train, inputs.loader.index
    # Every objective looks up positions first: where that is compiled, so are the kernels that read data.
    data = [] if is_ready(sampler._locate) else [partial(_first_row, index)]
    pure = train.precision == "bf16-pure"
    updates = optimizer_kernels(inputs.recipe.optim, pure) if choose_device(train.device).type == "cpu" else []
    missing = [partial(kernel.callback, pure) for kernel in updates if not kernel.is_ready(pure)]
    compile_ahead([*data, *missing, *model_jobs(model, train, inputs.vocab)])
    for kernel in updates:
        kernel.callback(pure)
    load_kernels(model, train, inputs.vocab)


def load_kernels(model: ModelConfig, train: TrainConfig, vocab: int) -> None:
    """Load the kernels of a model into this process; those that are missing are compiled here."""
    kernels, bfloat16 = _kernels(model, train, vocab)
    for kernel in kernels:
        kernel.callback(bfloat16)


def model_jobs(model: ModelConfig, train: TrainConfig, vocab: int) -> list[Job]:
    """For each kernel of the model that is not compiled, the call that compiles it."""
    kernels, bfloat16 = _kernels(model, train, vocab)
    return [partial(kernel.callback, bfloat16) for kernel in kernels if not kernel.is_ready(bfloat16)]


def _kernels(model: ModelConfig, train: TrainConfig, vocab: int) -> tuple[list[Kernel], bool]:
    """(kernels of a model, whether in bfloat16); none on a GPU, for a traced model, or in a dtype without kernels."""
    device = choose_device(train.device)
    precision = choose_precision(device).precision if train.precision == "auto" else train.precision
    dtype = PRECISIONS[precision]
    if device.type != "cpu" or train.compile or dtype not in (torch.bfloat16, torch.float32):
        return [], False
    has_terms = bool(train.loss.smoothing or train.loss.z_loss)
    return _kernels_of(model, vocab, has_terms), dtype == torch.bfloat16


@kept_by_config
def _kernels_of(model: ModelConfig, vocab: int, has_terms: bool) -> list[Kernel]:
    return kernels_of(build_model(model, vocab, device="meta"), has_terms)


def _first_row(index: GlobalIndex) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a fork has none of torch's threads
    try:
        index.batch(np.arange(1), 1)
    finally:
        torch.set_num_threads(threads)
