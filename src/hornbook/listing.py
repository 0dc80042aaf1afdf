"""A recipe written out: TOML with origins, and what is known of one setting."""

import json
from typing import Any

from hornbook.errors import UsageError
from hornbook.recipe import Recipe
from hornbook.schema import REQUIRED, Setting, dotted, plain, settings, suggest

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
            line = f"{dotted((name,))} = {toml_value(value)}"
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


def explain(recipe: Recipe, origins: dict[str, str], key: str) -> str:
    """Doc, type, range, default, value and origin of a setting, over all kinds that have it. Raises UsageError."""
    variants = find_setting(key)
    name = key.replace("-", "_")
    values = _values(plain(recipe))
    lines = [name]
    for setting in variants:
        lines += _explain_variant(setting)
    if name in values:
        lines.append(f"  value    {toml_value(values[name])}  ({origins.get(name, 'default')})")
    elif variants[0].where and "*" not in variants[0].key:
        lines.append("  value    not in use: the recipe has chosen another kind")
    return "\n".join(lines)


def find_setting(key: str) -> list[Setting]:
    """Variants of the setting a dotted key names; a name the user chose matches `*`. Raises UsageError."""
    wanted = key.replace("-", "_").split(".")
    for name, variants in settings().items():
        parts = name.split(".")
        if len(parts) == len(wanted) and all(p in ("*", w) for p, w in zip(parts, wanted, strict=True)):
            return variants
    below = [name for name in settings() if name.startswith(key.replace("-", "_") + ".")]
    if below:
        raise UsageError(f"{key} is a section; its settings are {', '.join(below)}")
    meant = suggest(key)
    hint = f": did you mean {' or '.join(meant)}?" if meant else ""
    raise UsageError(f"there is no setting {key}{hint}")


def _explain_variant(setting: Setting) -> list[str]:
    lines = [f"  where    {setting.where}"] if setting.where else []
    lines += [f"  about    {setting.doc}", f"  type     {setting.type}"]
    lines += [f"  range    {setting.range}"] if setting.range else []
    default = "none: it must be given" if setting.default is REQUIRED else toml_value(setting.default)
    return [*lines, f"  default  {default}"]


def _values(node: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {prefix: node}
    found: dict[str, Any] = {}
    for name, item in node.items():
        found |= _values(item, f"{prefix}.{name}" if prefix else name)
    return found


def json_schema() -> dict[str, Any]:
    """JSON schema of a recipe file."""
    schema = Recipe.model_json_schema()
    schema["properties"]["extends"] = {
        "type": "string",
        "description": "A shipped recipe or a path relative to this file, whose settings this recipe changes.",
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
