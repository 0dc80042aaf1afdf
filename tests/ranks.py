"""Distributed tests: call a function on ranks that are forks of a clean process.

    def test_something(run_ranks):
        results = run_ranks("tests/parallel/cases.py:some_case", 4, {"any": "JSON"})     # one per rank

The server is a process of its own, not pytest's: it has imported torch and hornbook, has one thread and has computed
nothing, so that a rank is a fork away (seconds less than a start of Python, and safe). A case is a module-level
function `case(place, *arguments)`; place is a `hornbook.parallel.world.RankInfo`. Arguments and results travel as JSON,
which keeps every bit of a float; tensors go through safetensors files in a folder given as an argument.

Whatever happens, nothing is left behind: a rank dies with the server, the server with pytest, and both at the limit.
"""

import contextlib
import faulthandler
import functools
import gc
import importlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes import Server, answer, die_with, sync_nothing

PRELOADED = (
    "encodings.idna",
    "hornbook.model.build_model",
    "hornbook.model.init.init",
    "hornbook.optim.build_optimizer",
    "hornbook.parallel.fully_sharded",
    "hornbook.parallel.parallelize",
    "numpy.ctypeslib",
    "safetensors.torch",
    "torch._dynamo",  # fully_shard imports it when it is first used, which takes seconds
)
LIMIT_SECONDS = 180.0
"""Of one call, by default: machines that tests run on stand still for seconds."""
GRACE_SECONDS = 2.0
"""After the first rank failed, for the others to fail too and say why."""
STACK_SECONDS = 10.0
"""For a rank to write its stacks."""
SLACK_SECONDS = 30.0
"""For the server to say that the limit has passed."""
LOST_PEER = "by peer"
"""In gloo's words when another rank is gone: a consequence, which is told after the causes."""


class RankError(AssertionError):
    """What the ranks of a call said before they died, causes before consequences."""


class RankServer:
    """Forks ranks on request. Call it: `server(address, world, *arguments, limit=seconds) -> [result of each rank]`."""

    def __init__(self) -> None:
        threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        self._server = Server("tests.ranks", dict.fromkeys(threads, "1"))

    def __call__(
        self,
        address: str,
        world: int,
        *arguments: Any,
        limit: float = LIMIT_SECONDS,
        grace: float = GRACE_SECONDS,
    ) -> list[Any]:
        """The JSON results of `world` ranks, in their order; RankError if any failed or the limit (seconds) passed."""
        request = {"address": address, "world": world, "arguments": arguments, "limit": limit, "grace": grace}
        reply = self._server.ask(request, limit + grace + SLACK_SECONDS)
        if "errors" in reply:
            raise RankError(f"{address} on {world} ranks\n" + "\n".join(reply["errors"]))
        return reply["results"]

    def close(self) -> None:
        """End the server and with it every rank."""
        self._server.close()


def serve(parent: int) -> None:
    """Answer requests, a line each, until the input ends."""
    die_with(parent)
    sync_nothing()
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    from hornbook.model.config.model_config import ModelConfig
    from hornbook.parallel.config import ParallelConfig
    from hornbook.run.job.run_inputs import load_kernels
    from hornbook.settings.resolve import resolve
    from hornbook.settings.training import TrainConfig

    torch.set_num_threads(1)
    resolve(None, (), environ={})  # builds the schemas of all settings, which takes a rank longer than its steps
    ParallelConfig.model_validate({})
    model = ModelConfig(layers=1, width=64, heads=2, dropout=0.1)
    load_kernels(model, TrainConfig.model_validate({"device": "cpu", "precision": "fp32"}), vocab=64)
    warnings.simplefilter("error")  # as in pytest's own process
    answer("ready")
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            answer(call(Path(folder), **request))
    os._exit(0)  # nothing is open; tearing torch down would take a second


