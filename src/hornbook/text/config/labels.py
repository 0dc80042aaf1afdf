"""Configuration of labelled sets: the fields of a row with text, and those with its labels.

One data folder has labels of one kind. Kinds of labels have the names of the heads that learn them
(`model.head.kind`); `answer` is for language models.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from hornbook.settings.fields import Config
from hornbook.text.config.benchmarks import benchmarks


def _distinct(names: list[str]) -> list[str]:
    again = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if again is not None:
        raise ValueError(f"the label {again!r} is there twice")
    return names


Names = Annotated[list[str], AfterValidator(_distinct)]

MOST_NAMES = 10_000
"""Most names of labels in a data folder."""
CANDIDATES = ("copa", "multirc", "record")
"""Layouts whose rows are questions with candidates, each of which gives a pair, right (1) or wrong (0)."""


class ClassLabels(Config):
    """A text, or a pair of texts, and its label (GLUE, SuperGLUE)."""

    kind: Literal["classification"] = "classification"
    labels: Names = Field(default_factory=list)
    """Names of the labels, in the order of their numbers; by default those of the rows, sorted.

    With a list, rows may hold numbers from 0 instead, unless names are numbers.
    """
    multiple: bool = False
    """Rows hold a list of any number of labels."""
    layout: Literal[
        "rows", "cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli", "boolq", "cb", "copa", "multirc",
        "record", "wic", "wsc"
    ] = Field(default="rows", exclude_if=lambda layout: layout == "rows")  # fmt: skip
    """Fields and labels of a row: those below, or those of a task of GLUE or SuperGLUE, whose score `eval` tells."""
    text: str = "text"
    """Column or key of the text."""
    pair: str | None = None
    """Column or key of the second text, where there are two."""
    label: str = "label"
    """Column or key of the label."""

    @model_validator(mode="before")
    @classmethod
    def _name_labels(cls, given: Any) -> Any:
        known = benchmarks().get(str(given.get("layout"))) if isinstance(given, dict) else None
        return given if known is None or given.get("labels") else {**given, "labels": list(known.labels)}

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.layout == "rows":
            return self
        known = benchmarks()[self.layout].labels
        if len(self.labels) != len(known) or self.multiple:
            raise ValueError(f"layout {self.layout!r} has {len(known)} labels, in the order of {', '.join(known)}")
        if (self.text, self.pair, self.label) != ("text", None, "label"):
            raise ValueError(f"layout {self.layout!r} has fields of its own: leave out text, pair and label")
        return self


class NumberLabels(Config):
    """A text, or a pair of texts, and numbers (STS-B)."""

    kind: Literal["regression"] = "regression"
    layout: Literal["rows", "stsb"] = Field(default="rows", exclude_if=lambda layout: layout == "rows")
    """Fields of a row: those below, or those of STS-B in GLUE, whose score `eval` tells."""
    text: str = "text"
    """Column or key of the text."""
    pair: str | None = None
    """Column or key of the second text, where there are two."""
    values: list[str] = Field(default_factory=lambda: ["label"], min_length=1)
    """Columns or keys of the numbers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.layout != "rows" and (self.text, self.pair, self.values) != ("text", None, ["label"]):
            raise ValueError(f"layout {self.layout!r} has fields of its own: leave out text, pair and values")
        return self


class TagLabels(Config):
    """Words and a tag for each (named entities; also `.conll` files)."""

    kind: Literal["token_classification"] = "token_classification"
    labels: Names = Field(default_factory=list)
    """Names of the tags, in the order of their numbers; by default those of the rows, sorted.

    With a list, rows may hold numbers from 0 instead, unless names are numbers.
    """
    words: str = "tokens"
    """Column or key of the list of words."""
    tags: str = "tags"
    """Column or key of the list of tags."""


class SpanLabels(Config):
    """A question, a text, and where in the text the answer is (SQuAD; its nested `.json` files too)."""

    kind: Literal["span"] = "span"
    question: str = "question"
    """Column or key of the question."""
    context: str = "context"
    """Column or key of the text."""
    answers: str = "answers"
    """Column or key of the answers: lists `text` and `answer_start` (in characters), or a list of such objects.

    The first is learned, all are right; without any the question has no answer (SQuAD 2.0).
    """


class AnswerLabels(Config):
    """A prompt and its answer: instructions, translation, summaries. `a.b` is key b within a."""

    kind: Literal["answer"] = "answer"
    prompt: str = "prompt"
    """Column or key of the prompt."""
    answer: str = "answer"
    """Column or key of the answer, or of a list of right ones: the first is learned, all count in `eval.tasks`."""
    template: str = "{prompt}"
    """The model's input, with `{prompt}` for the prompt, for example "Translate to German: {prompt}"."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.template.count("{prompt}") != 1:
            raise ValueError("a template needs `{prompt}` exactly once")
        return self


class ChatLabels(Config):
    """Conversations of a user and an assistant, whose answers are learned; `text.chat_template` writes them."""

    kind: Literal["chat"] = "chat"
    layout: Literal["auto", "messages", "sharegpt", "alpaca", "completion"] = "auto"
    """Fields of a row: `messages`; ShareGPT's `conversations`; Alpaca's `instruction`, `input`, `output`; `prompt` and
    `completion`. By default told by the keys of each row.
    """


class PreferenceLabels(Config):
    """Prompts with a chosen and a rejected answer (keys `prompt`, `chosen`, `rejected`), as texts or as messages."""

    kind: Literal["preference"] = "preference"


class RatedLabels(Config):
    """Prompts with an answer and whether it is a good one (keys `prompt`, `completion`, `label`)."""

    kind: Literal["rated"] = "rated"


Dialogue = ChatLabels | PreferenceLabels | RatedLabels
"""Labels of sets that a chat template writes."""
AnyLabels = ClassLabels | NumberLabels | TagLabels | SpanLabels | AnswerLabels | Dialogue
LabelsConfig = Annotated[AnyLabels, Field(discriminator="kind")]


def has_answers(config: AnyLabels) -> bool:
    """Whether a document also stores the text with the answer or the candidate, and all right answers."""
    return isinstance(config, SpanLabels) or (isinstance(config, ClassLabels) and config.layout in CANDIDATES)


def is_paired(config: AnyLabels) -> bool:
    """Whether a row is two texts, of which the second has a token type of its own."""
    if isinstance(config, ClassLabels | NumberLabels):
        return config.pair is not None if config.layout == "rows" else benchmarks()[config.layout].is_paired
    return isinstance(config, SpanLabels)


def outputs_of(config: AnyLabels) -> int:
    """Numbers stored for each token."""
    if isinstance(config, NumberLabels):
        return len(config.values)
    return len(config.labels) if isinstance(config, ClassLabels) and config.multiple else 1
