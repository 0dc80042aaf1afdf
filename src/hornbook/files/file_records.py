"""Small JSON files with a schema: what they must say is a pydantic model, and what is wrong is one IntegrityError."""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hornbook.errors import IntegrityError
from hornbook.files.strict_json import InvalidJson, parse_json

Size = Annotated[int, Field(ge=0, lt=2**63)]
"""A count, or a number of bytes."""
Kind = TypeVar("Kind", bound="FileRecord")


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
