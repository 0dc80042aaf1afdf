"""What the variables that launchers set say of this process: its rank, or its machine.

`launched(os.environ, recipe.parallel)` is None where hornbook starts all ranks itself. A `RankInfo` says that this
process is one rank of the run (torchrun, Slurm, mpirun), a `Node` that it starts those of one machine of several
(Kubernetes, ssh: `hornbook.run.launch.node`). Ranks go on with `rendezvous.py`.
"""

import functools
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import RankInfo
from hornbook.run.launch.rendezvous import Address, open_store
from hornbook.settings.layout.world import check_world

_PORTS = 4096
"""Jobs of Slurm and mpirun use one of the last 4096 ports, which systems do not assign by themselves (as JAX does)."""
_NAME = re.compile(r"(?:[^\[\],]|\[[^\]]*\])+(?=,|$)")
_BRACKET = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class Node:
    """One machine of several on which the same command was started once."""

    number: int
    size: int
    """Ranks of the run."""
    local_size: int
    """Ranks of each machine."""
    host: str
    """The machine of rank 0."""
    port: int

    def ranks(self) -> Iterator[RankInfo]:
        """Those of this machine."""
        for local in range(self.local_size):
            rank = self.number * self.local_size + local
            connect = functools.partial(open_store, Address(self.host, self.port, rank == 0))
            yield RankInfo(rank, self.size, local, functools.cache(connect), same_devices=True, host=self.host)


def launched(environ: Mapping[str, str], parallel: ParallelConfig) -> RankInfo | Node | None:
    """What a launcher made of this process; None without a launcher and in a world of one.

    Raises UsageError: a variable is missing or invalid, or the launcher started another number of ranks.
    """
    size = world_of(environ)
    if size is None and _in_node(environ):
        return launcher_node(environ, parallel.world)
    rank_info = launcher_rank(environ)
    if rank_info is not None:
        source, remedy = _SOURCES[_launcher(environ) or ""]
        check_world(parallel, rank_info.size, f"{source} started {rank_info.size} ranks", remedy)
    return rank_info


