"""Tasks scored by what a model writes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hornbook.errors import UsageError
from hornbook.evals import written
from hornbook.evals.config import GenerationFile, OwnTask, WrittenFile
from hornbook.evals.items import ItemScores, digest_of
from hornbook.evals.metrics import answer_scores
from hornbook.evals.task import Model, TaskContext
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.forward_context import Memory
from hornbook.model.generate.beam import beam_search
from hornbook.model.generate.generate import generate, next_logits
from hornbook.model.transformer import Source, Transformer
from hornbook.parallel.world import DATA, TOGETHER, World
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
        """`exact`, and `f1` of words, both as SQuAD compares answers where `normalize` says so."""
        config, found = self.config, np.full((len(self.items), 2), np.nan)
        for number, text in enumerate(write_all(model, world, self.items, self.context, config)):
            answers = self.items[number].answers
            exact, f1 = answer_scores(text, answers)
            found[number] = (exact if config.normalize else float(text.strip() in map(str.strip, answers))), f1
        values = {"exact": found[:, 0], "f1": found[:, 1]}
        return ItemScores(values, digest_of(config.max_tokens, *self.items), _cut(self.items))


@dataclass(frozen=True)
class WrittenTask(_Asked):
    """How close translations or summaries of the model come to those of the file."""

    config: WrittenFile

    def score(self, model: Model, world: World) -> ItemScores:
        """The figures of `hornbook.evals.written`."""
        config = self.config
        beams = config.beams, config.length_penalty
        found = [text.strip() for text in write_all(model, world, self.items, self.context, config, beams)]
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


def write_all(
    model: Model,
    world: World,
    items: Sequence[Question],
    context: TaskContext,
    config: GenerationFile | WrittenFile,
    beams: tuple[int, float] = (1, 1.0),
) -> list[str]:
    """What `write` gives for each question, on every rank; nothing for those after `context.proceed` ended it.

    Data ranks take turns. All make as many calls: one that has no question left answers the last one, uncounted.
    """
    own: list[str] = []
    for first in range(0, len(items), world.data_size):
        if not context.proceed():
            break
        item = items[min(first + world.data_rank, len(items) - 1)]
        own.append(write(model, world, item.tokens, context, config.max_tokens, config.stop, beams))
    turns = zip(*world.all_gather_values(own, DATA), strict=True)
    return [text for turn in turns for text in turn][: len(items)]


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

    beams: how many texts beam search grows, and its length penalty; one: the likeliest token each time. All ranks call
    it; data ranks may have tokens of their own.
    """
    tokenizer = context.tokenizer
    with model.evaluation_mode() as transformer:
        memory, begin, ends = None, list(tokens), (tokenizer.end_id, tokenizer.delimiter_id)
        if transformer.encoder is not None:
            device = next(transformer.parameters()).device
            memory = transformer.encode(Source(torch.tensor([begin], device=device)))
            begin, ends = [context.start], (tokenizer.end_id,)
        with _in_step(transformer, world, begin[:1], memory):
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
                    agree=partial(world.broadcast_text, axes=TOGETHER),
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
                    agree=partial(world.broadcast, axes=TOGETHER),
                    memory=memory,
                )
            # an answer may start with the delimiter, as documents do
            return until((token for token in ids if token != tokenizer.delimiter_id), tokenizer, stop)


@contextmanager
def _in_step(model: Transformer, world: World, begin: Sequence[int], memory: Memory | None) -> Iterator[None]:
    """Let data ranks that hold the model between them make as many forward passes: each pass needs them all.

    Each is announced. A rank that has its answer computes what follows `begin` once more for every pass of another.
    """
    if world.axis_size(["shard", "expert"]) == 1:
        yield
        return

    def announce(*_: object) -> None:
        world.all_reduce_max([1])

    # before the hook that gathers parameters
    hook = model.register_forward_pre_hook(announce, prepend=True)
    try:
        yield
    finally:
        hook.remove()
    while world.all_reduce_max([0])[0]:
        next_logits(model, begin, KVCache(), memory)


def until(ids: Iterable[int], tokenizer: Tokenizer, stop: Sequence[str]) -> str:
    """Text of the ids as far as the first of `stop`; no more ids are taken once it is there."""
    taken: list[int] = []
    text = ""
    for token in ids:
        taken.append(token)
        text = tokenizer.decode(taken)
        if ends := [at for at in (text.find(each) for each in filter(None, stop)) if at >= 0]:
            return text[: min(ends)]
    return text
