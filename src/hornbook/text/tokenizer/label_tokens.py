"""From labelled texts to labelled tokens, which the shards of a labelled set hold.

Texts become tokens by `hornbook.text.tokenizer.prompt_encoding`, as they do for predictions. A label of a whole
text stands at the document's first token, whichever token will carry it in training.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from hornbook.text.config.labels import ClassLabels, LabelsConfig, TagLabels, has_answers, outputs_of
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.tokenizer.prompt_encoding import encode_question, encode_text, encode_words
from hornbook.text.tokenizer.tokenizer import Tokenizer

START, END, CHOOSABLE = 1, 2, 4
"""Bits of a token's label where answers are spans: an answer starts here, ends here, or might."""


@dataclass(frozen=True, slots=True)
class LabelledTokens:
    """A document as stored."""

    tokens: Sequence[int] | np.ndarray
    labels: Float32[np.ndarray, "tokens outputs"] | None = None
    facts: tuple[Any, ...] = ()
    """More columns about it."""


def label_tokens(tokenizer: Tokenizer, config: LabelsConfig, text: str, labels: Labelling) -> LabelledTokens:
    """Tokens of a labelled text, a label or NaN for each, and further columns of the document."""
    return _KINDS[config.kind](tokenizer, config, text, labels)


def _unlabelled(tokens: list[int], outputs: int = 1) -> Float32[np.ndarray, "tokens outputs"]:
    return np.full((len(tokens), outputs), math.nan, np.float32)


def _whole(tokenizer: Tokenizer, config: LabelsConfig, text: str, labels: Labelling) -> LabelledTokens:
    first, *second = (text[start:end] for start, end in labels.parts)
    tokens = encode_text(tokenizer, first, second[0] if second else None).tokens
    values = _unlabelled(tokens, outputs_of(config))
    values[0] = _values(config, labels)
    facts = ()
    if has_answers(config):
        ((start, end, _),) = labels.spans
        facts = (text[start:end], labels.answers)
    return LabelledTokens(tokens, values, facts)


def _values(config: LabelsConfig, labels: Labelling) -> list[float]:
    """The numbers of a text's labels, which may be given by name."""
    names = [value for value in labels.values if isinstance(value, str)]
    if isinstance(config, ClassLabels) and config.multiple and len(names) == len(labels.values):
        return [float(name in names) for name in config.labels]
    return [_number(config, value) for value in labels.values]


def _number(config: LabelsConfig, value: float | str) -> float:
    if not isinstance(value, str):
        return value
    assert isinstance(config, ClassLabels | TagLabels)
    return float(config.labels.index(value))


def _words(tokenizer: Tokenizer, config: LabelsConfig, text: str, labels: Labelling) -> LabelledTokens:
    (window,) = encode_words(tokenizer, [text[start:end] for start, end, _ in labels.spans])
    values = _unlabelled(window.tokens)
    for word, position in window.positions.items():
        values[position] = _number(config, labels.spans[word][2])
    return LabelledTokens(window.tokens, values)


def _question(tokenizer: Tokenizer, config: LabelsConfig, text: str, labels: Labelling) -> LabelledTokens:
    """Choosable are the context's tokens, and the first of all, which marks a question without an answer."""
    del config
    question, context = (text[start:end] for start, end in labels.parts)
    (window,) = encode_question(tokenizer, question, context)
    first = labels.parts[1][0]
    marks = np.array([0 if span is None else CHOOSABLE for span in window.spans])
    marks[0] = CHOOSABLE
    positions = [(start - first, end - first) for start, end, _ in labels.spans]
    touched = [
        number
        for start, end in positions
        for number, span in enumerate(window.spans)
        if span and span[0] < end and start < span[1]
    ] or [0]
    marks[touched[0]] |= START
    marks[touched[-1]] |= END
    return LabelledTokens(window.tokens, marks[:, None].astype(np.float32), (context, labels.answers))


def _prompted(tokenizer: Tokenizer, config: LabelsConfig, text: str, labels: Labelling) -> LabelledTokens:
    """The prompt, then its answer; tokens that the model is to write, the end token too, are labelled 1."""
    del config
    prompt, answer = (tokenizer.encode(text[start:end]) for start, end in labels.parts)
    last = [] if tokenizer.end_id == tokenizer.delimiter_id else [tokenizer.end_id]
    tokens = [tokenizer.delimiter_id, *prompt, *answer, *last]
    values = _unlabelled(tokens)
    values[1 + len(prompt) :] = 1.0
    return LabelledTokens(tokens, values)


_KINDS: dict[str, Callable[[Tokenizer, LabelsConfig, str, Labelling], LabelledTokens]] = {
    "classification": _whole,
    "regression": _whole,
    "token_classification": _words,
    "span": _question,
    "answer": _prompted,
}
