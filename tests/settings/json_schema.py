"""A validator of the JSON schema of recipes: the part of draft 2020-12 that this schema uses, and nothing else."""

import operator
import re
from collections.abc import Callable, Iterator
from typing import Any

_TYPES: dict[str, Any] = {"string": str, "boolean": bool, "object": dict, "array": list}
_LIMITS = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
}
_SIZES = {"Length": str, "Items": list, "Properties": dict}
_ANNOTATIONS = {"title", "description", "default", "$schema", "$defs"}
_PYDANTIC = {"ge", "gt", "le", "lt"}
"""Keys of pydantic that no validator reads."""


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "") -> Iterator[str]:
    """Paths of the values that the schema refuses, with the keyword that does. Raises KeyError for a new keyword."""
    for keyword, wanted in schema.items():
        if keyword == "$ref":
            yield from problems(value, root["$defs"][wanted.removeprefix("#/$defs/")], root, path)
        elif keyword == "properties":
            for name in wanted.keys() & value.keys() if isinstance(value, dict) else ():
                yield from problems(value[name], wanted[name], root, f"{path}.{name}")
        elif keyword == "additionalProperties" and isinstance(value, dict):
            for name in value.keys() - schema.get("properties", {}).keys():
                below = wanted if isinstance(wanted, dict) else {} if wanted else {"enum": []}
                yield from problems(value[name], below, root, f"{path}.{name}")
        elif keyword == "items" and isinstance(value, list):
            for item in value[len(schema.get("prefixItems", ())) :]:
                yield from problems(item, wanted, root, f"{path}[]")
        elif not _holds(value, keyword, wanted, root):
            yield f"{path} {keyword}"


def _holds(value: Any, keyword: str, wanted: Any, root: dict[str, Any]) -> bool:
    if keyword in _ANNOTATIONS | _PYDANTIC | {"additionalProperties", "items"}:
        return True
    if keyword in _LIMITS:
        return not _is(value, "number") or _LIMITS[keyword](value, wanted)
    if keyword[3:] in _SIZES:
        compare = operator.ge if keyword.startswith("min") else operator.le
        return not isinstance(value, _SIZES[keyword[3:]]) or compare(len(value), wanted)
    checks: dict[str, Callable[[], bool]] = {
        "anyOf": lambda: any(not list(problems(value, each, root)) for each in wanted),
        "enum": lambda: value in wanted,
        "const": lambda: value == wanted,
        "type": lambda: any(_is(value, name) for name in ([wanted] if isinstance(wanted, str) else wanted)),
        "pattern": lambda: not isinstance(value, str) or re.search(wanted, value) is not None,
        "required": lambda: not isinstance(value, dict) or set(wanted) <= value.keys(),
        "prefixItems": lambda: not list(problems(value, {"items": {"anyOf": wanted}}, root)),
        "propertyNames": lambda: not any(list(problems(name, wanted, root)) for name in value),
    }
    return checks[keyword]()


def _is(value: Any, name: str) -> bool:
    if name in ("number", "integer"):
        return isinstance(value, int | float if name == "number" else int) and not isinstance(value, bool)
    return isinstance(value, _TYPES[name])
