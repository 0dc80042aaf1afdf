"""What the pages name is there: files, modules, make targets, verbs with their options, settings."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hornbook.cli.main import COMMANDS, load_command
from hornbook.errors import UsageError
from hornbook.settings.schema import settings
from hornbook.settings.show import find_setting, spelled
from hornbook.studio.explore.explorer import load_explorer
from hornbook.text.config.text import KINDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hornbook"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FOLDERS = ("tests", "src", "benchmarks", "docs", "examples")
ROOMS = tuple(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
OF_THE_READER = {"cards", "lion", "maxout", "repeat", "skip_first", "vowels"}
"""Modules that pages show how to write: a reader, an optimizer, a part, a task, an objective, a step."""
RATIO = "hornbook is x"
"""Head of a column in tables of figures."""
NO_SETTINGS = {"data.lock", "log.txt", "text.config"}
"""Files and a module."""
PLANS = {"notes.md"}
"""Pages that speak of what is not there yet."""
NAMES = {path.name for path in [*PACKAGE.rglob("*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("benchmarks/**/*.py")]}


def quoted(text: str) -> Iterator[str]:
    """Code spans, and the commands of code blocks without their comments."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        if line.startswith("hornbook "):
            yield line.partition("#")[0].strip()
    for paragraph in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n"):
        yield from (span for span in paragraph.split("`")[1::2] if span.strip())


def missing_paths(text: str) -> Iterator[str]:
    for path in re.findall(r"(?<![\w./-])(?:[\w.*-]+/)+[\w.*-]*[\w*]", text):
        first = path.split("/")[0]
        base = ROOT if first in FOLDERS else PACKAGE if first in ROOMS and path.endswith(".py") else None
        if base is not None and not any(base.glob(path)):
            yield path
    yield from (
        name
        for name in re.findall(r"(?<![\w./*-])\w+\.py\b", text)
        if name not in NAMES and name[:-3] not in OF_THE_READER
    )
    for module in re.findall(r"python -m ((?:benchmarks|hornbook)[\w.]*)", text):
        path = (ROOT if module.startswith("benchmarks") else ROOT / "src") / module.replace(".", "/")
        if not path.with_suffix(".py").is_file() and not (path / "__main__.py").is_file():
            yield module
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for span in quoted(text):
        words = span.split()
        if words[0] == "make":
            yield from (f"make {word}" for word in words[1:] if word not in targets and "=" not in word)


def missing_words(text: str) -> Iterator[str]:
    """Verbs, their options and settings in the code spans of a page."""
    for span in quoted(text):
        words = [] if any(name in span for name in (*OF_THE_READER, RATIO)) else span.split()
        if words[:1] == ["hornbook"] and len(words) > 1 and words[1].isalpha() and words[1].islower():
            yield from missing_options(words[1], words[2:])
        elif re.fullmatch(rf"({'|'.join(SECTIONS)})(\.[\w*-]+)+(=.*)?", span) and not is_setting(span):
            yield from {span} - NO_SETTINGS


def missing_options(verb: str, words: list[str]) -> Iterator[str]:
    if " ".join([verb, *words[:1]]) in COMMANDS:
        verb = " ".join([verb, *words[:1]])
    if verb not in COMMANDS:
        yield f"hornbook {verb}"
        return
    command = load_command(verb)
    for word in words:
        command = getattr(command, "commands", {}).get(word, command)
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    if verb == "explore":
        known |= {f"--{name}" for name in load_explorer(words[0]).question.model_fields} if words else set()
    for word in words:
        if word.startswith("--") and word.split("=")[0] not in known and not is_setting(word):
            yield f"hornbook {verb} {word}"


SECTIONS = {key.split(".")[0] for key in settings() if "." in key}


def is_setting(word: str) -> bool:
    """Whether a word is a setting, or a section of them."""
    key = word.lstrip("-").split("=")[0]
    try:
        find_setting(spelled(key.replace("*", "any")))
    except UsageError as error:
        return "is a section" in str(error) or key in SECTIONS
    return True


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert list(missing_paths(text)) == []
    assert page.name in PLANS or list(missing_words(text)) == []


def test_every_step_of_the_refinery_has_its_line() -> None:
    text = (ROOT / "docs" / "refinery.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in text] == []


def test_what_is_missing_is_found() -> None:
    text = "`tests/none.py` `run/none.py` none.py `python -m benchmarks.none` `make none` `tests/run/no_*.py`"
    assert list(missing_paths(text)) == [
        "tests/none.py",
        "run/none.py",
        "tests/run/no_*.py",
        "none.py",
        "benchmarks.none",
        "make none",
    ]
    words = "`hornbook none` `hornbook train --none` `train.none` `train.precision=fp16` `hornbook recipes ls --json`"
    assert list(missing_words(words)) == ["hornbook none", "hornbook train --none", "train.none"]


def test_every_row_of_features_has_a_status_and_a_proof() -> None:
    rows = re.findall(r"^\| *(\d+) \| .* \| (.*) \| (.*) \|$", (ROOT / "docs/features.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 155))
    assert [number for number, status, _ in rows if not re.match(r"(yes|part|not yet)\b", status)] == []
    assert [number for number, status, proof in rows if status.startswith(("yes", "part")) and not proof.strip()] == []


def test_every_word_of_the_glossary_has_one_short_meaning() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (ROOT / "docs/words.md").read_text(), re.MULTILINE)[1:]
    words = [word for word, _ in rows]
    assert len(words) >= 40
    assert words == sorted(set(words))
    assert [word for word, meaning in rows if not meaning.endswith(".") or len(meaning) > 160] == []


def test_every_message_of_troubleshooting_is_one_of_ours() -> None:
    headings = re.findall(r"^### `(.+)`$", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert len(headings) >= 15
    assert [text for text in headings if text not in sources] == []


def contents(text: str) -> str:
    """The list of a page's headings, with those of third rank after their chapter."""
    chapters = list[list[str]]()
    for marks, title in re.findall(r"^(##|###) (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE):
        link = f"[{title}](#{re.sub(r'[^a-z0-9 -]', '', title.lower()).replace(' ', '-')})"
        if marks == "##":
            chapters.append([link])
        else:
            chapters[-1].append(link)
    return "\n".join(f"* {first}" + f": {', '.join(rest)}" * bool(rest) for first, *rest in chapters[1:])


def test_the_guide_begins_with_its_contents() -> None:
    text = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    assert text.split("## Contents\n\n")[1].startswith(contents(text) + "\n\n## ")
