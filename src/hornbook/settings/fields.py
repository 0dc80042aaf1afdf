"""Base classes of all configuration: the frozen base model, numbers with suffixes, durations.

Configuration is pydantic models that import no torch: `--help`, `config` and the planner start at once, and one schema
serves files, the command line and pages.
"""

import ast
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache, lru_cache, wraps
from itertools import pairwise
from typing import Annotated, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializeAsAny,
    WrapValidator,
    model_serializer,
    model_validator,
)

from hornbook.errors import UsageError
from hornbook.files.filesystem import require_local

TRUST = "HORNBOOK_TRUST_PARTS"
"""Environment variable: 1 lets the configuration of a checkpoint import parts from outside."""
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_SCALES = _DECIMAL | {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_NUMBER = re.compile(r"([+-]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)")
_LARGEST_EXPONENT = 27  # beyond, the text is left to pydantic, which refuses it for integers


class Config(BaseModel):
    """Base of all sections: immutable, refuses unknown keys, documents fields by docstrings (`field_docs`)."""

    # A validator is built when it is first used: most classes are only ever parts of the recipe's.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The schema with the docstrings of fields as their descriptions."""
        found = handler(schema)
        properties = handler.resolve_ref_schema(found).get("properties", {})
        for name, text in field_docs(cls).items():
            if name in properties:
                properties[name].setdefault("description", text)
        return found


def field_docs(model: type[Config]) -> dict[str, str]:
    """Field -> the docstring below it, if it has one.

    Read on demand: pydantic's own `use_attribute_docstrings` reads the sources of all models at every start, which is a
    third of the start-up time of a command.
    """
    found: dict[str, str] = {}
    for each in reversed([each for each in model.__mro__ if issubclass(each, Config)]):
        docs = _docs_in(each.__module__).get(each.__qualname__.rpartition(".")[2], {})
        named = inspect.get_annotations(each)
        found = {name: text for name, text in found.items() if name not in named} | docs
    return found


@cache
def _docs_in(module: str) -> dict[str, dict[str, str]]:
    """Class -> attribute -> docstring, for all classes of a module; empty if it has no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    return {each.name: _attribute_docs(each) for each in ast.walk(tree) if isinstance(each, ast.ClassDef)}


def _attribute_docs(definition: ast.ClassDef) -> dict[str, str]:
    found: dict[str, str] = {}
    for one, after in pairwise(definition.body):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(after, ast.Expr):
            text = getattr(after.value, "value", None)
            if isinstance(text, str):
                found[one.target.id] = inspect.cleandoc(text)
    return found


def named(path: str) -> Any:
    """The object at `module:name` below `hornbook`: a configuration names what it builds, and imports no engine."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"hornbook.{module}"), name)


def outside_part(kind: Any) -> type[Config] | None:
    """The config class of a user's part, whose `kind` is its import path: "package.module:Class".

    Importing runs the file. None if `kind` is not an import path. Raises ValueError if it leads to no such class.
    """
    if not isinstance(kind, str) or ":" not in kind:
        return None
    module, _, name = kind.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is anybody's code
        raise ValueError(f"{kind} cannot be imported ({error}): is its folder in PYTHONPATH?") from error
    if not (isinstance(found, type) and issubclass(found, Config) and hasattr(found, "build")):
        raise ValueError(
            f"{kind} is no part: a subclass of hornbook.settings.fields.Config with a method `build` is needed"
        )
    return found


def refuse_untrusted_parts(tree: Any, source: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a tree from a checkpoint that names a user's part: validating it would import, and so run, the module.

    Modules that the recipe or the program has already imported are accepted. Raises UsageError.
    """
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    for value in values:
        refuse_untrusted_parts(value, source, environ)
    kind = tree.get("kind") if isinstance(tree, dict) else None
    if not isinstance(kind, str) or ":" not in kind or environ.get(TRUST) == "1":
        return
    if (module := kind.partition(":")[0]) not in sys.modules:
        text = f"it names the part {kind}, and reading it would run the module {module}"
        raise UsageError(f"{source}: {text}: set {TRUST}=1 if you trust that module")


def open_to(noun: str, *bases: type[Config]) -> tuple[Any, ...]:
    """Annotations of a union of parts that users may add to: subclasses of one of `bases`, if there are any.

    A part of the package is validated by its kind, a user's part by its import path. `noun` is for errors.
    """

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        found = outside_part(kind)
        part = handler(value) if found is None else found.model_validate(value)
        if bases and (not isinstance(part, bases) or type(part) in bases):
            needed = " or ".join(f"{base.__module__}.{base.__name__}" for base in bases)
            raise ValueError(f"{type(part).__name__} is no {noun}: name a subclass of {needed} by its import path")
        return part

    return SerializeAsAny(), WrapValidator(validate)  # pyright: ignore[reportCallIssue]


OPEN = open_to("part")
"""Of parts of a model, which need no base of ours."""


def parse_number(value: Any) -> Any:
    """Read `32k`, `1.5M`, `64Ki` or `2_000` as a number; return anything else as it is, for pydantic to validate."""
    if not isinstance(value, str):
        return value
    match = _NUMBER.fullmatch(value.strip())
    scale = _SCALES.get(match.group(2).lower()) if match is not None else None
    if match is None or scale is None:
        return value
    number = Decimal(match.group(1).replace("_", ""))  # exact: a seed may have more digits than a float holds
    if number.adjusted() > _LARGEST_EXPONENT:
        return value
    number *= scale
    return int(number) if number == number.to_integral_value() else float(number)


def _no_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


class _WithSuffix:
    """The JSON schema of a number that may also be written as text with a suffix."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [handler(schema), {"type": "string", "pattern": f"^{_NUMBER.pattern}$"}]}


Count = Annotated[int, BeforeValidator(parse_number), BeforeValidator(_no_boolean), _WithSuffix()]
"""An integer that accepts `32k`, `1.5M` (decimal) and `64Ki` (binary) in text."""

Number = Annotated[float, BeforeValidator(parse_number), BeforeValidator(_no_boolean), _WithSuffix()]
"""A float that accepts the same suffixes."""

LocalPath = Annotated[str, AfterValidator(require_local)]
"""A path on this machine: a URL is refused."""


class Duration(Config):
    """A training length, written `"200 steps"`, `"375M tokens"` or as a share of the run: `"1%"`, `0.01`."""

    amount: float
    unit: Literal["tokens", "steps", "share"]

    @model_validator(mode="before")
    @classmethod
    def _parse(cls, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            raise ValueError("write a duration as '200 steps', '375M tokens' or '1%'")
        if isinstance(value, int | float):
            return {"amount": value, "unit": "share" if value <= 1 else "tokens"}
        if isinstance(value, str):
            return cls._parse_text(value.strip())
        return value

    @staticmethod
    def _parse_text(text: str) -> dict[str, Any]:
        if text.endswith("%"):
            number = parse_number(text[:-1])
            if isinstance(number, int | float):
                return {"amount": number / 100, "unit": "share"}
        number = parse_number(text)
        if isinstance(number, int | float):
            return {"amount": number, "unit": "share" if number <= 1 else "tokens"}
        head, _, unit = text.rpartition(" ")
        number = parse_number(head)
        if isinstance(number, int | float) and unit in ("tokens", "steps", "step"):
            return {"amount": number, "unit": "steps" if unit == "step" else unit}
        raise ValueError(f"cannot read {text!r} as a duration: write '200 steps', '375M tokens' or '1%'")

    @model_validator(mode="after")
    def _check(self) -> "Duration":
        if self.amount < 0 or (self.unit == "share" and self.amount > 1):
            raise ValueError("a duration is not negative, and a share is at most 1 (100%)")
        return self

    @model_serializer
    def _write(self) -> str:
        """The shortest text that is parsed as the same length, bit for bit."""
        if self.unit == "share":
            percent = f"{self.amount * 100:g}%"
            return percent if float(percent[:-1]) / 100 == self.amount else repr(self.amount)
        whole = self.amount.is_integer()
        return f"{int(self.amount) if whole else repr(self.amount)} {self.unit}"

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Text or a number, as people write it, instead of pydantic's object."""
        del schema, handler
        return {"type": ["string", "number"], "description": (cls.__doc__ or "").strip()}

    def tokens(self, total_tokens: int, tokens_of: Callable[[float], float]) -> float:
        """Length in tokens; `tokens_of(n)` is the number of tokens in the first n steps."""
        if self.unit == "steps":
            return tokens_of(self.amount)
        return self.amount * (total_tokens if self.unit == "share" else 1)


P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=Config)
KEPT = 256
"""Results that a function of a configuration keeps."""


class ByIdentity(Generic[C]):
    """A configuration as a key: it is frozen, and the key keeps it alive, so that its id stays its own."""

    def __init__(self, config: C) -> None:
        self.config = config

    def __hash__(self) -> int:
        return id(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.config is other.config  # pyright: ignore[reportUnknownMemberType]


def kept_by_config(function: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """The function, whose other arguments are hashable, with its results kept; nobody may change them."""

    @lru_cache(KEPT)
    def keyed(key: ByIdentity[C], *rest: Any, **named: Any) -> T:
        return function(key.config, *rest, **named)

    @wraps(function)
    def wrapper(config: C, /, *rest: P.args, **named: P.kwargs) -> T:
        return keyed(ByIdentity(config), *rest, **named)

    return wrapper