def call(folder: Path, address: str, world: int, arguments: list[Any], limit: float, grace: float) -> dict[str, Any]:
    """Fork the ranks, wait for them, read what they wrote."""
    deadline = time.monotonic() + limit
    with contextlib.suppress(Exception):  # if it cannot be imported, the ranks say why
        find(address)
    assert not (lost := other_threads()), f"a fork would lose threads: {lost}"
    gc.freeze()  # what is here now no rank looks through, or copies
    pids = [fork_rank(folder, rank, world, address, arguments) for rank in range(world)]
    failed = wait(folder, pids, deadline, grace)
    if failed:
        errors = [complaint(folder, rank, status) for rank, status in failed.items()]
        return {"errors": sorted(errors, key=lambda error: LOST_PEER in error)}
    return {"results": [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]}


def other_threads() -> list[str]:
    """Names of the threads of this process besides the main one, and but that of Arrow's allocator, which survives."""
    tasks = [path for path in Path("/proc/self/task").iterdir() if path.name != str(os.getpid())]
    return [name for name in ((path / "comm").read_text().strip() for path in tasks) if name != "jemalloc_bg_thd"]


def wait(folder: Path, pids: list[int], deadline: float, grace: float) -> dict[int, int | None]:
    """Reap all; gives the wait status of the ranks that failed in the order of their ends, None: over the limit."""
    pidfds = {os.pidfd_open(pid): rank for rank, pid in enumerate(pids)}
    failed: dict[int, int | None] = {}
    poll = select.poll()
    for pidfd in pidfds:
        poll.register(pidfd, select.POLLIN)
    while pidfds:
        ended = poll.poll(max(0.0, deadline - time.monotonic()) * 1e3)
        if not ended:
            failed |= dict.fromkeys((rank for rank in pidfds.values() if rank not in failed), None)
            left = list(pidfds.values())
            dump_and_kill([pids[rank] for rank in left], [folder / f"{rank}.log" for rank in left])
            deadline = time.monotonic() + GRACE_SECONDS
        for pidfd, _ in ended:
            poll.unregister(pidfd)
            rank = pidfds.pop(pidfd)
            os.close(pidfd)
            _, status = os.waitpid(pids[rank], 0)
            if status and rank not in failed:
                failed[rank] = status
                deadline = min(deadline, time.monotonic() + grace)
    return failed


def dump_and_kill(pids: list[int], logs: list[Path]) -> None:
    """Make each write its stacks, then kill it."""
    before = {log: size(log) for log in logs}
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + STACK_SECONDS
    while any(size(log) == before[log] for log in logs) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)  # the first lines are there; the last ones are soon
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def size(log: Path) -> int:
    """Bytes of a file that may not be there yet."""
    return log.stat().st_size if log.exists() else 0


def complaint(folder: Path, rank: int, status: int | None) -> str:
    """What a rank that failed has to say."""
    log = (folder / f"{rank}.log").read_text(errors="replace") if (folder / f"{rank}.log").exists() else ""
    if status is None:
        cause = "was still running and was killed"
    elif os.WIFSIGNALED(status):
        cause = f"died of {signal.Signals(os.WTERMSIG(status)).name}"
    else:
        cause = "failed"
    return f"rank {rank} {cause}:\n{log[-6000:]}"


def fork_rank(folder: Path, rank: int, world: int, address: str, arguments: list[Any]) -> int:
    """Start one rank; returns its process id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with(parent)
        redirect(folder / f"{rank}.log")
        result = find(address)(place(folder, rank, world), *arguments)
        (folder / f"{rank}.json").write_text(json.dumps(result))
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, it is reported and the process ends
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def redirect(log: Path) -> None:
    """Input from nowhere; output, errors and, on SIGUSR2, stacks to a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    faulthandler.register(signal.SIGUSR2, file=2)


def find(address: str) -> Callable[..., Any]:
    """The function of `path/from/root.py:name`."""
    path, name = address.split(":")
    return getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)


def place(folder: Path, rank: int, world: int) -> Any:
    """The `RankInfo` of a rank whose world meets in a file of the folder."""
    from torch.distributed import FileStore

    from hornbook.parallel.world import RankInfo

    return RankInfo(rank, world, rank, functools.partial(FileStore, str(folder / "store"), world))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
