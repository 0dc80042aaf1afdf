"""From a row of a labelled set to a text and its labels; an unfit row has a reason."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hornbook.errors import UsageError
from hornbook.text.config.benchmarks import benchmarks
from hornbook.text.config.labels import (
    CANDIDATES,
    MOST_NAMES,
    AnswerLabels,
    ChatLabels,
    ClassLabels,
    Dialogue,
    LabelsConfig,
    NumberLabels,
    SpanLabels,
    TagLabels,
)
from hornbook.text.ingest.charsets import UnfitRow, check_text
from hornbook.text.ingest.fields import lookup
from hornbook.text.ingest.labels.conversations import conversation_row, preference_row, rated_row
from hornbook.text.ingest.labels.labelling import Labelling, Span, joined_parts
from hornbook.text.ingest.labels.superglue import candidates, marked_pronoun

Row = Mapping[str, Any]
_SHOWN = 60
_LONGEST_NAME = 200


def label_row(config: LabelsConfig, row: Row) -> tuple[str, Labelling]:
    """The text of a row and its labels. Raises UnfitRow."""
    return _checked(*_KINDS[config.kind](config, row))


def label_rows(config: LabelsConfig, row: Row, name: str, origin: str) -> list[tuple[str, str, Labelling]]:
    """(name, text, labels) of what a row named `name` holds: itself, or candidates of questions. Raises UnfitRow."""
    if not isinstance(config, ClassLabels) or config.layout not in CANDIDATES:
        return [(name, *label_row(config, row))]
    try:
        rows = candidates(config.layout, row, origin)
    except UnfitRow as error:
        raise UnfitRow(f"not {config.layout}'s layout: {error}") from None
    return [(each, *_checked(text, labels)) for each, text, labels in rows]


def with_names(config: LabelsConfig, counts: Mapping[str, int]) -> LabelsConfig:
    """The configuration with its list of labels: its own, else the names that rows have, sorted.

    Numbers are sorted as numbers. Raises UsageError where there are too many for labels.
    """
    if not isinstance(config, ClassLabels | TagLabels) or config.labels:
        return config
    if len(counts) > MOST_NAMES:
        field = config.label if isinstance(config, ClassLabels) else config.tags
        raise UsageError(
            f"{field!r} holds {len(counts):,} different labels, and {MOST_NAMES:,} are allowed: name another column "
            '(text.labels), or take text.labels.kind "regression" for numbers'
        )
    return config.model_copy(update={"labels": sorted(counts, key=(int if all(map(_is_number, counts)) else str))})


def names_of(config: LabelsConfig, labels: Labelling) -> list[str]:
    """Names of the labels of a row, one for each text or word, with `multiple` any number; of other kinds none."""
    if not isinstance(config, ClassLabels | TagLabels):
        return []
    values = [value for _, _, value in labels.spans] if isinstance(config, TagLabels) else labels.values
    if isinstance(config, ClassLabels) and config.multiple and config.labels:
        return [name for name, value in zip(config.labels, values, strict=True) if value]
    return [value if isinstance(value, str) else config.labels[int(value)] for value in values]


def _checked(text: str, labels: Labelling) -> tuple[str, Labelling]:
    names = (value for value in (*labels.values, *(value for _, _, value in labels.spans)) if isinstance(value, str))
    check_text("".join([text, *labels.answers, *names]))
    return text, labels


def fields_of(config: LabelsConfig) -> dict[str, str]:
    """Setting -> field of a row that it names; all are needed. None of layouts that have fields of their own."""
    if isinstance(config, Dialogue) or getattr(config, "layout", "rows") != "rows":
        return {}
    others = {"kind", "labels", "template", "layout"}
    names = {key: value for key, value in config.model_dump(exclude=others).items() if value}
    values = names.pop("values", [])
    numbered = {f"values.{number}": value for number, value in enumerate(values)}
    return {key: name for key, name in names.items() if isinstance(name, str)} | numbered


def columns_of(config: LabelsConfig | None, form: str) -> Sequence[str]:
    """Columns of published files of this format that have no header; empty where they have one."""
    layout = getattr(config, "layout", "rows")
    return benchmarks()[layout].columns if form == "tsv" and layout in benchmarks() else ()


def names_fields(config: LabelsConfig | None, cells: Sequence[str]) -> bool:
    """Whether the first cells of a file are a header all the same: the names of the layout's fields are among them."""
    known = benchmarks().get(getattr(config, "layout", "rows"))
    return known is not None and any(set(names) <= {*cells} for names in known.fields)


