"""Ranks of the next generation, forked ahead: they have met and built the model, and wait for a failure.

What a restart then still does is to open the ledger and to read the state. They hold no weights until then, as far as
memory goes: pages that nobody wrote take none. On a GPU they would, and a second context besides, so there are none.
"""

import functools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import Exit
from hornbook.parallel.world import RankInfo
from hornbook.run.checkpoints.memory_copies import CopyMemory
from hornbook.run.job.heartbeat import Heartbeat, shared_heartbeats
from hornbook.run.job.job import Job
from hornbook.run.job.run_inputs import Inputs
from hornbook.run.job.signals import StopSignals, stop_signals_blocked
from hornbook.run.launch.rank import Rank, end_ranks, fork_rank, wait_for_ends
from hornbook.run.ledger.ledger import At
from hornbook.run.loop.training_loop import Ready, get_ready

Follow = Callable[[int, int], Job]
"""In a rank of this number: the job of an attempt that the supervisor has begun."""
ReadyLoop = Callable[[Job, Ready], Exit]
_ORDER_BYTES = 64
"""Of an order in the pipe; each rank takes one."""


@dataclass(frozen=True)
class StandbyPlan:
    """What ranks on standby need to know."""

    inputs: Inputs
    follow: Follow
    loop: ReadyLoop
    signals: StopSignals
    memory: CopyMemory | None

    @property
    def ranks(self) -> int:
        """For how many ranks they are built; a generation of fewer, some slots being left out, has none on standby."""
        return self.inputs.recipe.parallel.world


class Standby:
    """Waiting ranks, one for each device."""

    def __init__(self, plan: StandbyPlan, devices: Sequence[int]) -> None:
        """Fork them. The caller has no threads."""
        self.devices = list(devices)
        self._store = os.memfd_create("store")
        self._reader, self._writer = os.pipe()
        connect = functools.partial(FileStore, f"/proc/self/fd/{self._store}", len(devices))
        self.ranks: list[Rank] = []
        with stop_signals_blocked():
            for heartbeat in shared_heartbeats(len(devices)):
                device = devices[heartbeat.rank]
                info = RankInfo(heartbeat.rank, len(devices), device, connect, same_devices=True)
                self.ranks.append(fork_rank(heartbeat, functools.partial(self._wait, plan, info, heartbeat)))

    @property
    def whole(self) -> bool:
        """Whether every rank still waits."""
        return not wait_for_ends(self.ranks, 0.0)

    def go(self, attempt: int) -> None:
        """Let them train, as ranks of this attempt."""
        orders = json.dumps({"attempt": attempt}).encode().ljust(_ORDER_BYTES)
        os.write(self._writer, orders * len(self.ranks))

    def close(self) -> None:
        """Kill and reap them."""
        end_ranks(self.ranks)
        for descriptor in (self._store, self._reader, self._writer):
            os.close(descriptor)

    def _wait(self, plan: StandbyPlan, info: RankInfo, heartbeat: Heartbeat) -> Exit:
        """The life of a rank."""
        os.close(self._writer)
        plan.signals.pass_on = None  # that of the supervisor
        plan.signals.patient, plan.signals.announces = True, info.is_rank0 and os.isatty(2)
        heartbeat.enter("setup", At())
        with get_ready(plan.inputs, info) as ready:
            order = os.read(self._reader, _ORDER_BYTES)
            if not order:
                return Exit.RESUMABLE
            heartbeat.begin()  # hours of waiting are no measure of a set-up
            heartbeat.enter("setup", At())
            job = plan.follow(info.rank, json.loads(order)["attempt"])
            return plan.loop(job.on_rank(info, heartbeat, plan.memory), ready)
