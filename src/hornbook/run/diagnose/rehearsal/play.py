"""Plays the cases of a rehearsal: each run is a fork of this process, which has torch loaded and no threads.

A case is started, and resumed as a scheduler would until it is finished; then it is compared with a run that nobody
touched.
"""

import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hornbook.errors import Exit, HornbookError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.diagnose.rehearsal.cases import Case
from hornbook.run.diagnose.rehearsal.judge import differences, not_finite
from hornbook.run.diagnose.rehearsal.scaled_recipe import STEPS
from hornbook.run.job.control import stop_file
from hornbook.run.job.faults import FaultInjector
from hornbook.run.job.job import Start
from hornbook.run.job.run_inputs import compile_for
from hornbook.run.launch.launch import launch, read_inputs
from hornbook.run.launch.rank import die_with
from hornbook.run.launch.supervisor import preload
from hornbook.run.machine.choose_dtype import settle_precision
from hornbook.settings.resolve import Resolved, override, resolve
from hornbook.settings.sources import command_line_source

LIMIT_SECONDS = 180.0
"""Longest time of one start."""
MOST_STARTS = 4
POLL_SECONDS = 0.005
OUTSIDE_AT = 5
"""Steps on record when something is done from outside."""


@dataclass
class Played:
    """What became of a case."""

    words: str
    expected: str
    happened: str = ""
    seconds_lost: float = 0.0
    """Longer than the run that nobody touched."""
    rows: Sequence[int] = ()
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why it was not played; "": it was."""


class Rehearsal:
    """A scaled recipe, the folder of its runs, and the run without any fault."""

    def __init__(self, resolved: Resolved, folder: Path) -> None:
        self.resolved, self.folder = settle_precision(resolved), folder
        self.world = resolved.recipe.parallel.world
        self.evaluates = False
        """Whether the data has validation text."""
        self.reference, self.seconds = RunDir(folder / "reference"), 0.0

    def play_reference(self) -> None:
        """Train without interruption, twice: the first one compiles kernels. Raises HornbookError if that fails."""
        inputs = read_inputs(self.resolved, Start(quiet=True))
        self.evaluates = bool(inputs.corpus.validation)
        preload()  # what follows is done once here, and not by every run
        compile_for(inputs)
        for name in ("first", "reference"):
            run, began = RunDir(self.folder / name), time.monotonic()
            code = Process(self.resolved, run, Start(), run.path.with_suffix(".log")).wait()
            self.seconds = time.monotonic() - began
            if code != Exit.DONE:
                said = run.path.with_suffix(".log").read_text(errors="replace").strip().splitlines()[-5:]
                raise HornbookError(f"the scaled recipe does not train (exit code {code}):\n" + "\n".join(said))
        if found := differences(RunDir(self.folder / "first"), self.reference, STEPS):
            raise HornbookError(f"two runs of the scaled recipe differ, so nothing can be said of faults: {found[0]}")

    def play(self, number: int, case: Case) -> Played:
        """Play one case and compare."""
        played = Played(case.words, describe(case, self.world), rows=case.rows)
        played.skipped = self._why_not(case)
        if played.skipped:
            return played
        run, began = RunDir(self.folder / f"case-{number:02}"), time.monotonic()
        codes = self._starts(case, run, played)
        played.seconds_lost = max(time.monotonic() - began - self.seconds, 0.0)
        told = [code if code in ("0", "75", "9") else "died" for code in codes]
        if told != case.codes(self.world):
            played.problems.append(f"exit codes {', '.join(codes)} instead of {', '.join(case.codes(self.world))}")
        if codes[-1] == "0":
            self._judge(case, run, played)
        played.happened = happened(run, codes)
        return played

    def _why_not(self, case: Case) -> str:
        """Why a case cannot be played; "" where it can."""
        if case.ranks > self.world:
            return f"needs {case.ranks} ranks, the run has {self.world}: --parallel.data {case.ranks}"
        return "the data has no validation text" if case.evaluates and not self.evaluates else ""

    def _starts(self, case: Case, run: RunDir, played: Played) -> list[str]:
        """Start, and resume until it is done; returns the exit codes."""
        codes: list[str] = []
        recipe = override(self.resolved, [command_line_source(list(case.settings))]) if case.settings else self.resolved
        start = Start(faults=FaultInjector(case.plan(self.world)))
        for _ in range(MOST_STARTS):
            process = Process(recipe, run, start, run.path.with_suffix(".log"))
            outside = None if codes else self._outside(case, run, played)
            codes.append(str(process.wait(outside)))
            if left := process.left_behind():
                played.problems.append(f"processes left behind: {left}")
            stop_file(run).unlink(missing_ok=True)
            if codes[-1] == "0" or not run.recipe.exists():
                break
            recipe, start = resolve(str(run.recipe), (), environ={}), Start("resume")
        return codes

    def _outside(self, case: Case, run: RunDir, played: Played) -> Callable[[], bool] | None:
        """What is done from outside once the run has made some steps: called until it returns True."""
        if not case.outside:
            return None

        def act() -> bool:
            if not run.metrics.exists() or sum(1 for _ in read_records(run.metrics)) < OUTSIDE_AT:
                return False
            if case.outside == "stop_file":
                stop_file(run).touch()
                return True
            second = Process(resolve(str(run.recipe), (), environ={}), run, Start("resume"), self.folder / "second.log")
            if (code := second.wait()) != Exit.IN_USE:
                played.problems.append(f"a second start ended with exit code {code}, not {Exit.IN_USE.value}")
            return True

        return act

    def _judge(self, case: Case, run: RunDir, played: Played) -> None:
        records = list(read_records(run.events))
        kinds = [record["kind"] for record in records]
        wanted = [*case.ledger, "fault", *(["restart"] if case.ends == "restart" and self.world > 1 else [])]
        played.problems += [f"the ledger has no {kind}" for kind in wanted if kind not in kinds]
        if case.finite:
            played.problems += not_finite(run, STEPS, kinds.count("skip"))
        else:
            played.problems += differences(self.reference, run, STEPS)
        again = steps_again(run)
        if case.ends in ("stop", "finish") and again:
            played.problems.append(f"{again} steps were made twice")


class Process:
    """A fork that trains, in a session of its own; it dies with this process."""

    def __init__(self, resolved: Resolved, run: RunDir, start: Start, log: Path) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _train(parent, resolved, run, start, log)

    def wait(self, outside: Callable[[], bool] | None = None) -> int:
        """Its exit code, negative for a signal; it is killed after LIMIT_SECONDS."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            if outside is not None and outside():
                outside = None
            time.sleep(POLL_SECONDS)

    def left_behind(self) -> list[int]:
        """Processes of its session that live on five seconds later."""
        deadline = time.monotonic() + 5.0
        while (left := self._session()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _session(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                except OSError:
                    continue
                if int(session) == self.pid and state != "Z":
                    found.append(int(entry.name))
        return found


def _train(parent: int, resolved: Resolved, run: RunDir, start: Start, log: Path) -> None:
    """The whole life of the fork."""
    code: int = Exit.DEFECT
    try:
        os.setsid()
        die_with(parent)
        nothing = os.open(os.devnull, os.O_RDONLY)
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for source, target in ((nothing, 0), (written, 1), (written, 2)):
            os.dup2(source, target)
        code = launch(resolved, run, start)
    except HornbookError as error:
        code = error.exit_code
        sys.stderr.write(f"error {error}\n")
    except BaseException:  # noqa: BLE001 - the log has it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def describe(case: Case, world: int) -> str:
    """What is expected of a run, for people."""
    if case.finite:
        return "leaves the step out, stays finite"
    if case.ends == "restart":
        return "ranks restart, equal" if world > 1 else "ends; resume, equal"
    return {
        "finish": "goes on, equal",
        "stop": "saves, exit 75; resume, equal",
        "dies": "ends; resume, equal",
        "gives_up": "exit 9; resume, equal",
    }[case.ends]


def happened(run: RunDir, codes: Sequence[str]) -> str:
    """What a run made of its faults, in short."""
    records = list(read_records(run.events)) if run.events.exists() else []
    kinds = Counter(record["kind"] for record in records)
    counted = {"restart": "restart", "skip": "step left out", "checkpoint_damaged": "older checkpoint used"}
    words = [", then ".join("killed" if code.startswith("-") else f"exit {code}" for code in codes)]
    words += [f"{kinds[kind]} {text}" for kind, text in counted.items() if kinds[kind]]
    if again := steps_again(run):
        words.append(f"{again} step{'s' * (again > 1)} made again")
    return "; ".join(words)


def steps_again(run: RunDir) -> int:
    """How many steps on record were made more than once."""
    steps = [record["step"] for record in read_records(run.metrics)] if run.metrics.exists() else []
    return len(steps) - len(set(steps))
