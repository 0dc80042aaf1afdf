"""A recipe written out: TOML with origins, and what is known of one setting."""

import json
from typing import Any

from hornbook.errors import UsageError
from hornbook.layers import split_key
from hornbook.recipe import Recipe
from hornbook.schema import REQUIRED, Setting, Table, dotted, plain, settings, shapes_at, suggest

_COMMENT_COLUMN = 48


def recipe_toml(recipe: Recipe, origins: dict[str, str]) -> str:
    """The whole recipe as TOML; every value is followed by `# origin`. `none` stands for no value."""
    lines: list[str] = []
    _table(plain(recipe), (), origins, lines)
    return "\n".join(lines) + "\n"


def _table(node: dict[str, Any], path: tuple[str, ...], origins: dict[str, str], lines: list[str]) -> None:
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
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, dict):
        inner = ", ".join(f"{dotted((key,))} = {toml_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return repr(value)


def explanation(recipe: Recipe, origins: dict[str, str], key: str) -> dict[str, Any]:
    """What is known of a setting: `key`, `variants` over all kinds that have it, and `value` with `origin` if in use.

    Raises UsageError where there is no such setting.
    """
    name, values = _same_case(key), _values(plain(recipe))
    variants = [
        {
            "where": setting.where,
            "in_use": _holds(setting.where, name, values),
            "doc": setting.doc,
            "type": setting.type,
            "range": setting.range,
            "required": setting.default is REQUIRED,
            "default": None if setting.default is REQUIRED else setting.default,
        }
        for setting in find_setting(key)
    ]
    known = {"key": name, "variants": variants}
    return known | {"value": values[name], "origin": origins.get(name, "default")} if name in values else known


def explain(recipe: Recipe, origins: dict[str, str], key: str) -> str:
    """The explanation as text: of the kind in use, or of all kinds where none of them is."""
    known = explanation(recipe, origins, key)
    used = [variant for variant in known["variants"] if variant["in_use"]]
    lines = [known["key"]]
    for variant in used or known["variants"]:
        lines += _explain_variant(variant)
    if "value" in known:
        lines.append(f"  value    {toml_value(known['value'])}  ({known['origin']})")
    elif not used:
        lines.append("  value    not in use: the recipe has chosen another kind")
    return "\n".join(lines)


def _holds(where: str, name: str, values: dict[str, Any]) -> bool:
    """Whether the condition `section.kind = "x"` of a variant holds; `*` in it stands for what `name` has there."""
    if not where:
        return True
    key, _, kind = where.partition(" = ")
    parts = [given if part == "*" else part for part, given in zip(key.split("."), name.split("."), strict=False)]
    return values.get(".".join(parts)) == json.loads(kind)


def _same_case(key: str) -> str:
    """The key with its fields spelled as in the schema; names the user chose stay as they are."""
    parts = list(split_key(key))
    for at in range(len(parts)):
        if not shapes_at((*parts[:at], parts[at].replace("-", "_"))) or _is_chosen(tuple(parts[:at])):
            continue
        parts[at] = parts[at].replace("-", "_")
    return dotted(tuple(parts))


def _is_chosen(parents: tuple[str, ...]) -> bool:
    return any(isinstance(shape, Table) for shape in shapes_at(parents))


def find_setting(key: str) -> list[Setting]:
    """Variants of the setting a dotted key names; a name the user chose matches `*`. Raises UsageError."""
    wanted = _same_case(key).split(".")
    for name, variants in settings().items():
        parts = name.split(".")
        if len(parts) == len(wanted) and all(p in ("*", w) for p, w in zip(parts, wanted, strict=True)):
            return variants
    below = [name for name in settings() if name.startswith(_same_case(key) + ".")]
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


def _values(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix: node}
    found: dict[str, Any] = {}
    for name, item in node.items():
        found |= _values(item, f"{prefix}.{name}" if prefix else name)
    return found


_LIMITS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


def _for_toml(node: Any) -> Any:
    """A schema with `none` where pydantic says null, which TOML lacks, and with limits where validators look."""
    if isinstance(node, list):
        return [_for_toml(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node == {"type": "null"}:
        return {"const": "none"}
    if node.get("default", "") is None:
        node = {**node, "default": "none"}
    limits = {_LIMITS[key]: node[key] for key in _LIMITS if key in node and "anyOf" in node}
    node = {key: _for_toml(value) for key, value in node.items() if not (limits and key in _LIMITS)}
    return {**node, **limits}  # limits on numbers do not touch text or `none`


def json_schema() -> dict[str, Any]:
    """JSON schema of a recipe file."""
    schema = _for_toml(Recipe.model_json_schema())
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "A shipped recipe or a path relative to this file, whose settings this recipe changes.",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
