"""Runs of several ranks for tests: each is a fork of a clean process that has hornbook loaded.

    started = launcher(folder, "parallel.data=2", faults=[{"rank": 1, "phase": "clip", "step": 5, "do": "SIGKILL"}])
    code = started.wait()

pytest's own process has threads and has computed, so it must not fork ranks; and a fresh Python takes seconds to
import torch. Faults are a plan (`--faults`), so every test is exact to the step; what no user's plan has strikes
here. Whatever happens, a run ends with the server, and the server with pytest.
"""

import contextlib
import gc
import importlib
import itertools
import json
import math
import mmap
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

import hornbook.cli.main
import hornbook.cli.train.train
import hornbook.model.generate.generate
import hornbook.run.launch.launch
import hornbook.run.launch.supervisor
import hornbook.run.loop.training_loop
from hornbook.cli.train.dry_run import describe_job
from hornbook.files.run_directory import RunDir
from hornbook.parallel.engine import Engine
from hornbook.run.checkpoints import memory_copies
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Start
from hornbook.run.job.run_inputs import compile_for
from hornbook.run.launch.launch import read_inputs
from hornbook.run.machine.deep import slots
from hornbook.run.machine.environment import PACKAGES, code_digest, package_version
from hornbook.run.observe import audit
from hornbook.settings.resolve import resolve
from tests.processes import Server, answer, die_with, outlive_parent, sync_nothing, wait_until
from tests.run.guard.poison import poison

USUAL = "HORNBOOK_TEST_RUN"
"""Environment variable: settings of a run, as JSON, for the server to prepare itself with."""
LIMIT_SECONDS = 120.0
"""Of a run of a second or two; machines that tests run on stand still for seconds."""
SLACK_SECONDS = 30.0
"""For the server to answer."""
CONSTANTS = {
    "exchange": "hornbook.run.checkpoints.rank_exchange",
    "async_checkpointer": "hornbook.run.loop.async_checkpointer",
    "interval": "hornbook.run.checkpoints.interval",
    "deadline": "hornbook.run.job.deadline",
    "supervisor": "hornbook.run.launch.supervisor",
    "run_lock": "hornbook.files.run_lock",
}
"""Modules whose constants a test may set."""


OURS = ("orphan", "poison", "truncate", "one GPU", "end token", "SIGSEGV", "bad slots")
OURS += ("flip copies", "tear copy", "flip weight", "not finite", "wrong again", "kill youngest")
"""Faults that no plan of a user has."""
SIGNALS = {"SIGKILL": "kill9", "SIGSTOP": "stop", "SIGTERM": "sigterm", "SIGINT": "sigint", "SIGUSR1": "sigusr1"}


def planned(fault: Mapping[str, Any]) -> dict[str, Any] | None:
    """A fault as a plan has it; None for one of ours. `do`: the name of a signal, or of an error to raise."""
    if fault["do"] in OURS:
        return None
    where = {"step": 0, "rank": "every", "generation": "every"} | {key: fault[key] for key in PLACE if key in fault}
    rest = {key: value for key, value in fault.items() if key not in (*PLACE, "do")}
    if fault["do"] in SIGNALS:
        return {"do": SIGNALS[fault["do"]], "at": where, **rest}
    if fault["do"] in ("slow", "nan_batch", "inf_grad", "bitflip_grad"):
        return {"do": fault["do"], "at": where, **rest}
    return {"do": "exc", "error": fault["do"], "at": where, **rest}


PLACE = ("step", "phase", "rank", "generation")


@dataclass
class Started:
    """A run that was started."""

    launcher: "Launcher"
    pid: int
    log: Path

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        """Its exit code, negative for a signal; fails (and kills it) after so many seconds."""
        code = self.launcher.wait(self.pid, seconds)
        assert code is not None, f"still running after {seconds} s:\n{self.text}"
        return code

    @property
    def text(self) -> str:
        """What it wrote to stdout and stderr."""
        return self.log.read_text(errors="replace")

    def children(self) -> list[int]:
        """Process ids of its ranks."""
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(word) for word in found.read_text().split()] if found.exists() else []


