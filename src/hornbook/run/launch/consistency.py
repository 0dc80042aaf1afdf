"""Checks before the first collective that all ranks start equal, so that an error names the difference.

Each rank writes its facts into the store and reads those of the others; all come to the same verdict.
"""

import json
import platform
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import RankLostError, UsageError
from hornbook.files.artifact import digest_of
from hornbook.parallel.device import choose_device
from hornbook.parallel.world import RankInfo
from hornbook.run.launch.rendezvous import BEGUN, LINGER_SECONDS, arrival_seconds, needs_rank0, wait_until
from hornbook.run.machine.environment import code_digest
from hornbook.settings.recipe import Recipe
from hornbook.settings.schema import leaves
from hornbook.settings.show import toml_value
from hornbook.settings.toml import dotted

_MAY_DIFFER = ("name", "data.path", "data.replay.path", "train.device")
"""Settings that may differ; the content of the data folder and the kind of device are facts of their own."""
_REMEDIES = {
    "data": "data.path must hold the same files on every machine",
    "tokenizer": "data.path must hold the same files on every machine",
    **dict.fromkeys(("code", "python", "torch", "numpy"), "install the same environment on every machine"),
    "device": "take machines of one kind, or set train.device",
    "cpu": "take machines of one kind",
    "run directory": "give every rank the same --out, on a file system that all machines share",
    "command": "start every rank with the same command line, once the last of the ranks before has ended",
    "train.precision": "machines of several kinds: set train.precision",
    "threads": "set train.threads or OMP_NUM_THREADS alike on every machine",
}
_SHARED = (
    "ranks {other} and {rank} were given the same GPU ({gpu} of {host}): start at most one rank for each GPU (torchrun "
    "--nproc-per-node, srun --gpus-per-task 1), and see what CUDA_VISIBLE_DEVICES is set to"
)
_RECIPE_REMEDY = "start every rank with the same recipe, command line and HORNBOOK_SET"


def rank_facts(recipe: Recipe, lock: Mapping[str, Any]) -> dict[str, str]:
    """The facts that must be equal on all ranks, by their name in an error message.

    lock: the content of data.lock (`Corpus.lock()`). A caller may add facts of its own, such as the run directory.
    """
    settings = {dotted(path): toml_value(value) for path, value in leaves(recipe)}
    device = choose_device(recipe.train.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **{key: value for key, value in settings.items() if key not in _MAY_DIFFER},
        "data": digest_of(lock["shards"]),
        "tokenizer": str(lock["tokenizer"]),
        "code": code_digest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": name,
        "cpu": f"{torch.backends.cpu.get_cpu_capability()} {platform.machine()}",
        "threads": str(recipe.train.threads or torch.get_num_threads()),
    }


def compare_ranks(store: Store, rank_info: RankInfo, facts: Mapping[str, str], gpu: str = "") -> None:
    """Return on every rank if all have the same facts, else raise on every rank a UsageError with the differences.

    gpu: the identity of this rank's GPU; where two ranks have the same one, all raise UsageError before NCCL would.
    Raises RankLostError for ranks that do not arrive in time (`arrival_seconds`), for a rank that arrives twice, and
    where a run directory was begun between the starts of two ranks: another start of all finds it.
    """
    with needs_rank0():
        texts, shared = _exchange(store, rank_info, json.dumps(dict(facts), sort_keys=True), gpu)
    differences = dict(_differences([json.loads(text) for text in texts])) if len(set(texts)) > 1 else {}
    if differences:
        error = RankLostError if differences.keys() == {"command"} else UsageError
        raise error("\n".join(["the ranks of this run are not equal", *differences.values()]))
    if shared:
        raise UsageError(shared)


def _exchange(root: Store, rank_info: RankInfo, text: str, gpu: str) -> tuple[list[str], str]:
    """(the texts of all ranks, in the order of ranks, which ranks share a GPU); of equal texts only one is read."""
    store, ranks = PrefixStore("facts", root), range(rank_info.size)
    if store.add(f"came/{rank_info.rank}", 1) > 1:
        raise RankLostError(
            f"rank {rank_info.rank} is here already: it takes the place of one that left while the others arrived, and "
            "all have to start again; or two jobs use the same MASTER_ADDR and MASTER_PORT, or two processes have the "
            "same RANK: give each job a port of its own"
        )
    store.set(f"text/{rank_info.rank}", text)
    store.set(f"digest/{rank_info.rank}", digest_of(text))
    if gpu and (other := store.compare_set(f"gpu/{gpu}", "", str(rank_info.rank)).decode()) != str(rank_info.rank):
        store.set("shared", _SHARED.format(other=other, rank=rank_info.rank, gpu=gpu, host=socket.gethostname()))
    store.add("written", 1)
    seconds = arrival_seconds()
    if not wait_until(lambda: store.add("written", 0) >= rank_info.size, seconds):
        missing = [rank for rank in ranks if not store.check([f"digest/{rank}"])]
        raise RankLostError(
            f"{_ranks(missing)} of {rank_info.size} did not arrive in {seconds:g} s: see their own "
            "output, and start all ranks at about the same time"
        )
    if rank_info.is_rank0:
        root.set(BEGUN, "")
    digests = [store.get(f"digest/{rank}").decode() for rank in ranks]
    read = {digest: store.get(f"text/{rank}").decode() for rank, digest in reversed(list(enumerate(digests)))}
    shared = store.get("shared").decode() if store.check(["shared"]) else ""
    store.add("read", 1)
    if rank_info.is_rank0:  # the store is in this process, which may be about to raise
        wait_until(lambda: store.add("read", 0) >= rank_info.size, LINGER_SECONDS)
    return [read[digest] for digest in digests], shared


def _differences(facts: list[dict[str, str]]) -> Iterator[tuple[str, str]]:
    """For each fact that differs between ranks its name, and a line with a remedy."""
    for name in dict.fromkeys(name for every in facts for name in every):
        holders: dict[str, list[int]] = {}
        for rank, every in enumerate(facts):
            holders.setdefault(every.get(name, "nothing"), []).append(rank)
        if len(holders) > 1:
            values = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in holders.items())
            yield name, f"  {name}: {values}: {_REMEDIES.get(name, _RECIPE_REMEDY)}"


def _ranks(ranks: list[int]) -> str:
    """`rank 3`, `ranks 0, 2-5`; at most eight parts."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    parts = ["-".join(map(str, run)) for run in runs]
    more = f" and {len(parts) - 8} more" if len(parts) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(parts[:8])}{more}"
