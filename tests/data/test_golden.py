"""What a run reads, pinned: sample orders, batches and validation rows are the same in every version."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from hornbook.data.batch import Batch
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import ObjectiveConfig
from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import build_loader
from hornbook.data.order.mixture import Stage
from hornbook.data.order.sampler import Kind, Sampler
from hornbook.data.validation import held_out
from tests.conftest import SPECIALS, write_corpus
from tests.golden import digest

NEAR = np.arange(0, 20_000, 7)
FAR = np.concatenate([first + np.arange(300) for first in (2**31 - 100, 10**12, 2**53 - 1000)])
SOURCES = {"web": 1000, "books": 37, "code": 1}
ONE_STAGE = ((0, (0.5, 0.3, 0.2)),)
STAGES = ((0, (0.9, 0.05, 0.05)), (333, (0.0, 1.0, 0.0)), (9000, (0.25, 0.5, 0.25)))

ORDERS: dict[tuple[int, Kind, Any], tuple[str, str]] = {
    (0, "shuffled", ONE_STAGE): ("dde01d565df811d0", "feb28cceadb07137"),
    (1, "shuffled", ONE_STAGE): ("e9209c2e99160276", "4c8daedcec75c8b5"),
    (2**63 + 5, "shuffled", ONE_STAGE): ("6774e453c7b54123", "a6bfe254244fcd6f"),
    (1, "shuffled", STAGES): ("dc93f732cb9697e8", "3537b0823ea04f1e"),
    (1, "sequential", STAGES): ("4961f33ccb9f8afe", "ca9299649059ac67"),
    (1, "replacement", STAGES): ("34d1941475259a0d", "b13f3d2b3eecd0ff"),
}
"""Seed, kind and stages -> digests of (source, row, epoch) at positions `NEAR` and `FAR`."""


@pytest.mark.parametrize("case", ORDERS, ids=str)
def test_sample_orders(case: tuple[int, Kind, Any]) -> None:
    seed, kind, stages = case
    built = [Stage.build(first, list(weights)) for first, weights in stages]
    sampler = Sampler(list(SOURCES), list(SOURCES.values()), built, seed=seed, kind=kind)
    assert (digest(sampler.locate(NEAR)), digest(sampler.locate(FAR))) == ORDERS[case]


def test_the_first_samples_are_these() -> None:
    """A few by themselves, for whoever looks for what changed."""
    sampler = Sampler(["web"], [1000], [Stage.build(0, [1.0])], seed=1)
    assert sampler.locate(np.arange(8))[1].tolist() == [552, 705, 6, 766, 733, 516, 685, 643]


UL2 = [{"mode": "R", "density": 0.15, "mean_span": 3}, {"mode": "X", "density": 0.5}, {"mode": "S", "density": 0.25}]
BATCHES: dict[str, tuple[dict[str, Any], str, str]] = {
    "causal": ({"kind": "causal"}, "552ef30de2b3eb95", "a339f9540362fe76"),
    "masked": ({"kind": "masked"}, "c205db441c1fe85b", "d9f304ead6b58f11"),
    "whole words": ({"kind": "masked", "whole_word": True}, "d81631277cce1d5e", "56719f3a379575b9"),
    "prefix": ({"kind": "prefix"}, "d6a4d9f132efaf49", "477400f22c1374bf"),
    "span": ({"kind": "span", "density": 0.15}, "0c34e80f94d3a40e", "ef5522a53362d2c6"),
    "infill": ({"kind": "infill"}, "984ec55ff8a19164", "fe440387ea423503"),
    "ul2": ({"kind": "ul2", "denoisers": UL2}, "a30836e9e6138cdf", "0af5b3499975ff86"),
    "fim": ({"kind": "fim", "rate": 1.0}, "3b7e7bb99819fe8a", "a339f9540362fe76"),
}
"""Objective -> digest of the first batches of training, and of the validation rows with what is drawn for them."""


FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@pytest.fixture(scope="session")
def fim_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The marked corpus with tokens for the parts of a document besides."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "fim", specials=(*SPECIALS, *FIM), held_out=12)


def contents(batch: Batch) -> list[object]:
    """All that a model is given, and where it is from."""
    tensors = [batch.tokens, batch.targets, batch.weights, batch.positions, batch.samples, batch.sources]
    source = (
        [] if batch.source is None else [batch.source.tokens, batch.source.positions, batch.source.document_lengths]
    )
    return [*tensors, batch.document_lengths, batch.prefixes, *source]


_CONFIGS: TypeAdapter[ObjectiveConfig] = TypeAdapter(ObjectiveConfig)


def objective(name: str) -> ObjectiveConfig:
    return _CONFIGS.validate_python(BATCHES[name][0])


@pytest.mark.parametrize("name", BATCHES)
def test_batches(marked_corpus: Path, fim_corpus: Path, name: str) -> None:
    config = DataConfig(objective=objective(name), weights={"notes": 0.7, "prose": 0.3})
    corpus = fim_corpus if name == "fim" else marked_corpus
    loader = build_loader(config, corpus, sequence=64, micro_batch=4, seed=3, prefetch=False)
    taken = [loader.take(10), loader.take(7)]
    loader.seek(10**9)  # a later epoch: each draws anew
    taken.append(loader.take(10))
    hashes = [(batch.token_hash, batch.total_weight, batch.tokens) for batch in taken]
    parts = [part for each in taken for batch in each.batches for part in contents(batch)]
    assert digest([*hashes, *parts]) == BATCHES[name][1]


@pytest.mark.parametrize("name", BATCHES)
def test_validation_rows(marked_corpus: Path, name: str) -> None:
    corpus = Corpus.open(marked_corpus)
    options: dict[str, Any] = {"sequence": 64, "document_mask": True, "max_tokens": 700, "objective": objective(name)}
    parts: list[object] = []
    for source in ("notes", "prose"):
        rows = held_out(corpus, source, **options, seed=3)
        parts += [rows.rows, rows.sizes, *(part for batch in rows.batches(3) for part in contents(batch))]
    assert digest(parts) == BATCHES[name][2]


PACKINGS = {"concat": "eb15bc1060afdd0f", "best_fit": "fab32f810542e82b"}


@pytest.mark.parametrize("packing", PACKINGS)
def test_packings_of_a_corpus_without_special_tokens(tiny_corpus: Path, packing: Any) -> None:
    config = DataConfig(packing=packing)
    loader = build_loader(config, tiny_corpus, sequence=48, micro_batch=8, seed=1, prefetch=False)
    hashes = [loader.take(16).token_hash for _ in range(4)]
    assert digest(hashes) == PACKINGS[packing]


def test_validation_rows_of_large_sources(marked_corpus: Path) -> None:
    rows = held_out(Corpus.open(marked_corpus), "prose", sequence=8, document_mask=False, max_tokens=200)
    assert rows.rows[:8].tolist() == [7, 10, 15, 25, 26, 29, 31, 38]
    assert digest([rows.rows]) == "2f16714f2ba6be0d"
