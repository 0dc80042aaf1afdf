"""Tasks whose items are rows of local files."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import xxhash

from hornbook.errors import UsageError
from hornbook.evals.config import (
    ContinuationFile,
    FileTask,
    GenerationFile,
    MinimalPairs,
    MultipleChoice,
    WrittenFile,
)
from hornbook.evals.likelihood import encode_choices, encode_request
from hornbook.evals.task import TaskContext
from hornbook.evals.tasks.choices import Choice, ChoiceTask, Continuation, ContinuationTask
from hornbook.evals.tasks.generation import GenerationTask, Question, WrittenTask, encode_asked
from hornbook.evals.written import check
from hornbook.text.config.labels import AnswerLabels
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, ReadOptions
from hornbook.text.ingest.labels.parallel import stamped_inputs
from hornbook.text.ingest.readers import read_file
from hornbook.text.ingest.test_sets import read_rows

_FIELD = re.compile(r"\{(\w+)\}")
Row = Mapping[str, Any]


def pairs(config: MinimalPairs, context: TaskContext) -> ChoiceTask:
    """The sentence of each pair that is likelier, of all its tokens (Warstadt et al. 2020)."""
    items = []
    for where, row in rows(config):
        texts = [_text(row, key, where) for key in (config.good, config.bad)]
        requests = [
            encode_request(context.tokenizer, "", text, where).within(context.sequence, where, cut=False)
            for text in texts
        ]
        items.append(Choice(requests, [len(text.encode()) for text in texts], 0, texts[0]))
    return ChoiceTask(config.label, items, context)


def choices(config: MultipleChoice, context: TaskContext) -> ChoiceTask:
    """The likeliest answer of each question."""
    items = []
    for where, row in rows(config):
        prompt, found = filled(config.prompt, row, where), row.get(config.choices)
        if not isinstance(found, list) or len(found) < 2 or not all(isinstance(each, str) for each in found):
            raise UsageError(
                f"{where}: {config.choices!r} must be a list of two texts or more: see `choices` of the task"
            )
        if blank := [number for number, each in enumerate(found, 1) if not each.strip()]:
            raise UsageError(f"{where}: choice {blank[0]} is empty: correct the row, or leave it out")
        answers = {f"{where}, choice {number}": config.before + each for number, each in enumerate(found, 1)}
        requests = [
            each.within(context.sequence, where, cut=config.long == "cut")
            for each in encode_choices(context.tokenizer, prompt, answers)
        ]
        right = _number(row.get(config.answer), found, f"{where}: {config.answer!r}")
        sizes = [requests[0].joined_bytes + len(each.encode()) for each in answers.values()]
        items.append(Choice(requests, sizes, right, f"{prompt}{config.before}{found[right]}"))
    return ChoiceTask(config.label, items, context)


def continuations(config: ContinuationFile, context: TaskContext) -> ContinuationTask:
    """What follows each prompt."""
    items = []
    for where, row in rows(config):
        prompt, follows = filled(config.prompt, row, where), filled(config.continuation, row, where)
        request = encode_request(context.tokenizer, prompt, follows, where)
        request = request.within(context.sequence, where, cut=config.long == "cut")
        items.append(Continuation(request, request.joined_bytes + len(follows.encode()), prompt + follows))
    return ContinuationTask(config.label, items, context)


def generations(config: GenerationFile, context: TaskContext) -> GenerationTask:
    """An answer to each prompt by greedy decoding."""
    items = []
    for where, row in rows(config):
        prompt, answers = filled(config.prompt, row, where), row.get(config.answer)
        answers = [answers] if isinstance(answers, str) else answers
        if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
            raise UsageError(f"{where}: {config.answer!r} must be a text, or a list of texts: see `answer` of the task")
        tokens, cut = encode_asked(config, context, prompt, config.max_tokens, where, cut=config.long == "cut")
        items.append(Question(tokens, answers, f"{prompt}{answers[0]}", cut))
    return GenerationTask(config.label, items, config, context)


def written(config: WrittenFile, context: TaskContext) -> WrittenTask:
    """A text to be made of each text, as in training."""
    check(config)
    items = []
    for document in islice(_labelled(config, context), config.items):
        assert document.labels is not None
        prompt, answer = (document.text[start:end] for start, end in document.labels.parts)
        tokens, cut = encode_asked(
            config, context, prompt, config.max_tokens, document.origin, cut=config.long == "cut"
        )
        items.append(Question(tokens, [*document.labels.answers] or [answer], document.text, cut))
    return WrittenTask(config.label, items, config, context)


def _labelled(config: WrittenFile, context: TaskContext) -> list[Document]:
    """The rows of a task's file, read as a labelled set is. Raises UsageError where one has no prompt and answer."""
    key = f"eval.tasks, {config.label}"
    labels = config.labels or context.corpus.labels
    labels = labels if isinstance(labels, AnswerLabels) else AnswerLabels()
    source = SourceConfig(paths=[config.path], layout=config.layout, columns=config.columns)
    digests, documents = list[str](), list[Document]()
    for file in stamped_inputs(key, source, labels):
        for row in read_file(file, ReadOptions.of(source, labels=labels), digests.append):
            if isinstance(row, Document):
                documents.append(row)
            elif row.damaged:
                raise UsageError(
                    f"{key}: {row.path}:{row.line}: {row.reason}: correct the file, or the task's labels: a score is "
                    "of whole files"
                )
    if len(documents) < 2:
        raise UsageError(f"{key}: {config.path} has {len(documents)} rows: a score needs two or more")
    whole = digests[0] if len(digests) == 1 else xxhash.xxh3_128_hexdigest("".join(digests).encode())
    _check_digest(config, whole)
    return documents


