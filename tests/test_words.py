"""Names in code that were given up in favour of the field's terms do not come back."""

import io
import token
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "hornbook"
RETIRED = tomllib.loads(Path(__file__).with_name("retired_words.toml").read_text(encoding="utf-8"))
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())


def names(path: Path) -> Iterator[tuple[str, int]]:
    """Every name in a file with its line, and the file's own."""
    yield path.stem, 1
    for each in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        if each.type == token.NAME:
            yield each.string, each.start[0]


def test_every_table_is_a_room() -> None:
    assert {*RETIRED} <= {*ROOMS, "everywhere"}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_no_retired_name(room: str) -> None:
    retired = RETIRED["everywhere"] | RETIRED.get(room, {})
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {name} is now {retired[name]}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        for name, line in names(path)
        if name in retired
    ]
    assert found == []
