"""Where measurements of this machine stay (`hornbook bench`, runs): the planner and runs read them. No torch.

`$HORNBOOK_HOME/bench`, else `$XDG_CACHE_HOME/hornbook/bench` (`~/.cache/hornbook/bench`); a folder for each device with
`machine.json`, and `runs/NAME-DIGEST.json` for the newest run of each recipe.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hornbook.files.filesystem import list_folder
from hornbook.files.user_folder import user_folder

if TYPE_CHECKING:
    from hornbook.settings.recipe import Recipe

FORMAT = 1
STEP_PARTS = dict.fromkeys(("model", "surgery", "train", "parallel", "optim"), True) | {
    "data": {"objective": True, "sequence_ramp": True}
}
"""Parts of a recipe on which a step's time and memory depend."""
LENGTHS = ("tokens", "epochs", "seconds")
"""Of `train`, what sets the length of a run alone."""
_UNSAFE = re.compile(r"[^A-Za-z0-9.*]+")


def bench_folder() -> Path | None:
    """The folder of all measurements; None where the user has no home."""
    return user_folder("bench")


def folder_name(name: str) -> str:
    """The name of a device as that of a folder."""
    return _UNSAFE.sub("-", name).strip("-")


def read_machine(pattern: str) -> list[dict[str, Any]]:
    """The saved measurements of devices whose name fits a pattern, in which * stands for anything; newest first."""
    return list(_newest(pattern, "machine.json"))


def read_runs(pattern: str, name: str = "*.json") -> Iterator[dict[str, Any]]:
    """What runs on such devices measured (`RunMeasured` of `plan.search.anchored_plan`), newest first; name: of a file,
    or a pattern."""
    return _newest(pattern, f"runs/{name}")


def run_file(name: str, recipe: "Recipe") -> Path | None:
    """Where the measurements of a run on a device go; another shape, batch or layout is another file."""
    folder = bench_folder()
    return None if folder is None else folder / folder_name(name) / "runs" / step_name(recipe)


def step_name(recipe: "Recipe") -> str:
    """NAME-DIGEST.json, by all that the time and memory of a step depend on."""
    parts = recipe.model_dump(mode="json", include=STEP_PARTS)
    parts["train"] = {key: value for key, value in parts["train"].items() if key not in LENGTHS}
    digest = hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=4).hexdigest()
    return f"{folder_name(recipe.name)}-{digest}.json"


def _newest(pattern: str, files: str) -> Iterator[dict[str, Any]]:
    """Read one by one, newest first; files: a pattern below the folder of a device."""
    folder = bench_folder()
    found = list[tuple[float, Path]]()
    with contextlib.suppress(OSError):
        for each in list_folder(folder, folder_name(pattern)) if folder is not None else []:
            with contextlib.suppress(OSError):
                found += [(path.stat().st_mtime, path) for path in each.glob(files)]
    for _, path in sorted(found, reverse=True):
        with contextlib.suppress(OSError, ValueError):
            record = json.loads(path.read_bytes())
            if isinstance(record, dict) and record.get("format") == FORMAT:
                yield record