def rows(config: FileTask) -> Iterator[tuple[str, Row]]:
    """(FILE:LINE, row) of the first `items` rows of a task's file. Raises UsageError if it is not as stated."""
    key = f"eval.tasks, {config.label}"
    _check_digest(config, xxhash.xxh3_128_hexdigest(_content(config.path, key)))
    count = 0
    for where, row in read_rows(key, [config.path]):
        if not isinstance(row, dict):
            raise UsageError(
                f"{where}: a JSON object is needed, not {type(row).__name__}: give a .jsonl or .parquet file"
            )
        if count == config.items:
            return
        count += 1
        yield where, row
    if count < 2:
        raise UsageError(f"{key}: {config.path} has {count} rows: a score needs two or more")


def _check_digest(config: FileTask, found: str) -> None:
    if config.digest and config.digest != found:
        raise UsageError(
            f"eval.tasks, {config.label}: {config.path} was changed: its digest is {found}, and the recipe states "
            f'{config.digest}: restore the file, or state digest = "{found}" if it is meant: earlier scores are of '
            "other items"
        )


def _content(path: str, key: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(
            f"{key}: {path} cannot be read ({error.strerror}): restore the file, or correct the task's `path`"
        ) from error


def filled(template: str, row: Row, where: str) -> str:
    """The template with the texts and numbers of a row in place of `{name}`."""

    def value(match: re.Match[str]) -> str:
        found = row.get(match[1])
        if not isinstance(found, str | int | float):
            raise UsageError(
                f"{where}: no text or number {match[1]!r} (keys: {', '.join(row)[:100]}), and the task "
                f"asks for it in {template!r}"
            )
        return str(found)

    return _FIELD.sub(value, template)


def _text(row: Row, key: str, where: str) -> str:
    found = row.get(key)
    if not isinstance(found, str):
        raise UsageError(f"{where}: no text {key!r} (keys: {', '.join(row)[:100]}): name the keys in the task")
    return found


def _number(answer: Any, found: list[str], where: str) -> int:
    """Number of the right choice: an index from 0, a letter, or the choice itself."""
    if isinstance(answer, str):
        if answer in found:
            return found.index(answer)
        letter = ascii_uppercase.find(answer.upper()) if len(answer) == 1 else -1
        answer = int(answer) if answer.isdecimal() else answer if letter < 0 else letter
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(found):
        raise UsageError(
            f"{where} is {answer!r}: the right choice is its index from 0, its letter from A or its text, and there "
            f"are {len(found)}"
        )
    return answer
