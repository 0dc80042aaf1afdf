"""The sections of docs/figures.md about hornbook beside peers: kill points and damage, and the trace of faults."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from benchmarks.report import rows_of, section

OURS = "hornbook"


def peers(found: dict[str, Any]) -> list[str]:
    """Who resumes after which kill and damage, who resumes wrongly, who refuses."""
    here = {name: each for name, each in _ours_first(found["sides"]).items() if "missing" not in each}
    cases = dict.fromkeys(case for each in here.values() for case in each["damage"])
    rows = [(case, *(_resume(each["damage"].get(case)) for each in here.values())) for case in cases]
    rows += [("killed within a save", *(_kills(each) for each in here.values()))]
    versions = [f"{name} {each['version']}" for name, each in here.items() if each["version"]]
    missing = [f"{name}: {each['missing']}." for name, each in found["sides"].items() if "missing" in each]
    return section(
        "Kills and damage beside peers",
        f"`python -m benchmarks.reliability.peers`: a small transformer, {found['steps']} steps, a save every",
        f"{found['every']}, each side by its documentation. Damage is done to the checkpoint of step 8 after a kill at",
        "step 10; `killed within a save` is SIGKILL after one of the system calls of that save that change the disk,",
        "evenly chosen. Then the same command again. `Lightning at its best` has no dropout, data in order and saves",
        "at the ends of epochs alone.",
        "",
        *(f"- {kind}: {words}" for kind, words in found["kinds"].items()),
        "",
        *([f"Versions: {', '.join(versions)}."] if versions else []),
        *missing,
        *rows_of(["", *here], rows),
    )


def _ours_first(sides: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: sides[name] for name in sorted(sides, key=lambda name: name != OURS)}


def _resume(each: Mapping[str, str] | None) -> str:
    """One cell: the verdict, and what is wrong or was said."""
    if each is None:
        return "not tried"
    if not each["kind"]:
        return each["words"]
    words = each["words"].split(": ", 1)[-1] if each["kind"] == "wrong" else each["words"][:80].replace("|", "\\|")
    return each["kind"] if each["kind"] == "equal" else f"{each['kind']}: {words}"


def _kills(side: Mapping[str, Any]) -> str:
    if "missing_kills" in side:
        return str(side["missing_kills"])
    counts = Counter(each["kind"] for each in side["kills"].values())
    told = ", ".join(f"{count} {kind}" for kind, count in counts.most_common())
    return f"{told} (of {side['calls']} calls)"


def trace(found: dict[str, Any]) -> list[str]:
    """Time and goodput of one run under one trace of faults."""
    sides = _ours_first(found["sides"])
    whole = {name: each for name, each in sides.items() if {"faults", "undisturbed"} <= each.keys()}
    ours = whole.get(OURS)
    rows = [_job(name, each, ours) for name, each in whole.items()]
    header = ("", "s without faults", "s with faults", "lost s", "goodput", "hornbook takes x", "its loss is x")
    missing = [f"{name}: {sides[name].get('missing', 'not measured')}." for name in sides if name not in whole]
    versions = [f"{name} {each['version']}" for name, each in whole.items() if each["version"]]
    again = [
        (f"{fault['kind']}, step {fault['step']}, rank {fault['rank']}", *(_again(each, n) for each in whole.values()))
        for n, fault in enumerate(found["trace"])
    ]
    return section(
        "One trace of faults beside peers",
        f"`python -m benchmarks.reliability.trace`: {found['steps']} steps on two ranks, a checkpoint every",
        f"{found['every']}, faults of seed {found['seed']} from outside at the same steps for all. Collectives of",
        f"torchrun and Lightning fail after {found['timeout']} s instead of torch's 30 minutes, in their favour;",
        "torchft has the 5 and 30 s of its example. A start with a damaged checkpoint is helped by an operator who",
        f"needs no time. A side has {found['limit']:.0f} s. Goodput: time without faults over time with",
        "them, of the same side. Goal: at most half of the time of the others.",
        "",
        *([f"Versions: {', '.join(versions)}."] if versions else []),
        *missing,
        *rows_of((*header, "starts", "steps again", "weights at the end"), rows),
        "Seconds from each fault to the first step that was not made before:",
        *rows_of(["fault", *whole], again),
    )


def _job(name: str, side: Mapping[str, Any], ours: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """One line: times and what came out."""
    plain, struck = side["undisturbed"], side["faults"]
    ended, lost = bool(struck["weights"]), struck["seconds"] - plain["seconds"]
    more, less = ("", "") if ended else ("> ", "< ")
    beside = ["", ""]
    if ours is not None and name != OURS:
        our_loss = ours["faults"]["seconds"] - ours["undisturbed"]["seconds"]
        beside = [f"{less}{ours['faults']['seconds'] / struck['seconds']:.2f}", f"{less}{our_loss / lost:.2f}"]
    end = "those without faults" if struck["weights"] == plain["weights"] else "others"
    end = end if ended else f"none: at step {struck['step']} when time was over"
    share = f", of {struck['share_of_data']:.0%} of the data" if "share_of_data" in struck else ""
    seconds = [f"{plain['seconds']:.0f}", f"{more}{struck['seconds']:.0f}", f"{more}{lost:.0f}"]
    goodput = f"{less}{plain['seconds'] / struck['seconds']:.0%}"
    return name, *seconds, goodput, *beside, struck["starts"], struck["steps_again"], end + share


def _again(side: Mapping[str, Any], number: int) -> str:
    struck = side["faults"]["faults"]
    seconds = struck[number].get("seconds") if number < len(struck) else None
    return "" if seconds is None else f"{seconds:.1f}"


SECTIONS = (peers, trace)
