"""A recipe as TOML with origins, the explanation of a setting, and the JSON schema."""

import json
from typing import Any

from hornbook.errors import UsageError
from hornbook.settings.errors import suggest
from hornbook.settings.recipe import Recipe
from hornbook.settings.renamed import present_path
from hornbook.settings.schema import REQUIRED, Setting, Table, item_settings, leaves, plain, settings, shapes_at
from hornbook.settings.sources import split_key
from hornbook.settings.toml import Path, dotted, quoted

_COMMENT_COLUMN = 48


def recipe_toml(recipe: Recipe, origins: dict[str, str]) -> str:
    """The whole recipe as TOML, each value followed by `# origin`. `none` means no value."""
    lines: list[str] = []
    _table(plain(recipe), (), origins, lines)
    return "\n".join(lines) + "\n"


def _table(node: dict[str, Any], path: Path, origins: dict[str, str], lines: list[str]) -> None:
    values = {name: value for name, value in node.items() if not isinstance(value, dict) or not value}
    tables = {name: value for name, value in node.items() if name not in values}
    if path and values:
        lines += ["", f"[{dotted(path)}]"]
    for name, value in values.items():
        if value != {}:
            line = f"{dotted((name,))} = {toml_value(value)} "
            lines.append(f"{line:<{_COMMENT_COLUMN}}# {origins.get(dotted((*path, name)), 'default')}")
    for name, value in tables.items():
        _table(value, (*path, name), origins, lines)


def toml_value(value: Any) -> str:
    """One value as TOML on one line."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{dotted((key,))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return repr(value)


def explanation(recipe: Recipe, origins: dict[str, str], key: str) -> dict[str, Any]:
    """`key` of a setting, `variants` over all kinds that have it, and `value` with `origin` if it is in use.

    Raises UsageError if there is no such setting.
    """
    path, values = spelled(key), dict(leaves(recipe))
    variants = [
        {
            "where": setting.where,
            "in_use": _holds(setting.where, path, values),
            "doc": setting.doc,
            "type": setting.type,
            "range": setting.range,
            "required": setting.default is REQUIRED,
            "default": None if setting.default is REQUIRED else setting.default,
        }
        for setting in find_setting(path)
    ]
    known = {"key": dotted(path), "variants": variants}
    if path not in values:
        return known
    return known | {"value": values[path], "origin": origins.get(dotted(path), "default")}


def explain_text(known: dict[str, Any]) -> str:
    """An explanation as text: of the kind in use, or of all kinds if none of them is in use."""
    used = [variant for variant in known["variants"] if variant["in_use"]]
    lines = [known["key"]]
    for variant in used or known["variants"]:
        lines += _explain_variant(variant)
    if "value" in known:
        lines.append(f"  value    {toml_value(known['value'])}  ({known['origin']})")
    elif not used:
        lines.append("  value    not in use: the recipe has chosen another kind")
    return "\n".join(lines)


def _holds(where: str, path: Path, values: dict[Path, Any]) -> bool:
    """Whether the condition `section.kind = "x"` of a variant holds; `*` in it stands for what `path` has there."""
    if not where:
        return True
    key, _, kind = where.partition(" = ")
    parts = [given if part == "*" else part for part, given in zip(key.split("."), (*path, "kind"), strict=False)]
    return values.get(tuple(parts)) == json.loads(kind)


def spelled(key: str) -> Path:
    """Path of a dotted key, its fields spelled as in the schema and by their present names; the user's names stay."""
    path: Path = ()
    for part in split_key(key):
        chosen = any(isinstance(shape, Table) for shape in shapes_at(path))
        path = (*path, part if chosen else part.replace("-", "_"))
    return present_path(path)


def find_setting(path: Path) -> list[Setting]:
    """Variants of the setting at a path; a name the user chose matches `*`. Raises UsageError."""
    known = settings() | item_settings()
    for name, variants in known.items():
        parts = name.split(".")
        if len(parts) == len(path) and all(p in ("*", w) for p, w in zip(parts, path, strict=True)):
            return variants
    key = dotted(path)
    below = [name for name in known if name.startswith(key + ".")]
    if below:
        raise UsageError(f"{key} is a section; its settings are {', '.join(below)}")
    meant = suggest(key)
    hint = f": did you mean {' or '.join(meant)}?" if meant else ""
    raise UsageError(f"there is no setting {key}{hint}")


def _explain_variant(variant: dict[str, Any]) -> list[str]:
    lines = [f"  where    {variant['where']}"] if variant["where"] else []
    lines += [f"  about    {variant['doc']}", f"  type     {variant['type']}"]
    lines += [f"  range    {variant['range']}"] if variant["range"] else []
    return [*lines, f"  default  {'it must be given' if variant['required'] else toml_value(variant['default'])}"]


_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _for_toml(node: Any) -> Any:
    """The schema of a file that may extend another, with `none` for null, which TOML lacks.

    The parent may give what is required and choose kinds, so keys without a `kind` may be those of any kind. Limits are
    at the level where validators look.
    """
    if isinstance(node, list):
        return [_for_toml(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node == {"type": "null"}:
        return {"const": "none"}
    if node.get("default", "") is None:
        node = {**node, "default": "none"}
    limits = {_LIMITS[key]: node[key] for key in _LIMITS if key in node and "anyOf" in node}
    made: dict[str, Any] = {}
    for key, value in node.items():
        if key in ("properties", "$defs"):
            made[key] = {name: _for_toml(below) for name, below in value.items()}
        elif key not in ("required", "discriminator", "oneOf") and not (limits and key in _LIMITS):
            made[key] = _for_toml(value)
    if "discriminator" in node:
        made["anyOf"] = [*_for_toml(node["oneOf"]), *_any_kind(list(node["discriminator"]["mapping"]))]
    if "discriminator" in node.get("items", {}):  # a list replaces the parent's
        made["items"]["required"] = ["kind"]
    return {**made, **limits}  # limits on numbers do not touch text or `none`


def _any_kind(kinds: list[str]) -> list[dict[str, Any]]:
    """Schemas of a section besides its kinds: the name of a kind alone, and a user's part by its import path."""
    part = {"type": "string", "pattern": ":"}
    return [{"enum": kinds}, part, {"type": "object", "properties": {"kind": part}, "required": ["kind"]}]


def json_schema() -> dict[str, Any]:
    """JSON schema of a recipe file, with or without a parent."""
    schema = _for_toml(Recipe.model_json_schema())
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "A shipped recipe or a path relative to this file, whose settings this recipe changes.",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
