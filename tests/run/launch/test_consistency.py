"""Ranks that are about to do different things say so, all of them, before the first step. Ranks are threads here."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from hornbook.errors import RankLostError, UsageError
from hornbook.parallel.world import RankInfo
from hornbook.run.launch import consistency, rendezvous
from hornbook.run.launch.consistency import compare_ranks, rank_facts
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

LOCK = {"shards": {"tokens/train/a/00000": "0123"}, "tokenizer": "4567", "fingerprint": "89ab"}


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is not needed would be noticed."""
    monkeypatch.setattr(rendezvous, "SETUP_SECONDS", 1e6)
    monkeypatch.setattr(consistency, "LINGER_SECONDS", 1e6)


def recipe(*words: str) -> Recipe:
    return resolve(None, ["train.device=cpu", *words], environ={}).recipe


def compare(
    facts: list[dict[str, str]],
    size: int = 0,
    store: Store | None = None,
    error: type[Exception] = UsageError,
    gpus: Sequence[str] = (),
) -> list[str]:
    """What each rank says, in an error of this class; "" where it finds all equal."""
    store = store or HashStore()

    def one(rank: int) -> str:
        try:
            compare_ranks(store, RankInfo(rank, size or len(facts)), facts[rank], gpus[rank] if gpus else "")
        except error as raised:
            return str(raised)
        return ""

    with ThreadPoolExecutor(len(facts)) as pool:
        return [future.result(120) for future in [pool.submit(one, rank) for rank in range(len(facts))]]


def test_equal_ranks_go_on():
    assert compare([rank_facts(recipe(), LOCK)] * 4) == [""] * 4


def test_two_ranks_on_one_gpu_are_refused_by_all_before_nccl_does():
    facts = [rank_facts(recipe(), LOCK)] * 4
    assert compare(facts, gpus=["a", "b", "c", "d"]) == [""] * 4
    said = compare(facts, gpus=["a", "b", "c", "b"])
    assert len(set(said)) == 1
    assert said[0].startswith(("ranks 1 and 3 were given the same GPU (b of ", "ranks 3 and 1 were given the same GPU"))
    assert "--nproc-per-node" in said[0]
    assert "CUDA_VISIBLE_DEVICES" in said[0]


def test_what_differs_is_named_on_every_rank_without_a_wait():
    ours = rank_facts(recipe(), LOCK)
    other = rank_facts(recipe("optim.lr=0.5"), LOCK) | {"torch": "2.12.0"}
    said = compare([ours, ours, other, ours])
    assert len(set(said)) == 1
    lines = said[0].splitlines()
    assert lines[0] == "the ranks of this run are not equal"
    (setting,) = [line for line in lines if "optim.lr" in line]
    assert f"{ours['optim.lr']} on ranks 0-1, 3, 0.5 on rank 2: start every rank with the same recipe" in setting
    (version,) = [line for line in lines if "torch" in line]
    assert "2.12.0 on rank 2: install the same environment" in version
    assert len(lines) == 3


def test_a_setting_that_only_some_ranks_have_is_named():
    kinds = [rank_facts(recipe(f"optim.schedule.kind={kind}"), LOCK) for kind in ("cosine", "constant")]
    assert "nothing on rank 1" in compare(kinds)[0]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda lock: {**lock, "shards": {**lock["shards"], "tokens/train/a/00000": "9999"}}, "data"),
        (lambda lock: {**lock, "tokenizer": "9999"}, "tokenizer"),
    ],
)
def test_other_data_is_named(change: Callable[[Any], Any], name: str):
    said = compare([rank_facts(recipe(), LOCK), rank_facts(recipe(), change(LOCK))])
    assert all(f"  {name}: " in text and "data.path must hold the same files" in text for text in said)


def test_what_may_differ_between_machines_is_not_compared():
    here, there = recipe("data.path=/a", "name=x"), recipe("data.path=/b", "name=y")
    assert compare([rank_facts(here, LOCK), rank_facts(there, LOCK)]) == ["", ""]


def test_every_other_setting_is_compared():
    facts = rank_facts(recipe(), LOCK)
    assert {"seed", "train.threads", "parallel.shard", "checkpoint.every", "model.layers"} <= facts.keys()
    assert {"python", "torch", "numpy", "code", "device", "cpu", "threads"} <= facts.keys()


def test_ranks_that_do_not_come_are_named_by_all_that_did(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "SETUP_SECONDS", 3.0)
    facts = rank_facts(recipe(), LOCK)
    said = compare([facts] * 2, size=5, error=RankLostError)
    assert all(text.startswith("ranks 2-4 of 5 did not arrive in 3 s") for text in said)


def test_a_rank_that_is_there_twice_belongs_to_another_job():
    store, facts = HashStore(), rank_facts(recipe(), LOCK)
    assert compare([facts] * 2, store=store) == ["", ""]
    assert store.check(["begun"])
    said = compare([facts] * 2, store=store, error=RankLostError)
    assert all("two jobs use the same MASTER_ADDR" in text for text in said)


def test_a_directory_that_was_begun_between_two_starts_asks_for_another_start():
    """A rank that looked before, and one that looked after: with `--resume auto` they mean the same."""
    facts = rank_facts(recipe(), LOCK)
    said = compare([facts | {"command": "start"}, facts | {"command": "resume"}], error=RankLostError)
    assert all("command: start on rank 0, resume on rank 1" in text for text in said)


def test_rank_0_holds_the_store_until_the_others_have_read():
    store, facts = HashStore(), rank_facts(recipe(), LOCK)
    other = PrefixStore("facts", store)  # rank 1, who has written and is slow to read
    other.set("text/1", json.dumps(facts, sort_keys=True))
    other.set("digest/1", consistency.digest_of(json.dumps(facts, sort_keys=True)))
    other.add("written", 1)
    thread = threading.Thread(target=compare_ranks, args=(store, RankInfo(0, 2), facts))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    other.add("read", 1)
    thread.join(60)
    assert not thread.is_alive()
