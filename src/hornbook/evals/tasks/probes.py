"""Tasks that need no files: their items are made from the seed, the tokenizer and the validation text.

They show progress where published benchmarks still show chance: copying, words from context, facts read before, sums.
"""

import operator
import random
from collections.abc import Iterator

from hornbook.errors import UsageError
from hornbook.evals.config import Arithmetic, Cloze, Copy, OwnTask, Recall
from hornbook.evals.documents import held_out_texts, words_of
from hornbook.evals.likelihood import Request, encode_request
from hornbook.evals.task import TaskContext
from hornbook.evals.tasks.choices import Choice, ChoiceTask, Continuation, ContinuationTask, CopyTask

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
LEAST_WORDS = 6
"""Words before the one that is asked for, at least."""


def _draw(config: OwnTask, context: TaskContext) -> random.Random:
    return random.Random(f"{context.seed} {config.label}")


def copy(config: Copy, context: TaskContext) -> CopyTask:
    """Random tokens of the vocabulary, read twice."""
    if 2 * config.tokens > context.sequence:
        raise UsageError(
            f"eval.tasks, {config.label}: twice {config.tokens:,} tokens, and the model reads {context.sequence:,} "
            f"(train.sequence): set tokens to {context.sequence // 2:,} or less"
        )
    draw, tokenizer = _draw(config, context), context.tokenizer
    usable = tokenizer.token_bytes().nonzero()[0].tolist()
    halves = [draw.choices(usable, k=config.tokens) for _ in range(config.items)]
    return CopyTask(config.label, halves, context, tokenizer.delimiter_id)


def arithmetic(config: Arithmetic, context: TaskContext) -> ContinuationTask:
    """`7+5=12`, after some sums with their results."""
    draw, items = _draw(config, context), []
    for number in range(config.items):
        sign = config.operations[number % len(config.operations)]
        *shots, (question, answer) = (_sum(draw, sign, config.digits) for _ in range(config.shots + 1))
        prompt = "".join(f"{before}{result}\n" for before, result in shots) + question
        where = f"eval.tasks, {config.label}, item {number + 1}"
        request = encode_request(context.tokenizer, prompt, answer, where)
        request = request.within(context.sequence, where, cut=False, remedy="lower shots or digits of the task")
        group = OPERATORS[sign].__name__ if len(config.operations) > 1 else ""
        items.append(Continuation(request, len(answer), question + answer, group))
    return ContinuationTask(config.label, items, context)


def _sum(draw: random.Random, sign: str, digits: int) -> tuple[str, str]:
    least = 10 ** (digits - 1) if digits > 1 else 0
    a, b = draw.randint(least, 10**digits - 1), draw.randint(least, 10**digits - 1)
    if sign == "-":
        a, b = max(a, b), min(a, b)
    return f"{a}{sign}{b}=", str(OPERATORS[sign](a, b))


def cloze(config: Cloze, context: TaskContext) -> ChoiceTask:
    """The next word of a held-out passage, beside words of other passages."""
    draw = _draw(config, context)
    passages = list(_passages(config, context, draw))
    words = sorted({word for _, word in passages})
    if len(words) < config.choices:
        raise UsageError(
            f"eval.tasks, {config.label}: the validation text has {len(words)} different words after {LEAST_WORDS} "
            f"others, and {config.choices} are needed: hold out more text, lower choices, or leave the task out"
        )
    items = []
    for number, (before, word) in enumerate(passages):
        where = f"eval.tasks, {config.label}, item {number + 1}"
        others = draw.sample([each for each in words if each != word], config.choices - 1)
        prompt = " ".join(before)
        requests = [
            encode_request(context.tokenizer, prompt, f" {each}", where).within(context.sequence, where, cut=True)
            for each in (word, *others)
        ]
        sizes = [len(each.encode()) + 1 for each in (word, *others)]
        items.append(Choice(requests, sizes, 0, f"{prompt} {word}"))
    return ChoiceTask(config.label, items, context)


def _passages(config: Cloze, context: TaskContext, draw: random.Random) -> Iterator[tuple[list[str], str]]:
    """(words before, the word) of as many passages as there are items, spread over the documents."""
    documents = sum(stream.documents for stream in context.corpus.validation.values())
    most, left = -(-config.items // max(documents, 1)), config.items
    for text in held_out_texts(context.corpus, context.tokenizer, draw):
        words = words_of(text)
        places = [at for at in range(LEAST_WORDS, len(words)) if words[at].isalpha() and len(words[at]) > 1]
        for at in draw.sample(places, min(most, left, len(places))):
            left -= 1
            yield words[max(at - config.words, 0) : at], words[at]
        if not left:
            return


def recall(config: Recall, context: TaskContext) -> ChoiceTask:
    """Which of some facts read before: `The code of key 3 is 4821.`, then held-out text, then the question."""
    draw, tokenizer, items = _draw(config, context), context.tokenizer, []
    filler = _filler(context, draw)
    for distance in config.distances or _distances(config, context):
        for number in range(config.items):
            where = f"eval.tasks, {config.label}, distance {distance:,}, item {number + 1}"
            names, codes = draw.sample(range(1, 100), config.facts), draw.sample(range(1000, 10_000), config.facts)
            facts = " ".join(f"The code of key {name} is {code}." for name, code in zip(names, codes, strict=True))
            right = draw.randrange(config.facts)
            question = f" The code of key {names[right]} is"
            begin, at = (
                [tokenizer.delimiter_id, *tokenizer.encode(facts)],
                draw.randrange(max(len(filler) - distance, 1)),
            )
            asked = [encode_request(tokenizer, question, f" {code}", where) for code in codes]
            requests = [
                Request([*begin, *filler[at : at + distance], *each.context[1:]], each.continuation) for each in asked
            ]
            _refuse_far(config, context, max(each.length for each in requests), distance)
            sizes = [len(f" {code}") for code in codes]
            items.append(Choice(requests, sizes, right, "", f"at_{distance}"))
    return ChoiceTask(config.label, items, context)


def _filler(context: TaskContext, draw: random.Random) -> list[int]:
    """Token ids of held-out text, as many as the longest row has."""
    tokens: list[int] = []
    for text in held_out_texts(context.corpus, context.tokenizer, draw):
        tokens += context.tokenizer.encode(f" {text}")
        if len(tokens) >= 4 * context.sequence:
            break
    while tokens and len(tokens) < context.sequence:
        tokens += tokens
    return tokens


def _distances(config: Recall, context: TaskContext) -> list[int]:
    """0, and powers of two from 16 on that leave room for facts and question."""
    longest = "The code of key 99 is 9999. " * (config.facts + 1)
    room = context.sequence - len(context.tokenizer.encode(longest)) - config.facts - 2
    if room < 0:
        _refuse_far(config, context, context.sequence - room, 0)
    return [0, *(2**k for k in range(4, max(room, 1).bit_length()) if 2**k <= room)]


def _refuse_far(config: Recall, context: TaskContext, length: int, distance: int) -> None:
    if length > context.sequence:
        raise UsageError(
            f"eval.tasks, {config.label}: {config.facts} facts, a question and a distance of {distance:,} are "
            f"{length:,} tokens, and the model reads {context.sequence:,} (train.sequence): lower facts or distances"
        )
