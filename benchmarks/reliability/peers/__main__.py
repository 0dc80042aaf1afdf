"""The same kill points and the same damage for hornbook, transformers' Trainer and Lightning: who resumes, and how.

    python -m benchmarks.reliability.peers [--side NAME ...] [--points 10] [--again]

Each trains a small transformer for 16 steps with a save every four, by its documentation. Kill points: `kills.py`
kills the process after the n-th system call of the save at step 8. Damage: a run dies before step 11, its newest
checkpoint is damaged (`damage.py`). Then the command that started it is given once more, and the run is compared with
the uninterrupted one: data and losses of all steps, weights and moments at the end. What is on file is not tried
again, so a run that was ended goes on.

    BENCH_LIGHTNING_PYTHON=INTERPRETER   one that has lightning
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.reliability import kill
from benchmarks.reliability.peers import damage, kills, verdict
from benchmarks.reliability.peers.sides import EVERY, KILLED, SAVED, STEPS, Place, Side, run, sides

NAME = "peers"


class Trials:
    """All trials of one side."""

    def __init__(self, side: Side, folder: Path, data: Path) -> None:
        """`folder`: for its runs; `data`: hornbook's prepared ones. Makes the uninterrupted run, twice."""
        self.side, self._folder, self._data = side, folder, data
        folder.mkdir()
        whole, again = self._place("whole"), self._place("again")
        for place in (whole, again):
            done = run(side.command(place, None), place)
            if done.returncode != 0:
                raise RuntimeError(f"{side.name}: {verdict.error_of(done.stderr)}")
        self._whole = side.facts(whole)
        if not verdict.is_equal(self._whole, side.facts(again)):
            raise RuntimeError(f"{side.name}: two uninterrupted runs differ, so nothing can be said")
        self._names = sorted({path.name for path in whole.run.rglob("*")})
        newest = damage.bytes_of(whole.run / side.newest)
        self._first_save = damage.bytes_of(whole.run) - (STEPS // EVERY - 1) * newest
        self._save = newest

    def _place(self, name: str) -> Place:
        shutil.rmtree(self._folder / name, ignore_errors=True)
        return Place(self._folder / name, self._data)

    def resumed(self, place: Place, newest: int = SAVED) -> verdict.Verdict:
        """Start what is there once more, and judge."""
        done = run(self.side.command(place, None), place)
        said = f"{done.stdout}\n{done.stderr}"
        return verdict.judge(self._whole, self.side.facts(place), done.returncode, said, newest, self._names)

    def count_calls(self) -> int:
        """Calls of the save."""
        return len(kills.calls(self.side, self._place("calls"), None))

    def kill(self, after: int) -> dict[str, Any]:
        """Kill after so many calls of the save, and resume."""
        place = self._place("kill")
        made = kills.calls(self.side, place, after)
        found = self.resumed(place, 0)
        return {"after": made[-1].words} | asdict(found)

    def damaged(self, case: str) -> dict[str, Any]:
        """Damage what a killed run has left, and resume."""
        place = self._place("damaged")
        before = self._folder / "before"
        if not before.exists():
            run(self.side.command(self._place("before"), KILLED), Place(before, self._data))
        shutil.copytree(before, place.path)
        try:
            damage.DAMAGE[case](self.side, place.run)
        except damage.NotThere as why:
            return {"kind": "", "words": str(why)}
        return asdict(self.resumed(place))

    def full_disk(self) -> dict[str, Any]:
        """The disk has room for one save and half of another; then there is room, and the command is given again."""
        place = self._place("full")
        if not damage.small_disk(place.disk, self._first_save + self._save // 2):
            return {"kind": "", "words": "no small disk can be mounted here"}
        try:
            done = run(self.side.command(place, None), place)
            damage.enlarge(place.disk)
            ended = "trained to the end" if done.returncode == 0 else f"ended: {verdict.error_of(done.stderr)[:120]}"
            found = asdict(self.resumed(place, EVERY))
        finally:
            damage.unmount(place.disk)
        return found | {"first": ended}


def points(count: int, calls: int) -> list[int]:
    """`count` of 1 to `calls`, evenly, with the first and the last."""
    return sorted({1 + round(each * (calls - 1) / max(count - 1, 1)) for each in range(count)})


def trials_of(side: Side, known: dict[str, Any], folder: Path, data: Path, count: int) -> Iterator[dict[str, Any]]:
    """What is known of a side, after each trial."""
    found: dict[str, Any] = {"version": side.version, "calls": 0, "kills": {}, "damage": {}} | known
    trials = Trials(side, folder, data)
    for case in (*damage.DAMAGE, damage.FULL_DISK):
        if case not in found["damage"]:
            found["damage"][case] = trials.full_disk() if case == damage.FULL_DISK else trials.damaged(case)
            print(side.name, case, found["damage"][case], sep=" | ", flush=True)
            yield found
    if not kills.can_trace():
        found["missing_kills"] = "strace is not there, or may not trace"
        yield found
        return
    found["calls"] = found["calls"] or trials.count_calls()
    for after in points(count, found["calls"]):
        if str(after) not in found["kills"]:
            found["kills"][str(after)] = trials.kill(after)
            print(side.name, f"kill {after} of {found['calls']}", found["kills"][str(after)], sep=" | ", flush=True)
            yield found


def main(names: list[str], count: int, *, again: bool) -> None:
    """Try, print, write results/peers.json after each trial."""
    results = {} if again and not names else report.known(NAME)
    figures = {"steps": STEPS, "every": EVERY, "kinds": verdict.KINDS, "sides": results.get("sides", {})}
    with tempfile.TemporaryDirectory() as name:
        kill.prepare(Path(name))
        for number, side in enumerate(sides().values()):
            if names and side.name not in names:
                continue
            if side.missing:
                figures["sides"].setdefault(side.name, {"missing": side.missing})
                report.write(NAME, figures)
                continue
            known = {} if again else figures["sides"].get(side.name, {})
            known = {} if "missing" in known else known
            for found in trials_of(side, known, Path(name) / str(number), Path(name) / "data", count):
                figures["sides"][side.name] = found
                report.write(NAME, figures)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reliability.peers")
    parser.add_argument("--side", action="append", default=[], choices=tuple(sides()))
    parser.add_argument("--points", type=int, default=10, help="of the kills within a save, for each side")
    parser.add_argument("--again", action="store_true", help="try what is on file once more")
    given = parser.parse_args()
    sys.exit(main(given.side, given.points, again=given.again))