class Launcher:
    """The test's side of the server."""

    def __init__(self, words: Sequence[str]) -> None:
        """`words`: settings of a run like those that will be started."""
        # The environment of a session fixture may have a -q or -v of an earlier test.
        speech = {"HORNBOOK_QUIET": "", "HORNBOOK_VERBOSE": ""}
        self._server = Server("tests.run.launcher", speech | {USUAL: json.dumps(words)})

    def start(
        self,
        words: Sequence[str],
        log: Path,
        faults: Sequence[dict[str, Any]] = (),
        environ: Mapping[str, str] | None = None,
        folder: Path | None = None,
        **constants: Any,
    ) -> Started:
        """Begin `hornbook WORDS` in a folder; constants (`module__NAME=value`) replace those of `CONSTANTS`."""
        plan = [fault for fault in map(planned, faults) if fault is not None]
        if plan:
            path = log.with_suffix(".plan.toml")
            path.write_text(tomli_w.dumps({"faults": plan}))
            words = [*words, "--faults", str(path)]
        ours = [fault for fault in faults if fault["do"] in OURS]
        request = {"words": list(words), "log": str(log), "faults": ours, "constants": constants}
        request |= {"do": "start", "environ": dict(environ or {}), "folder": folder and str(folder)}
        return Started(self, self._server.ask(request, SLACK_SECONDS), log)

    def wait(self, pid: int, seconds: float) -> int | None:
        """Exit code of a run, None if it had to be killed."""
        return self._server.ask({"do": "wait", "pid": pid, "seconds": seconds}, seconds + SLACK_SECONDS)

    def close(self) -> None:
        """End the server, and every run with it."""
        self._server.close()


def serve(parent: int) -> None:
    """Answer until the input ends. What every command would read anew is read before."""
    die_with(parent)
    sync_nothing()
    prepare(json.loads(os.environ.pop(USUAL)))
    gc.collect()
    gc.freeze()
    answer("ready")
    pids: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "start":
            said = start(request)
            pids.add(said)
        else:
            said = wait(request["pid"], request["seconds"])
            pids.discard(request["pid"])
        answer(said)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def prepare(words: Sequence[str]) -> None:
    """Import, build and load what every run would, for all forks: schemas, kernels, versions of packages."""
    hornbook.run.launch.supervisor.preload()
    resolved, usual = resolve(None, words, environ={}), Start("start", quiet=True)
    describe_job(resolved, RunDir(Path("none")), usual)
    inputs = read_inputs(resolved, usual)
    inputs.loader.index.batch(np.arange(1), 1)
    compile_for(inputs)
    for package in PACKAGES:
        package_version(package)
    code_digest()