_SOURCES = {
    "torchrun": ("torchrun (WORLD_SIZE)", "with --nproc-per-node"),
    "slurm": ("Slurm (SLURM_NTASKS)", "with --ntasks"),
    "openmpi": ("mpirun (OMPI_COMM_WORLD_SIZE)", "with mpirun -np"),
    "mpich": ("mpirun (PMI_SIZE)", "with mpirun -np"),
}
_NAMES = {
    "torchrun": ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "slurm": ("SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID", ""),
    "openmpi": (
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpich": ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
}
"""Variables with the number of ranks, the rank, the rank on this machine, and the number there."""


def _launcher(environ: Mapping[str, str]) -> str | None:
    # srun started this process; a batch script has a SLURM_PROCID too, but there hornbook starts the ranks.
    in_slurm_step = "SLURM_PROCID" in environ and "SLURM_STEP_NODELIST" in environ
    if "RANK" in environ or ("WORLD_SIZE" in environ and not in_slurm_step):  # in a step it is the batch script's own
        return "torchrun"
    # In a job of Slurm mpirun starts its agents, one on each machine, by srun: their variables are in the ranks' too.
    if "OMPI_COMM_WORLD_SIZE" in environ:
        return "openmpi"
    if "PMI_SIZE" in environ and ("MPI_LOCALNRANKS" in environ or not in_slurm_step):  # srun sets PMI_SIZE, too
        return "mpich"
    return "slurm" if in_slurm_step else None


def world_of(environ: Mapping[str, str]) -> int | None:
    """The number of ranks that a launcher started; None without one. Raises UsageError for a broken number."""
    kind = _launcher(environ)
    return None if kind is None else _number(environ, _names(environ, kind)[0], 1)


def _names(environ: Mapping[str, str], kind: str) -> tuple[str, str, str]:
    """Variables with the number of ranks, the rank, and the rank on this machine."""
    world, rank, local, _ = _NAMES[kind]
    return "SLURM_STEP_NUM_TASKS" if kind == "slurm" and "SLURM_STEP_NUM_TASKS" in environ else world, rank, local


def launcher_rank(environ: Mapping[str, str]) -> RankInfo | None:
    """The rank that a launcher gave this process; None without a launcher and in a world of one."""
    kind = _launcher(environ)
    if kind is None:
        return None
    world, rank_name, local = _names(environ, kind)
    ranks = _number(environ, world, 1)
    rank = _number(environ, rank_name, 0, ranks - 1)
    if ranks == 1:
        return None
    address_of = {"torchrun": _torchrun_address, "slurm": _slurm_address}.get(kind, _mpi_address)
    address = address_of(environ, rank == 0)
    connect = functools.cache(functools.partial(open_store, address))
    return RankInfo(rank, ranks, _number(environ, local, 0), connect, host=address.host)


def ranks_per_node(environ: Mapping[str, str]) -> int | None:
    """Ranks of each machine of a launcher; None where it does not say, or not the same for all."""
    uniform = re.fullmatch(r"([0-9]+)(\(x[0-9]+\))?", environ.get("SLURM_STEP_TASKS_PER_NODE", ""))
    kind = _launcher(environ)
    if kind == "slurm" and uniform:
        return int(uniform[1])
    local = "" if kind is None else _NAMES[kind][3]
    return _number(environ, local, 1) if environ.get(local) else None


def _in_node(environ: Mapping[str, str]) -> bool:
    return "HORNBOOK_NODES" in environ and _number(environ, "HORNBOOK_NODES", 1) > 1


def nodes_of(environ: Mapping[str, str]) -> int:
    """Machines on which this command was started once each; 1 where ranks were started one by one, or here alone."""
    return _number(environ, "HORNBOOK_NODES", 1) if _launcher(environ) is None and _in_node(environ) else 1


def launcher_node(environ: Mapping[str, str], size: int) -> Node:
    """This machine, one of HORNBOOK_NODES, of a run of `size` ranks."""
    nodes = _number(environ, "HORNBOOK_NODES", 1)
    name = "HORNBOOK_NODE" if "HORNBOOK_NODE" in environ else "JOB_COMPLETION_INDEX"
    number = _number(environ, name, 0, nodes - 1)
    if size % nodes:
        raise UsageError(
            f"{size} ranks do not divide over {nodes} machines (HORNBOOK_NODES): make the product of the axes of "
            f"[parallel] a multiple of {nodes}, or set one axis to -1"
        )
    port = _number(environ, "MASTER_PORT", 1, 65535)
    return Node(number, size, size // nodes, _text(environ, "MASTER_ADDR"), port)


def _torchrun_address(environ: Mapping[str, str], is_rank0: bool) -> Address:
    agent = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Address(_text(environ, "MASTER_ADDR"), _number(environ, "MASTER_PORT", 1, 65535), is_rank0, agent)


def _slurm_address(environ: Mapping[str, str], is_rank0: bool) -> Address:
    host = environ.get("MASTER_ADDR") or first_host(environ["SLURM_STEP_NODELIST"])
    if "MASTER_PORT" in environ:
        return Address(host, _number(environ, "MASTER_PORT", 1, 65535), is_rank0)
    step = _number(environ, "SLURM_STEP_ID", 0) if "SLURM_STEP_ID" in environ else 0
    return Address(host, 65536 - _PORTS + (_number(environ, "SLURM_JOB_ID", 0) + step) % _PORTS, is_rank0)


def _mpi_address(environ: Mapping[str, str], is_rank0: bool) -> Address:
    """On one machine its own address, unless MASTER_ADDR says another. Raises UsageError on several without it."""
    size, _, _, local = _NAMES[_launcher(environ) or ""]
    host = environ.get("MASTER_ADDR", "")
    if not host and _text(environ, local) != environ.get(size):
        raise UsageError(
            f"mpirun started {environ.get(local)} of {environ.get(size)} ranks on this machine ({local}, {size}), and "
            "MASTER_ADDR, the machine of rank 0, is not set: `mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29400 ...` "
            "(MPICH: `-genv MASTER_ADDR HOST`)"
        )
    job = zlib.crc32(environ.get("PMIX_NAMESPACE", "").encode())  # of two jobs on a machine each has its port
    port = _number(environ, "MASTER_PORT", 1, 65535) if "MASTER_PORT" in environ else 65536 - _PORTS + job % _PORTS
    return Address(host or "127.0.0.1", port, is_rank0)


def _text(environ: Mapping[str, str], name: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise UsageError(
            f"{name} is not set, though other variables of its launcher are: start every rank with torchrun, srun or "
            "`hornbook launch`, or unset RANK, LOCAL_RANK, WORLD_SIZE, HORNBOOK_NODES, MASTER_ADDR and MASTER_PORT"
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
