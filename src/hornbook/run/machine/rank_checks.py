"""Measures what several ranks need: two processes meet, all-reduce, and notice that the other is gone.

`measure_ranks` runs this file as a program, which forks: its caller may have threads or a CUDA context, and neither
survives a fork.
"""

import contextlib
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

REDUCE_BYTES = 64 << 20
REDUCES = 3
SMALL_REDUCES = 50
JOIN_SECONDS = 20.0
LOST_SECONDS = 0.5
"""Time-out of the collective that one rank does not join."""
NOTICED_SECONDS = 10.0
"""Longest time in which the other rank must notice, on a busy machine too."""


def measure_ranks(backend: str) -> dict[str, Any]:
    """The measurements of rank 0 of two ranks, or `{"error": text}`; returns within about 3 JOIN_SECONDS."""
    with tempfile.TemporaryDirectory(prefix="hornbook-") as folder:
        command = [sys.executable, "-m", __name__, backend, f"{folder}/store", str(REDUCE_BYTES)]
        ranks = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            said, complaints = ranks.communicate(timeout=3 * JOIN_SECONDS)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer in {3 * JOIN_SECONDS:g} s"}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(ranks.pid, signal.SIGKILL)
            ranks.communicate()
    if ranks.returncode:
        return {"error": (complaints.strip().splitlines() or [f"exit code {ranks.returncode}"])[-1]}
    return json.loads(said)


def be_both(backend: str, store: str, size_bytes: int) -> NoReturn:
    """Fork into the two ranks; rank 0 prints its measurements."""
    other, code = os.fork(), 1
    try:
        found = take_part(backend, store, size_bytes, rank=0 if other else 1)
        if other:
            code = os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])
            print(json.dumps(found), flush=True)
        else:
            code = 0
    except Exception:  # noqa: BLE001 - the caller shows its last line
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)  # a group that lost a rank keeps a thread, over which a normal exit would abort


def take_part(backend: str, path: str, size_bytes: int, rank: int) -> dict[str, Any]:
    """One of the two ranks: join, all-reduce, measure, notice a missing rank."""
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    store = FileStore(path, 2)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo",
        store=PrefixStore("group", store),
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=JOIN_SECONDS),
    )
    numbers = torch.arange(1000, device=device, dtype=torch.float32)
    total = numbers * (rank + 1)
    dist.all_reduce(total)
    small, large = torch.zeros(1, device=device), torch.zeros(size_bytes // 4, device=device)
    return {
        "right": bool(torch.equal(total, 3 * numbers)),
        "small_seconds": statistics.median(_seconds(small) for _ in range(SMALL_REDUCES)),
        "large_seconds": min(_seconds(large) for _ in range(REDUCES)),
        "lost_seconds": _miss(rank, store),
    }


def _seconds(tensor: torch.Tensor) -> float:
    wait: Callable[[], None] = torch.cuda.synchronize if tensor.is_cuda else lambda: None
    wait()
    begun = time.perf_counter()
    dist.all_reduce(tensor)
    wait()
    return time.perf_counter() - begun


def _miss(rank: int, store: Store) -> float | None:
    """Seconds until rank 0 notices that rank 1 does not join a collective; None if it does not notice."""
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    dist.barrier(group)
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=LOST_SECONDS), group)
    if rank == 1:
        with contextlib.suppress(RuntimeError):  # rank 0 did not notice, and says so itself
            store.wait(["noticed"], datetime.timedelta(seconds=NOTICED_SECONDS))
        return None
    begun = time.perf_counter()
    try:
        dist.all_reduce(torch.zeros(1), group=group)
    except RuntimeError:
        seconds = time.perf_counter() - begun
        store.set("noticed", "")
        return seconds if seconds < NOTICED_SECONDS else None
    return None


if __name__ == "__main__":
    be_both(sys.argv[1], sys.argv[2], int(sys.argv[3]))
