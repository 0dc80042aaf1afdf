"""`hornbook predict`: predict labels, tags, numbers or answers for lines of text."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from hornbook.cli.result import Result, Results
from hornbook.cli.shell import Device, Target, say
from hornbook.errors import UsageError
from hornbook.progress import Progress, progress_bar, without_bars

if TYPE_CHECKING:
    from hornbook.model.generate.predict import Query
    from hornbook.model.storage.load import Loaded

CHUNK = 256
"""Number of lines computed together; one if a person types them."""


def predict(
    target: Target,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Lines of text, or a .jsonl file; - is stdin.")] = Path(
        "-"
    ),
    *,
    objects: Annotated[
        bool, typer.Option("--objects", help="Read JSON objects, as from a .jsonl file (always so for questions).")
    ] = False,
    device: Device = "auto",
) -> Results:
    """Predict the label, the tags or the answer of each line with a fine-tuned model.

    A line is a text, or a JSON object with text (and text_pair), words, or question and context. A text longer than
    the model's positions is cut, and a warning says so; words and contexts are read whole, in overlapping windows.
    --json prints one object per line, with the probability of every label.
    """
    with progress_bar() as progress:
        progress("load the model", 0, None)
        loaded = _load(target, device)
    kind = loaded.config.head.kind
    objects = objects or kind == "span" or file.suffix == ".jsonl"
    typed, truncated = str(file) == "-" and sys.stdin.isatty(), 0
    with progress_bar(shown=not typed) as progress:
        for given, found in _found(
            loaded, file, _queries(file, kind, objects=objects), 1 if typed else CHUNK, progress
        ):
            truncated += found.get("truncated", False)
            yield Result(given | found, SHOWN[kind](found))
    if truncated:
        say(
            f"[yellow]warning[/] {truncated:,} texts are longer than the model's "
            f"{loaded.config.position.length:,} positions: the rest of each was not read"
        )


def _load(target: Path, device: str) -> "Loaded":
    """A model with a head for labels and a tokenizer. Raises UsageError for any other."""
    from hornbook.model.config.head_config import LabelHeadConfig
    from hornbook.model.storage.load import load_model
    from hornbook.parallel.device import choose_device
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    loaded = load_model(checkpoint_path(target), device=choose_device(device, option="device"))
    if not isinstance(loaded.config.head, LabelHeadConfig):
        kind = loaded.config.head.kind
        does = "predicts tokens, not labels: use `hornbook generate`, or"
        if kind == "replaced":
            does = "tells replaced tokens, not labels:"
        raise UsageError(
            f"{loaded.folder}: its head {kind!r} {does} fine-tune it with `hornbook train --from` and another "
            "model.head.kind"
        )
    loaded.require_tokenizer()
    return loaded


def _found(
    loaded: "Loaded", file: Path, queries: "Iterator[Line]", size: int, progress: Progress
) -> "Iterator[tuple[dict[str, Any], dict[str, Any]]]":
    """(object of the line, prediction) of each line; `size` lines are computed together."""
    from hornbook.model.generate.predict import predict as ask

    done, total = 0, _count(file)
    progress("read the lines", done, total)
    while chunk := list(islice(queries, size)):
        found = list(ask(loaded, [query for _, query in chunk]))
        with without_bars() if sys.stdout.isatty() else nullcontext():  # the bar and the answers share the terminal
            yield from zip((given for given, _ in chunk), found, strict=True)
        done += len(chunk)
        progress("read the lines", done, total)


def _count(file: Path) -> int | None:
    """Number of lines in a file; None for stdin and for a file that cannot be read (reading reports that)."""
    if not file.is_file():
        return None
    with suppress(OSError), file.open("rb") as lines:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: lines.read(1 << 20), b""))
    return None


Line = tuple[dict[str, Any], "Query"]
"""The object of a line, which `--json` repeats, and the query made of it."""


# ---- Lines


def _queries(file: Path, kind: str, *, objects: bool) -> Iterator[Line]:
    """Parse each line. Raises UsageError, naming the line, if it is empty or lacks a field that the head needs."""
    from hornbook.model.generate.predict import Query

    name, number = "stdin" if str(file) == "-" else str(file), 0
    with _open(file) as lines:
        for number, raw in enumerate(lines, start=1):
            where = f"{name}, line {number}"
            try:
                line = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UsageError(f"{where} is not UTF-8 text ({error})") from error
            if not line.strip():
                raise UsageError(f"{where} is empty: there is nothing to predict")
            yield _from_object(where, line, kind) if objects else ({"text": line}, Query(line))
    if number == 0:
        raise UsageError(f"{name} is empty: give it lines of text")


def _open(file: Path) -> BinaryIO:
    if str(file) == "-":
        return sys.stdin.buffer if isinstance(sys.stdin, io.TextIOWrapper) else io.BytesIO(sys.stdin.read().encode())
    try:
        return file.open("rb")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def _from_object(where: str, line: str, kind: str) -> Line:
    from hornbook.model.generate.predict import Query

    try:
        given = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where} is not JSON ({error}); lines of text need a file that is not .jsonl") from error
    if not isinstance(given, dict):
        raise UsageError(f"{where} is JSON, but not an object: {NEEDED[kind]}")
    if kind == "span":
        return given, Query(_text(where, given, "context", kind), _text(where, given, "question", kind))
    if kind == "token_classification" and "words" in given:
        words = given["words"]
        if not (isinstance(words, list) and words and all(isinstance(each, str) and each.strip() for each in words)):
            raise UsageError(f"{where}: words is {words!r}: write a list of words")
        return given, Query("", words=words)
    pair = _text(where, given, "text_pair", kind) if "text_pair" in given else None
    if kind == "token_classification" and pair is not None:
        raise UsageError(f"{where}: a tagger takes one text: leave out text_pair")
    return given, Query(_text(where, given, "text", kind), pair)


NEEDED = {
    "classification": 'it needs {"text": "..."}, and "text_pair" where two texts are judged together',
    "regression": 'it needs {"text": "..."}, and "text_pair" where two texts are judged together',
    "token_classification": 'it needs {"text": "..."} or {"words": ["...", "..."]}',
    "span": 'it needs {"question": "...", "context": "..."}',
}
"""Kind of head -> the fields that an object needs."""


def _text(where: str, given: dict[str, Any], key: str, kind: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        found = f"{key} is {value!r}" if key in given else f"there is no {key} (keys: {', '.join(given) or 'none'})"
        raise UsageError(f"{where}: {found}: {NEEDED[kind]}")
    return value


# ---- Answers for people


def _show_label(found: dict[str, Any]) -> str:
    if "label" in found:
        return f"{found['label']}\t{found['probability']:.4f}"
    return "\t".join(f"{label} {found['probabilities'][label]:.4f}" for label in found["labels"]) or "-"


def _show_tags(found: dict[str, Any]) -> str:
    return " ".join(f"{word}/{tag or '-'}" for word, tag in zip(found["words"], found["tags"], strict=True))


def _show_answer(found: dict[str, Any]) -> str:
    return f"{'(no answer)' if found['answer'] is None else found['answer']}\t{found['probability']:.4f}"


SHOWN = {
    "classification": _show_label,
    "regression": lambda found: "\t".join(f"{value:.6g}" for value in found["values"]),
    "token_classification": _show_tags,
    "span": _show_answer,
}
"""Kind of head -> function that writes a prediction as one line."""
