"""One mechanism for all explorers: a file with a question, an answer, and the function that asks the engine.

From that file follow the page and its controls, the JSON, the command line, the page of the docs and the tests.
`docs/parts.md` shows how to add one.
"""

import difflib
import importlib
import inspect
import pkgutil
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import tomli_w
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from hornbook.errors import UsageError
from hornbook.settings.fields import Config, field_docs, parse_number
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve
from hornbook.settings.toml import set_at
from hornbook.studio.explore.views import Answer

FOLDERS = ("tools", "widgets")
PACKAGE = Path(__file__).parents[2]
LONGEST_TEXT = 20_000
"""Characters of a question's text."""
ENGLISH = """A model does not read letters. It reads tokens, and a tokenizer makes the tokens from the text. It learns
from a text which letters often stand next to each other, and merges the most frequent pair into a new token. It does so
again and again, until it has as many tokens as it may have. A text that looks like the text it learned from needs few
tokens, and any other text needs more of them, because the tokenizer has no tokens for the words of that text.
"""


@dataclass(frozen=True)
class Preset:
    """A question with a name, such as that of a paper."""

    name: str
    values: Mapping[str, Any]
    source: str = ""


@dataclass(frozen=True)
class Explorer:
    """A question that a person may change, and the function of the engine that answers it."""

    name: str
    title: str
    asks: str
    """The question in one sentence."""
    lead: str
    """A paragraph in plain words, with which the page opens."""
    question: type[Config]
    answer: Callable[[Any], Answer]
    code: Sequence[str]
    """`module:name` of the engine's functions that it calls, below `hornbook`."""
    presets: Sequence[Preset] = ()
    settings: Callable[[Any], Mapping[str, Any]] | None = None
    """All settings of a recipe that mean the same, where they are more than those of the fields."""
    load: Callable[[Recipe], Mapping[str, Any]] | None = None
    """Values that a run's recipe has for the question, the settings of fields and the model aside."""
    further: Callable[[Any], Answer] | None = None
    """Computes views that take longer than 50 ms: the page shows them a moment after the others."""
    measure: Callable[[Any], Answer] | None = None
    """Does it for real, in a small model on this machine; may import torch."""

    def __call__(self, **values: Any) -> Answer:
        """The answer to a question given as in Python. Raises UsageError."""
        return self.answer(self.ask(values))

    def ask(self, values: Mapping[str, Any]) -> Any:
        """The question; texts are read as numbers. Raises UsageError that names every wrong value."""
        unknown = [name for name in values if name not in self.question.model_fields]
        if unknown:
            hint = _hint(unknown[0], self.question.model_fields, "it has")
            raise UsageError(f"{self.name} has no setting {unknown[0][:60]!r}: {hint}")
        try:
            return self.question.model_validate({name: self._read(name, value) for name, value in values.items()})
        except ValidationError as error:
            raise UsageError("; ".join(self._problem(each) for each in error.errors(include_url=False))) from None

    @property
    def loads(self) -> bool:
        """Whether a run can be loaded: its settings, its model, or its records."""
        fields = self.question.model_fields
        return self.load is not None or bool({"model", "run"} & fields.keys()) or any(map(setting_of, fields.values()))

    def from_run(self, run: Path) -> tuple[dict[str, Any], list[str]]:
        """(the question that a run asks, what no question of this kind can ask). Raises UsageError."""
        fields, left = self.question.model_fields, list[str]()
        found: dict[str, Any] = dict.fromkeys({"model", "run"} & fields.keys(), str(run))
        given = dict[str, Any]()
        if self.load or any(map(setting_of, fields.values())):
            recipe = resolve(str(run), environ={}).recipe
            given = {**values_of(self.question, recipe), **(self.load(recipe) if self.load else {})}
        for name, value in given.items():
            try:
                self.question.model_validate({name: value})
            except ValidationError:
                left.append(f"{name} = {value}")
            else:
                found[name] = value
        return found, left

    def _read(self, name: str, value: Any) -> Any:
        """A value that may be a text, as links and command lines have it."""
        kind = control(name, self.question.model_fields[name]).kind
        if kind == "several" and isinstance(value, str):
            return [each for each in value.split(",") if each]
        return parse_number(value) if kind in ("integer", "number") else value

    def _problem(self, error: Any) -> str:
        name = str(error["loc"][0]) if error["loc"] else ""
        text = str(error["input"])[:40] if name else ""
        message = str(error["msg"]).removeprefix("Value error, ")
        return f"{name} = {text}: {message[:1].lower()}{message[1:]}" if name else message

    def command(self, question: Config) -> str:
        """The command that prints the same answer."""
        words = [f"--{name} {shlex.quote(value_text(value))}" for name, value in self.changed(question).items()]
        return " ".join(["hornbook explore", self.name, *words])

    def changed(self, question: Config) -> dict[str, Any]:
        """The values that are not defaults."""
        fields = self.question.model_fields
        return {name: value for name, value in question if value != fields[name].default}

    def toml(self, question: Config) -> str:
        """Settings of a recipe that mean the same, as TOML; "" where there are none."""
        tree: dict[str, Any] = {}
        for key, value in (self.settings or settings_of)(question).items():
            set_at(tree, key.split("."), value)
        return tomli_w.dumps(tree)

    def places(self) -> list[dict[str, Any]]:
        """Where the engine's functions are: name, file below the package, line. No module is imported for it."""
        found = []
        for path in self.code:
            module, _, name = path.partition(":")
            file = PACKAGE / f"{module.replace('.', '/')}.py"
            starts = (f"def {name}(", f"class {name}(", f"class {name}:")
            line = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if line.startswith(starts))
            found.append({"name": name, "file": f"src/hornbook/{module.replace('.', '/')}.py", "line": line})
        return found


