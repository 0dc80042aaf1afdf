"""How many ranks a run has: what a launcher started, what `--world` asks for, or the devices of this machine."""

from collections.abc import Mapping

import torch

from hornbook.errors import UsageError
from hornbook.parallel.config import FILL, axis_ranks
from hornbook.parallel.device import choose_device
from hornbook.run.launch.launcher_env import nodes_of, world_of
from hornbook.settings.layout.world import check_world, fill_world
from hornbook.settings.resolve import Resolved


def settle_ranks(resolved: Resolved, environ: Mapping[str, str], world: int | None = None) -> Resolved:
    """The recipe with a number in place of -1. `world`: the ranks that a person asked for; with none of a launcher,
    they are those of the devices of this machine, of which a CPU is one.

    Raises UsageError where the axes do not fit the number of ranks.
    """
    started = world_of(environ)
    if world is not None:
        if started not in (None, 1, world):
            raise UsageError(f"--world {world}: a launcher started {started} ranks; leave --world out")
        found = fill_world(resolved, world, "as --world asks", data=True)
        check_world(found.recipe.parallel, world, f"--world asks for {world} ranks")
        return found
    if FILL not in axis_ranks(resolved.recipe.parallel).values():
        return resolved
    if started is not None and started > 1:
        return fill_world(resolved, started, "as the launcher started")
    devices, nodes = _devices(resolved.recipe.train.device), nodes_of(environ)
    many = f"{nodes} machines with {devices} each" if nodes > 1 else "the devices of this machine"
    return fill_world(resolved, nodes * devices, many)


def _devices(name: str) -> int:
    """Devices of this machine that ranks may have; a CPU counts as one."""
    device = choose_device(name)
    return torch.cuda.device_count() if device.type == "cuda" and device.index in (None, 0) else 1