def _get(row: Row, name: str, what: str) -> Any:
    if name in row:
        return row[name]
    if (found := lookup(row, name)) is None:
        raise UnfitRow(f"missing {what}: no key {name!r} (keys: {_short(', '.join(map(str, row)))})")
    return found


def _text(row: Row, name: str, what: str = "text") -> str:
    value = _get(row, name, what)
    if not isinstance(value, str):
        raise UnfitRow(f"{what} is not a string: {name!r} is {_short(value)}")
    return value


def _texts(config: ClassLabels | NumberLabels, row: Row, names: Sequence[str]) -> tuple[str, tuple[Span, ...]]:
    if config.layout == "wic":
        return joined_parts(f"{_text(row, 'word')}: {_text(row, 'sentence1')}", _text(row, "sentence2"))
    if config.layout == "wsc":
        return joined_parts(*marked_pronoun(row))
    return joined_parts(*(_text(row, name) for name in names))


def _names(config: ClassLabels | NumberLabels, row: Row) -> tuple[Sequence[str], Sequence[str]]:
    """Names of the texts, and of the label or the numbers. Raises UnfitRow where they are not those of the layout."""
    if config.layout == "rows":
        texts = [config.text, *([config.pair] if config.pair is not None else [])]
        return texts, [config.label] if isinstance(config, ClassLabels) else config.values
    if not (known := benchmarks()[config.layout].fields):
        return [], ["label"]
    if found := next((names for names in known if all(name in row for name in names)), None):
        return found[:-1], found[-1:]
    needed = " or ".join(", ".join(names) for names in known)
    raise UnfitRow(
        f"not {config.layout}'s layout: it has {needed}, and the keys are {_short(', '.join(map(str, row)))}"
    )


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return ascii(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def _is_number(label: str) -> bool:
    return label.isascii() and label.removeprefix("-").isdecimal()


def _label(labels: Sequence[str], value: Any) -> float | str:
    """The number of a label in the list or, where there is no list, its name."""
    if isinstance(value, float) and value.is_integer():  # columns of numbers with gaps are stored so
        value = int(value)
    return float(_number_of(labels, value)) if labels else _name_of(value)


def _name_of(value: Any) -> str:
    """The name of a label without a list: a string unchanged, an integer or boolean as in JSON."""
    if isinstance(value, float) and not math.isnan(value):
        raise UnfitRow(f'label is no name: {value}; text.labels.kind "regression" learns numbers')
    if value is None or isinstance(value, float) or (isinstance(value, str) and not value.strip()):
        raise UnfitRow("no label: it is empty")
    if not isinstance(value, str | int):
        raise UnfitRow(f"label is no name: {_short(value)}")
    name = str(value).lower() if isinstance(value, bool) else str(value)
    if len(name) > _LONGEST_NAME:
        raise UnfitRow(f"label is no name: {_short(name)} is longer than {_LONGEST_NAME} characters")
    return name


def _number_of(labels: Sequence[str], value: Any) -> int:
    """The number of a label that is given by its name or its number. Booleans are 0 and 1 (BoolQ).

    Where every name is a number (stars from 1 to 5), a number is a name.
    """
    numbers = all(map(_is_number, labels))
    given = str(value) if numbers and type(value) is int else value
    if isinstance(given, str):
        if given in labels:
            return labels.index(given)
        given = int(given) if not numbers and given.isascii() and given.isdecimal() else given
    if isinstance(given, int) and 0 <= given < len(labels):
        return int(given)
    known = ", ".join(labels[:8]) + (", ..." if len(labels) > 8 else "")
    known += "" if numbers else " (or their numbers from 0)"
    raise UnfitRow(f"unknown label: {_short(value)}; text.labels.labels are {known}")


def _class_row(config: ClassLabels, row: Row) -> tuple[str, Labelling]:
    texts, (name,) = _names(config, row)
    text, parts = _texts(config, row, texts)
    label = _get(row, name, "label")
    if not config.multiple:
        return text, Labelling(parts, values=(_label(config.labels, label),))
    if not isinstance(label, list | tuple):
        raise UnfitRow(f"labels are no list: {config.label!r} is {_short(label)}, and text.labels.multiple is set")
    given = {_label(config.labels, each) for each in label}
    if not config.labels:
        return text, Labelling(parts, values=tuple(sorted(map(str, given))))
    return text, Labelling(parts, values=tuple(float(number in given) for number in range(len(config.labels))))


def _number_row(config: NumberLabels, row: Row) -> tuple[str, Labelling]:
    texts, names = _names(config, row)
    text, parts = _texts(config, row, texts)
    return text, Labelling(parts, values=tuple(_finite(row, name) for name in names))


def _finite(row: Row, name: str) -> float:
    value = _get(row, name, "number")
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UnfitRow(f"label is no number: {name!r} is {_short(value)}")
    return number


def _tag_row(config: TagLabels, row: Row) -> tuple[str, Labelling]:
    words, tags = _list(row, config.words, "words"), _list(row, config.tags, "tags")
    if len(words) != len(tags):
        raise UnfitRow(f"words and tags differ in number: {len(words)} words, {len(tags)} tags")
    if not all(isinstance(word, str) and word and not word.isspace() for word in words):
        raise UnfitRow(f"a word is empty or no string: {_short(words)}")
    text, words_at = joined_parts(*words)
    values = (_label(config.labels, tag) for tag in tags)
    spans = tuple((start, end, value) for (start, end), value in zip(words_at, values, strict=True))
    return text.replace("\n", " "), Labelling(((0, len(text)),), spans)


def _list(row: Row, name: str, what: str) -> Sequence[Any]:
    value = _get(row, name, what)
    if not isinstance(value, list | tuple):
        raise UnfitRow(f"{what} are no list: {name!r} is {_short(value)}")
    if not value:
        raise UnfitRow(f"no {what}: {name!r} is empty")
    return value


def _span_row(config: SpanLabels, row: Row) -> tuple[str, Labelling]:
    question, context = _text(row, config.question, "question"), _text(row, config.context, "context")
    text, parts = joined_parts(question, context)
    answers = _answers(_get(row, config.answers, "answers"))
    for answer, start in answers:
        actual = context[start : start + len(answer)]
        if start < 0 or actual != answer:
            raise UnfitRow(f"answer is not at its place: {start} holds {_short(actual)}, not {_short(answer)}")
    first = parts[1][0]
    located = [(first + start, first + start + len(answer), 0.0) for answer, start in answers if answer.strip()]
    return text, Labelling(parts, tuple(located[:1]), answers=tuple(answer for answer, _ in answers))


def _answers(value: Any) -> list[tuple[str, int]]:
    """(text, first character) of each answer."""
    if isinstance(value, Mapping) and isinstance(value.get("text"), list | tuple):
        starts = value.get("answer_start")
        if not isinstance(starts, list | tuple) or len(starts) != len(value["text"]):
            raise UnfitRow(f"answers and places differ in number: {_short(dict(value))}")
        pairs = list(zip(value["text"], starts, strict=True))
    elif isinstance(value, list | tuple) and all(isinstance(each, Mapping) for each in value):
        pairs = [(each.get("text"), each.get("answer_start")) for each in value]
    else:
        raise UnfitRow(f"answers have neither form: {_short(value)}")
    if not all(isinstance(text, str) and isinstance(start, int) for text, start in pairs):
        raise UnfitRow(f"answers need `text` and `answer_start`: {_short(value)}")
    return pairs


def _answer_row(config: AnswerLabels, row: Row) -> tuple[str, Labelling]:
    prompt, value = _text(row, config.prompt, "prompt"), _get(row, config.answer, "answer")
    given = value if isinstance(value, list | tuple) else [_text(row, config.answer, "answer")]
    if not all(isinstance(each, str) for each in given):
        raise UnfitRow(f"an answer is not a string: {config.answer!r} is {_short(value)}")
    answers = [each for each in given if each.strip()]
    if not answers:
        raise UnfitRow(f"no answer: {config.answer!r} is {_short(value)}")
    text, parts = joined_parts(config.template.replace("{prompt}", prompt), answers[0])
    return text, Labelling(parts, answers=tuple(answers) if len(answers) > 1 else ())


def _chat_row(config: ChatLabels, row: Row) -> tuple[str, Labelling]:
    return conversation_row(config.layout, row)


_KINDS: dict[str, Callable[[Any, Row], tuple[str, Labelling]]] = {
    "classification": _class_row,
    "regression": _number_row,
    "token_classification": _tag_row,
    "span": _span_row,
    "answer": _answer_row,
    "chat": _chat_row,
    "preference": lambda _, row: preference_row(row),
    "rated": lambda _, row: rated_row(row),
}
