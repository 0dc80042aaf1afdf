"""What ended a run, or nearly did: by its ledger, its incidents, its checkpoints and the disk it is on."""

import functools
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

from hornbook.errors import IntegrityError
from hornbook.files.filesystem import is_file, is_folder, list_folder
from hornbook.run.checkpoints.commit import list_checkpoints
from hornbook.run.checkpoints.manifest import read_manifest
from hornbook.run.doctor.curve_rules import Diagnosis, Text
from hornbook.run.doctor.run_history import RunHistory, at_step, gigabytes
from hornbook.run.doctor.stacks import read_stacks

ENDED_BADLY = ("fail",)
GOES_ON = ("start", "resume")
_MEMORY = re.compile(
    r"(?i)out of memory|can't allocate memory|cannot allocate|memory ran out|DoesNotFit|\b(OutOf)?MemoryError"
)
_FULL = re.compile(r"(?i)no space left|disk is full|disk quota|free some space|too little space")
LONGEST_ERROR = 240
"""Characters that are shown of the collectives' own words."""
HEADROOM = 1.2
"""Free space that the next save needs, over the size of the last one."""


@functools.cache
def texts() -> dict[str, Text]:
    """By name."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: Text(**row) for name, row in table.items()}


def _found(name: str, evidence: str) -> Diagnosis:
    text = texts()[name]
    return Diagnosis(name, text.title, text.severity, evidence, text.explanation, text.remedy)


def examine(history: RunHistory) -> list[Diagnosis]:
    """Everything that is wrong with the run itself, the cause of its end first."""
    found = [*_death(history), *_checkpoints(history), *_disk(history), *_restarts(history), *_slow(history)]
    found += [_found("unreadable", f"{what}: {why}") for what, why in history.unreadable.items()]
    names = {each.name for each in found if each.name not in ("restarts", "slow")}
    if "hang" in names:  # the hang tells of the restart
        found = [each for each in found if each.name != "restarts"]
    return found


# ---- the end


def _death(history: RunHistory) -> Iterator[Diagnosis]:
    """The cause of the end of the newest attempt, if it ended badly."""
    if history.status == "dead":
        newest = history.events[-1] if history.events else {}
        by_plan = "; a fault of the plan (--faults) was the last thing on record" * (newest.get("kind") == "fault")
        lived = f"attempt {history.attempt} lived at {at_step({'step': history.last_step})}"
        yield _found("killed", f"{lived}{by_plan}{_memory(history)}")
        return
    failure = history.newest(*ENDED_BADLY, *GOES_ON, "finish", "stop")
    if history.status != "failed" or failure is None or failure["kind"] not in ENDED_BADLY:
        return
    name = classify(failure.get("error", ""), failure.get("text", ""))
    step = max(failure["step"], history.last_step)
    evidence = f"{at_step({'step': step})}: {failure.get('text') or failure.get('error')}"
    if name == "hang":
        evidence = f"{evidence}{_stacks(history)}"
    elif name in ("out_of_memory", "killed"):
        evidence = f"{evidence}{_memory(history)}"
    elif name == "lost_rank":
        evidence = shorten(evidence, LONGEST_ERROR)
    elif name == "diverged" and (first := _first_skip(history)) is not None:
        evidence = f"{evidence.split('. ')[0]}; the first was step {first:,} (--step {first})"
    yield _found(name, evidence)


def classify(error: str, text: str) -> str:
    """The name in `deaths.toml` of an error by its class and message."""
    if _MEMORY.search(f"{error} {text}"):
        return "out_of_memory"
    if _FULL.search(text) and error != "SharedMemoryError":
        return "disk_full"
    if "was silent" in text or "was stopped, and silent" in text:
        return "hang"
    if error == "RetriesSpentError" and "was killed by SIGKILL" in text:
        return "killed"
    if error == "DivergedError":
        return "paused" if text.startswith("paused at step") and "(D0" not in text else "diverged"
    names = {
        "IntegrityError": "damaged_data",
        "StorageError": "storage",
        "TakenOverError": "storage",
        "InUseError": "storage",
        "UsageError": "usage",
        "HardwareError": "hardware",
        "LostDeviceError": "lost_device",
        "SharedMemoryError": "shared_memory",
        "RankLostError": "lost_rank",
    }
    return names.get(error, "defect")


def _first_skip(history: RunHistory) -> int | None:
    """The first of the refused steps in a row that ended the run."""
    skips = [each for each in history.events if each.get("kind") == "skip"]
    return skips[-1]["step"] - skips[-1].get("in_a_row", 1) + 1 if skips else None


def _memory(history: RunHistory) -> str:
    """The categories of the newest line of memory.jsonl, the largest first; "" where memory was not measured."""
    lines = history.memory
    if not lines:
        return ""
    names = ("parameters", "gradients", "optimizer", "activations", "buffers", "other")
    sizes = sorted(((lines[-1].get(name, 0), name) for name in names), reverse=True)
    shown = ", ".join(f"{name} {gigabytes(size)}" for size, name in sizes if size)
    return f"; memory at {at_step(lines[-1])}: {shown}, at most {gigabytes(lines[-1].get('peak', 0))}"


def _stacks(history: RunHistory) -> str:
    stacks = read_stacks(history.run.incidents / str(history.attempt))
    return "".join(f"; {each}" for each in stacks)


# ---- what was survived


def _restarts(history: RunHistory) -> Iterator[Diagnosis]:
    """Restarts of ranks; those after a hang with the stacks of the attempt that hung."""
    restarts = [each for each in history.events if each.get("kind") == "restart"]
    if not restarts:
        return
    last = restarts[-1]
    text = f"{len(restarts)}, the last before attempt {last['attempt']}: rank {last.get('rank')} {last.get('cause')}"
    text += f" ({at_step(last)}, {last.get('phase')})"
    stacks = read_stacks(history.run.incidents / str(last["attempt"] - 1)) if "silent" in last.get("cause", "") else []
    yield _found("restarts", text + "".join(f"; {each}" for each in stacks))


def _slow(history: RunHistory) -> Iterator[Diagnosis]:
    """The newest word of the ledger about throughput and slow ranks, unless they are over."""
    for kind in ("throughput", "straggler"):
        newest = history.newest(kind)
        if newest is not None and not newest.get("ended"):
            yield _found("slow", str(newest.get("text", kind)))


# ---- what a resume would meet


def _checkpoints(history: RunHistory) -> Iterator[Diagnosis]:
    """Checkpoints with files missing or of another size, and those that a resume set aside. Bytes are not compared."""
    folder = history.run.checkpoints
    for path in list_checkpoints(folder):
        if problem := quick_problem(path):
            yield _found("damaged_checkpoint", f"{path.name}: {problem}")
    aside = [path.name for path in list_folder(folder, "damaged-*")] if is_folder(folder) else []
    for name in aside:
        record = next(
            (
                each
                for each in reversed(history.events)
                if each.get("kind") == "checkpoint_damaged" and name.endswith(Path(str(each.get("path"))).name)
            ),
            {},
        )
        yield _found("set_aside", name + (f": {record['text']}" if record else ""))


def quick_problem(folder: Path) -> str:
    """What is wrong with the files of a checkpoint by their names and sizes; "" where nothing is."""
    try:
        manifest = read_manifest(folder)
    except IntegrityError as error:
        return str(error).removeprefix(f"{folder}: ")
    for name, (size, _) in manifest.files.items():
        path = folder / name
        if not is_file(path):
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size:,} bytes instead of {size:,}: it was cut"
    return ""


def _disk(history: RunHistory) -> Iterator[Diagnosis]:
    """Too little room for the next checkpoint."""
    if history.status in ("finished", "new"):
        return
    newest = next(iter(list_checkpoints(history.run.checkpoints)), None)
    if newest is None or quick_problem(newest):
        return
    needed, free = int(HEADROOM * read_manifest(newest).total_bytes), shutil.disk_usage(history.run.path).free
    if free < needed:
        yield _found("disk_full", f"{gigabytes(free)} are free, and the next checkpoint needs {gigabytes(needed)}")
