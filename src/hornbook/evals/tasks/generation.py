"""Tasks scored by what a model writes, by greedy decoding."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hornbook.evals.config import GenerationFile
from hornbook.evals.items import ItemScores, digest_of
from hornbook.evals.metrics import answer_scores
from hornbook.evals.task import Model, TaskContext
from hornbook.model.generate.generate import generate
from hornbook.parallel.world import World
from hornbook.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Question:
    """A prompt, and the answers that are right."""

    tokens: list[int]
    answers: Sequence[str]
    text: str
    cut: bool = False


@dataclass(frozen=True)
class GenerationTask:
    """Whether the model writes one of the right answers."""

    name: str
    items: Sequence[Question]
    config: GenerationFile
    context: TaskContext

    @property
    def texts(self) -> list[str]:
        """Text of each item."""
        return [item.text for item in self.items]

    def score(self, model: Model, world: World) -> ItemScores:
        """`exact`, and `f1` of words, both as SQuAD compares answers where `normalize` says so.

        All ranks write every answer: those that hold the model together must.
        """
        found = np.full((len(self.items), 2), np.nan)
        for number, item in enumerate(self.items):
            if not self.context.proceed():
                break
            text = greedy_text(model, world, item.tokens, self.config.max_tokens, self.config.stop, self.context)
            exact, f1 = answer_scores(text, item.answers)
            found[number] = (exact if self.config.normalize else float(text.strip() in item.answers)), f1
        cut = sum(item.cut for item in self.items)
        values = {"exact": found[:, 0], "f1": found[:, 1]}
        return ItemScores(values, digest_of(self.config.max_tokens, *self.items), {"cut": cut} if cut else {})


def greedy_text(
    model: Model, world: World, tokens: list[int], max_tokens: int, stop: Sequence[str], context: TaskContext
) -> str:
    """The likeliest continuation of `tokens` up to the end of the text, or to the first of the texts in `stop`."""
    tokenizer = context.tokenizer
    with model.evaluation_mode() as transformer:
        ids = generate(
            transformer,
            tokens,
            max_tokens=max_tokens,
            greedy=True,
            stop=(tokenizer.end_id, tokenizer.delimiter_id),
            vocab=tokenizer.vocab_size,
            length=context.sequence,
            agree=world.broadcast,
        )
        return until(ids, tokenizer, stop)


def until(ids: Iterable[int], tokenizer: Tokenizer, stop: Sequence[str]) -> str:
    """Text of the ids as far as the first of `stop`; no more ids are taken once it is there."""
    taken: list[int] = []
    text = ""
    for token in ids:
        taken.append(token)
        text = tokenizer.decode(taken)
        if ends := [at for at in (text.find(each) for each in stop) if at >= 0]:
            return text[: min(ends)]
    return text
