"""What a model with a head for labels says of texts: several in a batch, each as though it were alone.

A text is read as `hornbook.text.tokenizer.prompt_encoding` reads it; what is longer than the model's positions is cut
(labels of a text) or read in windows (words, answers).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hornbook.model.config.head_config import (
    ClassificationHead,
    LabelHeadConfig,
    RegressionHead,
    SpanHead,
    TokenClassificationHead,
)
from hornbook.model.heads.label_answers import best_span, entities, probabilities
from hornbook.model.storage.load import Loaded
from hornbook.text.tokenizer.prompt_encoding import Window, encode_question, encode_text, encode_words
from hornbook.text.tokenizer.tokenizer import Tokenizer

BATCH_TOKENS = 8192
"""Tokens of a batch, with padding, at most: enough to keep the cores busy, little beside the weights."""
Finding = dict[str, Any]
"""What is said of one text, as `--json` shows it."""


@dataclass(frozen=True, slots=True)
class Query:
    """What one line asks about."""

    text: str
    """The text, or the context that an answer is looked for in."""
    pair: str | None = None
    """A second text, or the question."""
    words: list[str] = field(default_factory=list)
    """Words to tag; by default the text's, between blanks."""


def predict(loaded: Loaded, queries: Sequence[Query]) -> Iterator[Finding]:
    """What the model says of each, in order. Raises UsageError where a question leaves its context no room."""
    head = loaded.config.head
    assert isinstance(head, LabelHeadConfig)
    tokenizer = loaded.require_tokenizer()
    if isinstance(head, SpanHead):
        yield from _answers(loaded, tokenizer, queries)
    elif isinstance(head, TokenClassificationHead):
        yield from _tags(loaded, tokenizer, head, queries)
    else:
        yield from _labels(loaded, tokenizer, head, queries)


# ---- Labels of texts


def _labels(
    loaded: Loaded, tokenizer: Tokenizer, head: ClassificationHead | RegressionHead, queries: Sequence[Query]
) -> Iterator[Finding]:
    longest = loaded.config.position.length
    asked = [encode_text(tokenizer, query.text, query.pair, longest) for query in queries]
    # A decoder's label sits on the last token of the text, not on an end token behind it.
    behind = 1 + (tokenizer.end_id != tokenizer.delimiter_id)
    for each, outputs in zip(asked, _outputs(loaded, [(each.tokens, each.types) for each in asked]), strict=True):
        token = 0 if loaded.config.kind == "encoder" else len(each.tokens) - behind
        found = _label(head, probabilities(head, outputs[token]).tolist())
        yield found | ({"truncated": True} if each.truncated else {})


def _label(head: ClassificationHead | RegressionHead, values: list[float]) -> Finding:
    if isinstance(head, RegressionHead):
        return {"values": values}
    by_label = dict(zip(head.labels, values, strict=True))
    if head.multiple:
        return {"labels": [label for label, value in by_label.items() if value >= 0.5], "probabilities": by_label}
    best = max(by_label, key=lambda label: by_label[label])
    return {"label": best, "probability": by_label[best], "probabilities": by_label}


# ---- Tags of words


def _tags(
    loaded: Loaded, tokenizer: Tokenizer, head: TokenClassificationHead, queries: Sequence[Query]
) -> Iterator[Finding]:
    longest = loaded.config.position.length
    texts = [query.words or query.text.split() for query in queries]
    windows = [list(encode_words(tokenizer, words, longest)) for words in texts]
    rows = [(window.tokens, [0] * len(window.tokens)) for each in windows for window in each]
    outputs = iter(_outputs(loaded, rows))
    for words, each in zip(texts, windows, strict=True):
        tags: list[str | None] = [None] * len(words)
        chances: list[float | None] = [None] * len(words)
        for window in each:
            found = probabilities(head, next(outputs))
            for word, token in window.positions.items():
                number = int(found[token].argmax())
                tags[word], chances[word] = head.labels[number], float(found[token, number])
        named = entities([tag or "" for tag in tags])
        yield {
            "words": words,
            "tags": tags,
            "probabilities": chances,
            "entities": [
                {"label": label, "text": " ".join(words[first:end]), "first": first, "end": end}
                for label, first, end in named
            ],
        }


# ---- Answers to questions


def _answers(loaded: Loaded, tokenizer: Tokenizer, queries: Sequence[Query]) -> Iterator[Finding]:
    longest = loaded.config.position.length
    asked = [list(encode_question(tokenizer, query.pair or "", query.text, longest)) for query in queries]
    outputs = iter(_outputs(loaded, [(window.tokens, window.types) for each in asked for window in each]))
    for query, windows in zip(queries, asked, strict=True):
        yield _answer(query.text, windows, [next(outputs) for _ in windows])


def _answer(context: str, windows: list[Window], outputs: list[Tensor]) -> Finding:
    """The best answer of all windows; none, if "it is not here", at the first token, scores higher in each of them."""
    none = min(float(each[0].sum()) for each in outputs)
    scores: list[Tensor] = []
    best = none
    span: tuple[int, int] | None = None
    for window, each in zip(windows, outputs, strict=True):
        choosable = torch.tensor([span is not None for span in window.spans])
        scores += [each[:1], each[choosable]]
        found = best_span(each, choosable)
        if found is not None and found.score > best:
            first, last = window.spans[found.first], window.spans[found.last]
            assert first is not None
            assert last is not None
            best, span = found.score, (first[0], last[1])  # the part of the context that its tokens are made of
    chance = float((best - torch.cat(scores).logsumexp(0).sum()).exp())  # of begin times end, over all that is open
    if span is None:
        return {"answer": None, "probability": chance}
    text = context[span[0] : span[1]]
    begin = span[0] + len(text) - len(text.lstrip())  # a piece may begin with the blank before its word
    text = text.strip()
    return {"answer": text, "probability": chance, "begin": begin, "end": begin + len(text)}


# ---- Batches


def _outputs(loaded: Loaded, rows: Sequence[tuple[list[int], list[int]]]) -> list[Tensor]:
    """Outputs [tokens, outputs] on the CPU of each row, given as tokens and types."""
    found: list[Tensor] = [torch.empty(0)] * len(rows)
    for numbers in _batches([len(tokens) for tokens, _ in rows]):
        outputs = _run(loaded, [rows[number] for number in numbers])
        for number, each in zip(numbers, outputs, strict=True):
            found[number] = each[: len(rows[number][0])]
    return found


def _batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of rows that go together: of about one length, so that little is padding."""
    batch: list[int] = []
    for number in sorted(range(len(sizes)), key=lambda number: sizes[number]):
        if batch and sizes[number] * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


@torch.no_grad()
def _run(loaded: Loaded, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    """Outputs [rows, longest, outputs]; padding is a document of its own, which no text sees."""
    model, longest = loaded.model, max(len(tokens) for tokens, _ in rows)
    device = next(model.parameters()).device
    padded = [[each + [0] * (longest - len(each)) for each in row] for row in rows]
    tokens, types = torch.tensor(padded, device=device).unbind(1)
    lengths = [tuple(size for size in (len(each), longest - len(each)) if size) for each, _ in rows]
    hidden, _ = model(tokens, None, lengths, types=types if loaded.config.embedding.types > 1 else None)
    assert model.head is not None
    return model.head.logits(hidden).cpu()
