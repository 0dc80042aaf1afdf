"""Parsing untrusted JSON: any fault is one error, and parsing takes linear time.

A small file with a schema is read as a record: a pydantic model says what must be in it.

The standard library accepts NaN and Infinity, turns 1e999 into Infinity, keeps the last of repeated keys, and raises
RecursionError for deeply nested arrays.
"""

import json
import math
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hornbook.errors import IntegrityError

Size = Annotated[int, Field(ge=0, lt=2**63)]
"""A count, or a number of bytes."""
Kind = TypeVar("Kind", bound="FileRecord")


class InvalidJson(ValueError):
    """The text is not JSON, or is ambiguous."""


class DuplicateKey(InvalidJson):
    """An object names a key twice. The text of the error is the key."""


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """`object_pairs_hook` of the json module: DuplicateKey where a key occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise DuplicateKey(name)
            seen.add(name)
    return found


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON text (bytes are UTF-8).

    Raises InvalidJson: no JSON, a key twice in an object, nested too deeply, a number that is not finite.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=_refuse, parse_float=_finite)
    except DuplicateKey as error:
        raise InvalidJson(f"the key {str(error)[:60]!a} occurs twice") from None
    except InvalidJson:
        raise
    except RecursionError:
        raise InvalidJson("nested too deep") from None
    except ValueError as error:  # of the codec, of the json module, of numbers with thousands of digits
        raise InvalidJson(str(error)[:200].encode("ascii", "backslashreplace").decode()) from error


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidJson(f"the number {text[:20]} is too large")
    return value


def _refuse(name: str) -> NoReturn:
    raise InvalidJson(f"{name} is no number in JSON")


class FileRecord(BaseModel):
    """Keys that a file must have. Types are exact (no text for a number); other keys are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def read_record(path: Path, kind: type[Kind], remedy: str) -> Kind:
    """The record that a JSON file holds.

    Raises IntegrityError naming the file, the key and the remedy; OSError where the file cannot be read.
    """
    try:
        return as_record(parse_json(path.read_bytes()), path, kind, remedy)
    except InvalidJson as error:
        raise IntegrityError(f"{path} is damaged ({error}): {remedy}") from error


def as_record(value: Any, path: Path, kind: type[Kind], remedy: str) -> Kind:
    """A value that was read from `path` as a record. Raises IntegrityError as `read_record` does."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise IntegrityError(f"{path} is damaged ({first_problem(error)}): {remedy}") from error


def first_problem(error: ValidationError) -> str:
    """The first fault: its key, what was expected and what was found."""
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part)[:60] for part in first["loc"])
    found = ascii(first["input"])[:60]
    words = f"{where}: {first['msg']}" if where else first["msg"]
    return words if first["type"] == "missing" else f"{words}, found {found}"