def start(request: dict[str, Any]) -> int:
    """Fork a process that is the command line."""
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        die_with(server)
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for source, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        sys.argv = ["hornbook", *request["words"]]
        os.chdir(request["folder"] or os.curdir)
        os.environ |= request["environ"]
        sys.path += filter(None, request["environ"].get("PYTHONPATH", "").split(os.pathsep))
        warnings.simplefilter("error")
        strike(request["faults"])
        for name, value in request["constants"].items():
            module, constant = name.split("__")
            setattr(importlib.import_module(CONSTANTS[module]), constant, value)
        code = hornbook.cli.main.main(request["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid: int, seconds: float) -> int | None:
    """Exit code of a run, None if it had to be killed."""
    pidfd = os.pidfd_open(pid)
    ready, _, _ = select.select([pidfd], [], [], seconds)
    os.close(pidfd)
    if not ready:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if ready else None


def strike(faults: list[dict[str, Any]]) -> None:
    """From now on a rank that enters a phase looks whether a fault of ours waits for it there, in any generation."""
    from hornbook.run.job.heartbeat import Heartbeat

    for fault in faults:
        if fault["do"] == "bad slots":
            break_slots(fault["slots"])
    original, struck = Heartbeat.enter, mmap.mmap(-1, mmap.PAGESIZE)  # shared with all ranks

    def enter(self: Heartbeat, phase: str, at: Any) -> None:
        original(self, phase, at)
        for number, fault in enumerate(faults):
            wanted, place = {"rank": self.rank, "phase": phase, "step": at.step}, 8 * number + self.rank
            if all(fault.get(key, value) == value for key, value in wanted.items()) and not struck[place]:
                struck[place] = fault["do"] in ONCE
                act(fault)

    Heartbeat.enter = enter


def act(fault: dict[str, Any]) -> None:
    """`orphan` has the rank outlive its supervisor. `poison` spoils samples, `one GPU` is all that the rank sees from
    now on, `end token` all that it chooses. `flip copies` damages the copies in memory, `flip weight` a weight, `tear
    copy` kills in the next copy, and from `not finite` on no gradient is finite.
    """
    if fault["do"] in ONCE:
        ONCE[fault["do"]](fault)
        return
    match fault["do"]:
        case "orphan":
            outlive_parent()
        case "truncate":
            os.truncate(fault["path"], 0)
        case "poison":
            if State.forward_backward.__module__ == State.__module__:
                poison((range(fault["first"], fault["end"]), math.nan))
        case "one GPU":
            torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
        case _:
            hornbook.model.generate.generate.choose_token = lambda *_: fault["id"]


def flip_copies() -> None:
    """Flip a bit in the middle of every copy of the state in memory, of all ranks."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            file, size = int(entry.name), os.stat(entry).st_size
            if "memfd:copy-" in os.readlink(entry) and size:
                os.pwrite(file, bytes([os.pread(file, 1, size // 2)[0] ^ 1]), size // 2)


def break_gradients() -> None:
    """From now on no gradient is finite."""
    clip = Engine.clip_gradients

    def clip_gradients(self: Engine, how: Any, limits: Any = None) -> torch.Tensor:
        for parameter in self.named_parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(math.nan)
        return clip(self, how, limits)

    Engine.clip_gradients = clip_gradients


def die_in_next_copy() -> None:
    """The rank dies in its next copy of the state, once the copy that was there is gone."""
    memory_copies._digest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)


def kill_youngest() -> None:
    """Kill the process that this rank's supervisor forked last, once there are more than two."""
    children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
    wait_until(lambda: len(children.read_text().split()) == 4)
    os.kill(int(children.read_text().split()[-1]), signal.SIGKILL)


def break_slots(numbers: list[int]) -> None:
    """In these slots every product has another result."""
    multiply, rounds = slots.golden_products, itertools.count()

    def golden_products(device: torch.device, slot: int) -> dict[str, list[str]]:
        found = multiply(device, slot)
        return {name: [f"{next(rounds)}" for _ in each] for name, each in found.items()} if slot in numbers else found

    slots.golden_products = golden_products


def flip_weight() -> None:
    """Flip a bit of the last weight of the model that this rank holds."""
    (state,) = [each for each in gc.get_objects() if type(each) is State]
    weight = list(state.engine.shards.values())[-1].tensor.detach().view(-1).view(torch.int32)
    weight[-1] ^= 1 << 12


def compute_wrongly(*, always: bool) -> None:
    """From now on gradients that are computed again have other bits: always the same ones, or others each time."""
    gradients, calls = audit.microbatch_gradients, itertools.count(2)

    def wrong(*arguments: Any) -> list[torch.Tensor]:
        factor = 1.5 if always else next(calls)
        return [each * factor for each in gradients(*arguments)]

    audit.microbatch_gradients = wrong


ONCE: dict[str, Callable[[dict[str, Any]], None]] = {
    "flip copies": lambda _: flip_copies(),
    "tear copy": lambda _: die_in_next_copy(),
    "flip weight": lambda _: flip_weight(),
    "not finite": lambda _: break_gradients(),
    "wrong again": lambda fault: compute_wrongly(always=fault["always"]),
    "kill youngest": lambda _: kill_youngest(),
    "SIGSEGV": lambda _: os.kill(os.getpid(), signal.SIGSEGV),
    "bad slots": lambda _: None,
}
"""Of ours, those that strike each rank once, in whatever generation comes there first."""


if __name__ == "__main__":
    serve(int(sys.argv[1]))
