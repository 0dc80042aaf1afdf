"""The rank of a process that torchrun or Slurm started, from the variables that they set.

`launcher_rank(os.environ, recipe.parallel.world)` is None where hornbook starts its own ranks. Otherwise this process
is one rank of the run, and goes on with `run/launch/rendezvous.py`.
"""

import functools
import re
from collections.abc import Mapping

from hornbook.errors import UsageError
from hornbook.parallel.world import RankInfo
from hornbook.run.launch.rendezvous import Address, open_store

_PORTS = 4096
"""Slurm jobs use one of the last 4096 ports, which systems do not assign by themselves (as JAX does)."""
_NAME = re.compile(r"(?:[^\[\],]|\[[^\]]*\])+(?=,|$)")
_BRACKET = re.compile(r"\[([^\]]*)\]")


def launcher_rank(environ: Mapping[str, str], size: int) -> RankInfo | None:
    """The rank that a launcher gave this process; None without a launcher and in a world of one.

    size: parallel.data. Raises UsageError: a variable is missing or invalid, or the sizes differ.
    """
    # srun started this process; a batch script has a SLURM_PROCID too, but there hornbook starts the ranks.
    in_slurm_step = "SLURM_PROCID" in environ and "SLURM_STEP_NODELIST" in environ
    if "RANK" in environ or ("WORLD_SIZE" in environ and not in_slurm_step):  # in a step it is the batch script's own
        source, remedy = "torchrun (WORLD_SIZE)", "with --nproc-per-node"
        names, address_of = ("WORLD_SIZE", "RANK", "LOCAL_RANK"), _torchrun_address
    elif in_slurm_step:
        source, remedy = "Slurm (SLURM_NTASKS)", "with --ntasks"
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
        names, address_of = (tasks, "SLURM_PROCID", "SLURM_LOCALID"), _slurm_address
    else:
        return None
    ranks = _number(environ, names[0], 1)
    rank = _number(environ, names[1], 0, ranks - 1)
    if ranks == 1:
        return None
    connect = functools.partial(open_store, address_of(environ, rank == 0))
    info = RankInfo(rank, ranks, _number(environ, names[2], 0), functools.cache(connect))
    if ranks != size:
        raise UsageError(
            f"{source} started {ranks} ranks, and parallel.data is {size}: give --parallel.data {ranks}, "
            f"or start {size} {remedy}"
        )
    return info


def _torchrun_address(environ: Mapping[str, str], is_rank0: bool) -> Address:
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Address(_text(environ, "MASTER_ADDR"), _number(environ, "MASTER_PORT", 1, 65535), is_rank0, agent)


def _slurm_address(environ: Mapping[str, str], is_rank0: bool) -> Address:
    host = environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"])
    if "MASTER_PORT" in environ:
        return Address(host, _number(environ, "MASTER_PORT", 1, 65535), is_rank0)
    step = _number(environ, "SLURM_STEP_ID", 0) if "SLURM_STEP_ID" in environ else 0
    return Address(host, 65536 - _PORTS + (_number(environ, "SLURM_JOB_ID", 0) + step) % _PORTS, is_rank0)


def _text(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise UsageError(
            f"{name} is not set, though other variables of its launcher are: start every rank with torchrun or srun, "
            "or unset RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
    return text


def _number(environ: Mapping[str, str], name: str, least: int, most: int | None = None) -> int:
    text = _text(environ, name)
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least or (most is not None and int(text) > most):
        expected = f"a number of at least {least}" if most is None else f"a number from {least} to {most}"
        raise UsageError(f"{name} is {text!r}: {expected} is expected; start every rank with torchrun or srun")
    return int(text)


def first_host(nodes: str) -> str:
    """The first name of a Slurm list of nodes: `n[03-05,9],login` -> `n03`. Raises UsageError if it is none."""
    found = _NAME.match(nodes)
    name = _BRACKET.sub(lambda bracket: re.split("[-,]", bracket[1])[0], found[0]) if found else ""
    if not re.fullmatch(r"[A-Za-z0-9][\w.:-]*", name):
        raise UsageError(
            f"SLURM_STEP_NODELIST is {nodes!r}, which names no node: set MASTER_ADDR to the node of task 0"
        )
    return name
