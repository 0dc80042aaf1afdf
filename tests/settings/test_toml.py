import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.settings.toml import key_lines


def paths(node: Any, path: tuple[Any, ...] = ()) -> set[tuple[Any, ...]]:
    """All paths of a parsed document."""
    found = {path} if path else set()
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        found |= paths(value, (*path, key))
    return found


DOCUMENT = '''\
# a comment with [brackets] = and "quotes"
title = "a # no comment"   # a comment

[train]
tokens = "1M"
sequence=256 # sequence = 3
text = """
looks = "like a key"
[and.a.table]
ends with two quotes "" """
after = \'\'\'it's
= two lines\'\'\'
[ optim . schedule ]
kind = 'wsd'
"quoted.key" = 1
floor.a.b = 2
[data]
weights = { code = 0.3, "my docs" = { deep = 1 }, list = [ { x = 1 } ] }
stages = [
  # a comment, with a comma
  { from_tokens = 0, weights = { code = 1 } },

  { from_tokens = 5, weights = {} },
]
[[steps]]
kind = "first"
[steps.more]
x = 1
[[steps]]
kind = "second"
[[steps.inner]]
y = 1
[[steps.inner]]
y = 2
'''


def test_lines_of_every_kind_of_key() -> None:
    lines = key_lines(DOCUMENT)
    assert lines["title",] == 2
    assert lines["train", "tokens"] == 5
    assert lines["train", "sequence"] == 6
    assert lines["train", "text"] == 7
    assert lines["train", "after"] == 11
    assert lines["optim", "schedule"] == 13
    assert lines["optim", "schedule", "kind"] == 14
    assert lines["optim", "schedule", "quoted.key"] == 15
    assert lines["optim", "schedule", "floor", "a", "b"] == 16
    assert lines["data", "weights", "my docs", "deep"] == 18
    assert lines["data", "weights", "list", 0, "x"] == 18
    assert lines["data", "stages"] == 19
    assert lines["data", "stages", 0, "weights", "code"] == 21
    assert lines["data", "stages", 1, "from_tokens"] == 23
    assert lines["data", "stages", 1, "weights"] == 23
    assert lines["steps", 0, "kind"] == 26
    assert lines["steps", 0, "more", "x"] == 28
    assert lines["steps", 1, "kind"] == 30
    assert lines["steps", 1, "inner", 1, "y"] == 34


def test_it_knows_the_same_paths_as_the_parser() -> None:
    # A table's header on the way to another (`[optim.schedule]` makes `optim`) has no line of its own.
    missing = paths(tomllib.loads(DOCUMENT)) - set(key_lines(DOCUMENT))
    assert missing == {("optim",)}


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a = 1\r\nb = 2\r\n", ("b",), 2),
        ("a = 1", ("a",), 1),
        ("\n\n\na.b.c = 1", ("a", "b"), 4),
        ('a = """""\n""\n"""\nb = 1', ("b",), 4),
        ("a = '''x''''\nb = 1", ("b",), 2),
        (r'a = "\"" # "' + "\nb = 1", ("b",), 2),
        ("a = [[1, 2],\n[3]]\nb = 1", ("a", 1, 0), 2),
        ("a = 1979-05-27 07:32:00 # x\nb = 1", ("b",), 2),
        ("a = []\nb = {}\nc = [\n]\nd = 1", ("d",), 5),
    ],
)
def test_awkward_texts(text: str, path: tuple[Any, ...], line: int) -> None:
    tomllib.loads(text)
    assert key_lines(text)[path] == line


TEXT = st.text("ab \"'\\#=[]{},\n\t\x7f\u2603", max_size=8)
SCALARS = st.one_of(st.integers(), st.booleans(), TEXT, st.floats(allow_nan=False))
KEYS = st.text("abcXYZ019_-", min_size=1, max_size=4)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_every_line_holds_its_key(document: dict[str, Any]) -> None:
    from hornbook.settings.show import toml_value

    text = "# first\n" + "".join(f"\n{key} = {toml_value(value)} # end\n" for key, value in document.items())
    lines = key_lines(text)
    assert set(lines) == paths(tomllib.loads(text))
    for number, key in enumerate(document):
        assert lines[key,] == 3 + 2 * number
