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
    if _under_torchrun(environ):
        info, source, remedy = _torchrun_rank(environ), "torchrun (WORLD_SIZE)", "with --nproc-per-node"
    elif _in_slurm_step(environ):
        info, source, remedy = _slurm_rank(environ), "Slurm (SLURM_NTASKS)", "with --ntasks"
    else:
        return None
    if info is not None and info.size != size:
        raise UsageError(
            f"{source} started {info.size} ranks, and parallel.data is {size}: give --parallel.data {info.size}, "
            f"or start {size} {remedy}"
        )
    return info


def _under_torchrun(environ: Mapping[str, str]) -> bool:
    """Whether RANK is set, or WORLD_SIZE outside of a Slurm step (in one, it is the batch script's own)."""
    return "RANK" in environ or ("WORLD_SIZE" in environ and not _in_slurm_step(environ))


def _in_slurm_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process. A batch script has a SLURM_PROCID too, but there hornbook starts the ranks."""
    return "SLURM_PROCID" in environ and "SLURM_STEP_NODELIST" in environ


def _torchrun_rank(environ: Mapping[str, str]) -> RankInfo | None:
    size = _number(environ, "WORLD_SIZE", 1)
    rank = _number(environ, "RANK", 0, size - 1)
    if size == 1:
        return None
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address = Address(_text(environ, "MASTER_ADDR"), _number(environ, "MASTER_PORT", 1, 65535), rank == 0, agent)
    return _rank_info(rank, size, _number(environ, "LOCAL_RANK", 0), address)


def _slurm_rank(environ: Mapping[str, str]) -> RankInfo | None:
    size = _number(environ, "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS", 1)
    rank = _number(environ, "SLURM_PROCID", 0, size - 1)
    if size == 1:
        return None
    host = environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"])
    if "MASTER_PORT" in environ:
        port = _number(environ, "MASTER_PORT", 1, 65535)
    else:
        step = _number(environ, "SLURM_STEP_ID", 0) if "SLURM_STEP_ID" in environ else 0
        port = 65536 - _PORTS + (_number(environ, "SLURM_JOB_ID", 0) + step) % _PORTS
    return _rank_info(rank, size, _number(environ, "SLURM_LOCALID", 0), Address(host, port, rank == 0))


def _rank_info(rank: int, size: int, local_rank: int, address: Address) -> RankInfo:
    return RankInfo(rank, size, local_rank, functools.cache(functools.partial(open_store, address)))


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
