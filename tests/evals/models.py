"""Small models for tests of tasks, and what tasks are built from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hornbook.data.corpus import Corpus
from hornbook.evals.likelihood import Request, log_likelihoods
from hornbook.evals.task import TaskContext
from hornbook.model.build import build_model
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, distributed
from hornbook.settings.resolve import resolve
from hornbook.text.tokenizer.tokenizer import Tokenizer

REQUESTS = [
    Request([0, 5, 6], [7]),
    Request([0], [9, 8, 7, 3, 2]),
    Request([0, *range(1, 40)], [4, 4]),
    Request([0, 1], list(range(30))),
    Request([0, 3], [12]),
]
SETTINGS = ("model.layers=1", "model.width=16", "model.heads=2", "train.precision=fp32", "train.device=cpu")


def engine(seed: int = 0, vocab: int = 257, *words: str) -> Engine:
    """An untrained model whose logits differ enough to be told apart."""
    recipe = resolve(None, [*SETTINGS, *words], {}).recipe
    model = build_model(recipe.model, vocab, "cpu")
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return parallelize(model, ParallelConfig(), recipe.train)


def likelihoods(rank_info: RankInfo, corpus: str, parallel: dict[str, Any]) -> list[list[float]]:
    """What each rank finds of `REQUESTS`, by the model of `engine` divided over ranks."""
    settings = ParallelConfig.model_validate(parallel)
    words = [*SETTINGS, "model.layers=2", "train.threads=1"]
    recipe = resolve(None, words, {}).recipe
    with distributed(settings, recipe.train, rank_info) as world:
        divided = parallelize(build_model(recipe.model, 257, "meta"), settings, recipe.train, world)
        divided.load_stream((name, each.detach()) for name, each in engine(0, 257, *words).model.named_parameters())
        return log_likelihoods(divided, world, REQUESTS, context(Path(corpus), 64, 1)).tolist()


def context(
    corpus: Path, sequence: int = 128, micro_batch: int = 2, proceed: Callable[[], bool] = lambda: True
) -> TaskContext:
    """Of the model that `engine` gives."""
    model = resolve(None, list(SETTINGS), {}).recipe.model
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
