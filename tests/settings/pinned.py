"""Every setting with its default, type and range, a line each: `python -m tests.settings.pinned` writes settings.txt.

A recipe names few settings: another default makes another run of it. Write the file anew where that is meant.
"""

from collections.abc import Iterator
from pathlib import Path

from hornbook.settings.schema import item_settings, settings

FILE = Path(__file__).with_name("settings.txt")


def lines() -> Iterator[str]:
    """In the order of their names."""
    for table in (settings(), item_settings()):
        for key in sorted(table):
            for each in sorted(table[key], key=lambda setting: setting.where):
                default = "required" if repr(each.default) == "PydanticUndefined" else f"= {each.default!r}"
                yield "  ".join(filter(None, (key, default, each.type, each.range, each.where and f"if {each.where}")))


if __name__ == "__main__":
    FILE.write_text("\n".join(lines()) + "\n", encoding="utf-8")