def value_text(value: Any) -> str:
    """A value as links and command lines have it; `ask` reads it back."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


class Control(Config):
    """A slider, a list, a switch or a field of text for one value of a question."""

    name: str
    label: str
    help: str
    kind: Literal["integer", "number", "choice", "several", "switch", "text"]
    default: Any
    low: float | None = None
    high: float | None = None
    """Largest number, or most characters of a text; a text of at most 1,000 has one line."""
    logarithmic: bool = False
    choices: Sequence[str] = ()
    """Entries of a list; a model may also be a recipe or a run of yours, by its path."""


def slider(default: float, low: float, high: float, setting: str = "", *, logarithmic: bool = False) -> Any:
    """A number between two bounds, and the recipe's setting that it is; logarithmic: equal ways of the slider are equal
    factors."""
    extra: Any = {"logarithmic": logarithmic, "setting": setting}
    return Field(default=default, ge=low, le=high, json_schema_extra=extra)


def means(default: Any, setting: str, names: Mapping[Any, Any] | None = None) -> Any:
    """A value that is a recipe's setting; `names`: value -> what the recipe calls it."""
    extra: Any = {"setting": setting, "names": names or {}}
    return Field(default=default, json_schema_extra=extra)


def setting_of(field: FieldInfo) -> str:
    """The dotted key of the setting that a field is; "" for none."""
    return _extra(field).get("setting", "")


def _names_of(field: FieldInfo) -> dict[Any, Any]:
    return _extra(field).get("names", {})


def _extra(field: FieldInfo) -> dict[str, Any]:
    extra: Any = field.json_schema_extra
    return extra if isinstance(extra, dict) else {}


def settings_of(question: Config) -> dict[str, Any]:
    """Setting of a recipe -> its value, of the fields that are settings."""
    values = ((field, getattr(question, name)) for name, field in type(question).model_fields.items())
    return {setting_of(field): _names_of(field).get(value, value) for field, value in values if setting_of(field)}


def values_of(question: type[Config], recipe: Recipe) -> dict[str, Any]:
    """Field -> the value that a recipe has there, of the fields that are settings."""
    found = dict[str, Any]()
    for name, field in question.model_fields.items():
        with suppress(AttributeError):  # another kind of a section has other settings
            value = reduce(getattr, setting_of(field).split("."), recipe) if setting_of(field) else None
            value = {own: each for each, own in _names_of(field).items()}.get(value, value)
            found |= {} if value is None else {name: value}
    return found


def control(name: str, field: FieldInfo, text: str = "") -> Control:
    """The control of a field."""
    bounds = {
        attribute: getattr(each, attribute)
        for each in field.metadata
        for attribute in ("ge", "le", "max_length")
        if hasattr(each, attribute)
    }
    kinds: dict[Any, Any] = {bool: "switch", int: "integer", float: "number"}
    kind, choices = kinds.get(field.annotation, "text"), _extra(field).get("choices", ())
    if get_origin(field.annotation) is tuple:
        kind, choices = "several", get_args(get_args(field.annotation)[0])
    elif get_origin(field.annotation) is Literal:
        choices = get_args(field.annotation)
    return Control(
        name=name,
        label=name.replace("_", " "),
        help=" ".join(text.split()),
        kind="choice" if choices and kind == "text" else kind,
        default=field.default,
        low=bounds.get("ge"),
        high=bounds.get("le", bounds.get("max_length")),
        logarithmic=bool(_extra(field).get("logarithmic")),
        choices=choices,
    )


def controls(explorer: Explorer) -> list[Control]:
    """The controls of a question, in its order."""
    docs = field_docs(explorer.question)
    fields = explorer.question.model_fields
    return [control(name, field, docs.get(name, field.description or "")) for name, field in fields.items()]


def explorer(
    title: str,
    *,
    asks: str,
    code: Sequence[str],
    presets: Sequence[Preset] = (),
    settings: Callable[[Any], Mapping[str, Any]] | None = None,
    load: Callable[[Recipe], Mapping[str, Any]] | None = None,
    further: Callable[[Any], Answer] | None = None,
    measure: Callable[[Any], Answer] | None = None,
) -> Callable[[Callable[[Any], Answer]], Explorer]:
    """Make an explorer of a function; its docstring is the paragraph of the page, its name the explorer's."""

    def decorate(function: Callable[[Any], Answer]) -> Explorer:
        question = get_type_hints(function)["question"]
        lead = " ".join((inspect.getdoc(function) or "").split())
        name = function.__name__.replace("_", "-")
        return Explorer(name, title, asks, lead, question, function, code, presets, settings, load, further, measure)

    return decorate


@cache
def explorer_names() -> dict[str, str]:
    """Name -> module of every explorer: tools first, then widgets, each in alphabetical order."""
    found = {}
    for folder in FOLDERS:
        for each in pkgutil.iter_modules([str(Path(__file__).parent / folder)]):
            found[each.name.replace("_", "-")] = f"{__package__}.{folder}.{each.name}"
    return found


def load_explorer(name: str) -> Explorer:
    """The explorer of a name. Raises UsageError with the nearest name."""
    names = explorer_names()
    if name not in names:
        raise UsageError(f"there is no explorer {name[:60]!r}: {_hint(name, names, 'there are')}")
    return getattr(importlib.import_module(names[name]), name.replace("-", "_"))


def _hint(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, known := [*known], 1)
    return f"did you mean {near[0]}?" if near else f"{otherwise} {', '.join(known)}"
