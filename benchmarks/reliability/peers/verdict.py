"""What a resume came to, told from data: the uninterrupted run's steps beside those of the resumed one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.reliability.peers.sides import STEPS, Facts

KINDS = {
    "equal": "ends as the uninterrupted run, to the bit",
    "older": "the same, from an older checkpoint",
    "anew": "the same, but from step 0",
    "wrong": "trains on to another result, without an error",
    "refuses": "ends with an error that names the checkpoint or its file",
    "crashes": "ends with another error",
}


@dataclass(frozen=True)
class Verdict:
    """Of one resume."""

    kind: str
    """One of `KINDS`."""
    words: str = ""


def judge(reference: Facts, found: Facts, code: int, said: str, newest: int, names: Sequence[str]) -> Verdict:
    """The verdict on a process that ended with `code` and wrote `said`.

    newest: step of the newest checkpoint that was begun; names: of files and folders of checkpoints, by which an
    error is a refusal.
    """
    if code != 0:
        error = error_of(said)
        known = any(name in error for name in names)
        late = f", after step {max(found.steps)}" if found.begins else ""
        return Verdict("refuses" if known else "crashes", f"{error[:160]}{late}")
    if found.begins == 0:
        return Verdict("wrong", "ends without a step")
    if is_equal(reference, found):
        older = found.begins - 1 < newest
        kind = "anew" if found.begins == 1 else "older" if older else "equal"
        return Verdict(kind, f"from step {found.begins - 1}")
    return Verdict("wrong", f"from step {found.begins - 1}: {other(reference, found)}")


def is_equal(reference: Facts, found: Facts) -> bool:
    """Whether data, losses and the final state are those of the uninterrupted run, bit for bit."""
    steps = all(
        found.steps.get(step, {}).get(key, "none") == reference.steps[step][key]
        for step in range(1, STEPS + 1)
        for key in ("data", "loss")
    )
    return steps and found.final == reference.final != {}


def other(reference: Facts, found: Facts) -> str:
    """What of the state with which it goes on is not that of the uninterrupted run before that step."""
    begun, whole = found.steps[found.begins], reference.steps.get(found.begins, {})
    names = [key for key in begun if key != "loss" and begun[key] != whole.get(key)]
    return f"other {', '.join(names)}" if names else "the same state at first, another result"


def error_of(said: str) -> str:
    """The line with the error in what a process wrote, without its paths' folders."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    chosen = (errors or [line for line in lines if "error" in line.lower()] or lines or ["no word"])[-1]
    return re.sub(r"(/[^\s:'\"]+)+/", "", chosen)
