"""Small models for tests of tasks, and what tasks are built from."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch

from hornbook.data.corpus import Corpus
from hornbook.evals.config import GenerationFile
from hornbook.evals.likelihood import Request, log_likelihoods
from hornbook.evals.task import TaskContext
from hornbook.evals.tasks.generation import Question, write_all
from hornbook.model.build_model import build_model
from hornbook.model.transformer import Transformer
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve
from hornbook.text.tokenizer.tokenizer import Tokenizer

REQUESTS = [
    Request([0, 5, 6], [7]),
    Request([0], [9, 8, 7, 3, 2]),
    Request([0, *range(1, 40)], [4, 4]),
    Request([0, 1], list(range(30))),
    Request([0, 3], [12]),
]
QUESTIONS = [
    Question([0, *range(first, first + size)], [""], "") for first, size in ((5, 3), (40, 9), (7, 1), (90, 5), (60, 2))
]
ANSWERS = GenerationFile(path="-", max_tokens=12, stop=list("OktEJ`V\x04"))
SETTINGS = ("model.layers=1", "model.width=16", "model.heads=2", "train.precision=fp32", "train.device=cpu")


@cache
def recipe_of(*words: str) -> Recipe:
    """The recipe of `SETTINGS` and others. Not to be changed."""
    return resolve(None, [*SETTINGS, *words], {}).recipe


def engine(seed: int = 0, vocab: int = 257, *words: str) -> Engine:
    """An untrained model whose logits differ enough to be told apart."""
    recipe = recipe_of(*words)
    model = build_model(recipe.model, vocab, "cpu")
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return parallelize(model, ParallelConfig(), recipe.train)


def likelihoods(rank_info: RankInfo, corpus: str, parallel: dict[str, Any]) -> list[list[float]]:
    """What each rank finds of `REQUESTS`, by the model of `engine` divided over ranks."""
    settings = ParallelConfig.model_validate(parallel)
    words = ["model.layers=2", "train.threads=1"]
    with distributed(settings, recipe_of(*words).train, rank_info) as world:
        model = divided(world, settings, words)
        return log_likelihoods(model, world, REQUESTS, context(Path(corpus), 64, 1)).tolist()


def divided(world: World, parallel: ParallelConfig, words: Sequence[str]) -> Engine:
    """The model of `engine` over ranks."""
    recipe = recipe_of(*words)
    found = parallelize(build_model(recipe.model, 257, "meta"), parallel, recipe.train, world)
    whole = engine(0, 257, *words).model
    found.load_stream((name, each.detach()) for name, each in whole.named_parameters())
    return found


def answers(rank_info: RankInfo, corpus: str, parallel: dict[str, Any], words: list[str]) -> list[Any]:
    """Each rank's answers to `QUESTIONS`, by greedy decoding and by beams, and how many it wrote itself.

    Last, the answers until `proceed` was False the second time.
    """
    settings, found = ParallelConfig.model_validate(parallel), list[Any]()
    with distributed(settings, recipe_of(*words).train, rank_info) as world:
        model = divided(world, settings, words)
        calls = iter((True, False))
        for beams, proceed in ((1, lambda: True), (2, lambda: True), (1, lambda: next(calls))):
            entered = Counter[str]()
            watched = cast(Any, Watched(model, entered))
            asked = context(Path(corpus), 64, proceed=proceed)
            found += [write_all(watched, world, QUESTIONS, asked, ANSWERS, (beams, 1.0)), entered["answers"]]
    return found


class Watched:
    """A model that counts how often it is asked to write."""

    def __init__(self, model: Engine, entered: Counter[str]) -> None:
        self.model, self.entered = model, entered

    def evaluation_mode(self) -> AbstractContextManager[Transformer]:
        self.entered["answers"] += 1
        return self.model.evaluation_mode()


def context(
    corpus: Path, sequence: int = 128, micro_batch: int = 2, proceed: Callable[[], bool] = lambda: True
) -> TaskContext:
    """Of the model that `engine` gives."""
    model = recipe_of().model
    tokenizer = Tokenizer.load(corpus / "tokenizer")
    return TaskContext(
        corpus=Corpus.open(corpus),
        start=tokenizer.end_id,
        tokenizer=tokenizer,
        sequence=sequence,
        micro_batch=micro_batch,
        seed=0,
        model=model,
        proceed=proceed,
    )
