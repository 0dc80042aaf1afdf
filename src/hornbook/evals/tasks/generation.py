"""Tasks scored by what a model writes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hornbook.errors import UsageError
from hornbook.evals import written
from hornbook.evals.config import GenerationFile, OwnTask, WrittenFile
from hornbook.evals.items import ItemScores, digest_of
from hornbook.evals.metrics import answer_scores
from hornbook.evals.task import Model, TaskContext
from hornbook.model.generate.beam import beam_search
from hornbook.model.generate.generate import generate
from hornbook.model.transformer import Source
from hornbook.parallel.world import World
from hornbook.text.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Question:
    """A prompt, and the answers that are right."""

    tokens: list[int]
    """What a decoder continues, or what an encoder reads."""
    answers: Sequence[str]
    text: str
    """The prompt with the first answer."""
    cut: bool = False


@dataclass(frozen=True)
class _Asked:
    """Questions of a file that the model answers in writing."""

    name: str
    items: Sequence[Question]
    config: GenerationFile | WrittenFile
    context: TaskContext

    @property
    def texts(self) -> list[list[str]]:
        """Texts of each item: the prompt with its first answer, and each further answer."""
        return [[item.text, *item.answers[1:]] for item in self.items]


@dataclass(frozen=True)
class GenerationTask(_Asked):
    """Whether the model writes one of the right answers."""

    config: GenerationFile

    def score(self, model: Model, world: World) -> ItemScores:
        """`exact`, and `f1` of words, both as SQuAD compares answers where `normalize` says so.

        All ranks write every answer: those that hold the model together must.
        """
        config, found = self.config, np.full((len(self.items), 2), np.nan)
        for number, item in enumerate(self.items):
            if not self.context.proceed():
                break
            text = write(model, world, item.tokens, self.context, config.max_tokens, config.stop)
            exact, f1 = answer_scores(text, item.answers)
            found[number] = (exact if config.normalize else float(text.strip() in map(str.strip, item.answers))), f1
        values = {"exact": found[:, 0], "f1": found[:, 1]}
        return ItemScores(values, digest_of(config.max_tokens, *self.items), _cut(self.items))


@dataclass(frozen=True)
class WrittenTask(_Asked):
    """How close translations or summaries of the model come to those of the file."""

    config: WrittenFile

    def score(self, model: Model, world: World) -> ItemScores:
        """The figures of `hornbook.evals.written`; all ranks write every answer, as in `GenerationTask`."""
        config, found = self.config, list[str]()
        for item in self.items:
            if not self.context.proceed():
                break
            beams = config.beams, config.length_penalty
            text = write(model, world, item.tokens, self.context, config.max_tokens, config.stop, beams)
            found.append(text.strip())
        right = [item.answers for item in self.items[: len(found)]]
        values, overall, signatures = written.scores(config, found, right)
        digest = digest_of(config.max_tokens, config.beams, config.length_penalty, config.stop, *self.items)
        return ItemScores(values, digest, _cut(self.items), overall=overall, signatures=signatures)


def _cut(items: Sequence[Question]) -> dict[str, int]:
    cut = sum(item.cut for item in items)
    return {"cut": cut} if cut else {}


def encode_asked(
    config: OwnTask, context: TaskContext, prompt: str, max_tokens: int, where: str, *, cut: bool
) -> tuple[list[int], bool]:
    """What the model reads of a prompt, as in training, and whether it is less than the whole, if that may be `cut`.

    A decoder reads the end of a long prompt, an encoder its beginning. Raises UsageError.
    """
    tokenizer, whole = context.tokenizer, context.model.kind == "decoder"
    ends = tokenizer.end_id != tokenizer.delimiter_id
    begin = [tokenizer.delimiter_id] if whole or ends else []
    tokens = [*begin, *tokenizer.encode(prompt)]
    room = context.sequence - (max_tokens if whole else 1)
    if room < 1 or max_tokens > context.sequence or (len(tokens) > room and not cut):
        remedy = f'lower max_tokens, or set long = "cut" in the task, which leaves out the {_LEFT_OUT[whole]} of such'
        raise UsageError(
            f"{where}: {len(tokens):,} tokens of prompt and {max_tokens:,} of the answer (max_tokens of eval.tasks, "
            f"{config.label}), and the model reads {context.sequence:,} (train.sequence): shorten the prompt, {remedy} "
            "prompts"
        )
    kept = tokens[-room:] if whole else [*tokens[:room], tokenizer.end_id]
    return kept, len(tokens) > room


_LEFT_OUT = {True: "beginnings", False: "ends"}


def write(
    model: Model,
    world: World,
    tokens: Sequence[int],
    context: TaskContext,
    max_tokens: int,
    stop: Sequence[str] = (),
    beams: tuple[int, float] = (1, 1.0),
) -> str:
    """What the model answers to the tokens of `encode_asked`, up to its end token or to the first text of `stop`.

    beams: how many texts beam search grows, and its length penalty; one: the likeliest token each time.
    """
    tokenizer = context.tokenizer
    with model.evaluation_mode() as transformer:
        memory, begin, ends = None, list(tokens), (tokenizer.end_id, tokenizer.delimiter_id)
        if transformer.encoder is not None:
            device = next(transformer.parameters()).device
            memory = transformer.encode(Source(torch.tensor([begin], device=device)))
            begin, ends = [context.start], (tokenizer.end_id,)
        if beams[0] > 1:
            best, *_ = beam_search(
                transformer,
                begin,
                beams=beams[0],
                length_penalty=beams[1],
                max_tokens=max_tokens,
                stop=ends,
                memory=memory,
                vocab=tokenizer.vocab_size,
                agree=world.broadcast_text,
            )
            ids: Iterable[int] = (token for token in best.tokens if token not in ends)
        else:
            ids = generate(
                transformer,
                begin,
                max_tokens=max_tokens,
                greedy=True,
                stop=ends,
                vocab=tokenizer.vocab_size,
                length=context.sequence,
                agree=world.broadcast,
                memory=memory,
            )
        # an answer may start with the delimiter, as documents do
        return until((token for token in ids if token != tokenizer.delimiter_id), tokenizer, stop)


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
