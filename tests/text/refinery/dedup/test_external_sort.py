from pathlib import Path

import numpy as np
import pytest

from hornbook.text.refinery.dedup.external_sort import repeated, sorted_records


def chunks_of(records: np.ndarray, size: int) -> list[np.ndarray]:
    return [records[start : start + size] for start in range(0, len(records), size)]


def records_of(keys: np.ndarray) -> np.ndarray:
    """With the order of arrival as payload."""
    return np.stack([keys.astype(np.uint64), np.arange(len(keys), dtype=np.uint64)], axis=1)


def reference(records: np.ndarray) -> np.ndarray:
    return records[np.argsort(records[:, 0], kind="stable")]


KEYS = {
    "hashes": lambda rng: rng.integers(0, 2**64, 20_000, dtype=np.uint64),
    "few": lambda rng: rng.integers(0, 7, 20_000),
    "one": lambda rng: np.full(20_000, rng.integers(9)),
    "sorted": lambda _: np.arange(20_000),
    "backwards": lambda _: np.arange(20_000)[::-1],
    "skewed": lambda rng: np.where(rng.random(20_000) < 0.9, 5, rng.integers(0, 2**63, 20_000)),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("budget", [10_000, 200_000, 2**30])
def test_any_budget_gives_the_stable_order(name: str, budget: int, tmp_path: Path) -> None:
    records = records_of(KEYS[name](np.random.default_rng(0)))
    found = np.concatenate([part.copy() for part in sorted_records(chunks_of(records, 501), tmp_path / "runs", budget)])
    assert np.array_equal(found, reference(records))
    assert list(tmp_path.iterdir()) == []


def test_runs_go_to_disk_and_chunks_stay_small(tmp_path: Path) -> None:
    records = records_of(np.random.default_rng(0).integers(0, 2**64, 50_000, dtype=np.uint64))
    parts = sorted_records(chunks_of(records, 100), tmp_path / "runs", 100_000)
    first = next(parts)
    assert (tmp_path / "runs").stat().st_size == records.nbytes
    assert first.nbytes <= 100_000 // 2
    assert all(part.nbytes <= 100_000 // 2 for part in parts)


def test_nothing_to_sort(tmp_path: Path) -> None:
    assert list(sorted_records([], tmp_path / "runs", 1000)) == []


@pytest.mark.parametrize("budget", [64, 2**20])
def test_no_repeated_key_is_lost_and_most_others_are(budget: int) -> None:
    rng = np.random.default_rng(0)
    single = rng.integers(0, 2**63, 30_000, dtype=np.uint64)
    twice = rng.integers(2**63, 2**64, 500, dtype=np.uint64)
    records = records_of(rng.permutation(np.concatenate([single, twice, twice])))
    found = np.concatenate(list(repeated(lambda: chunks_of(records, 1000), len(records), budget)))
    wanted = records[np.isin(records[:, 0], twice)]
    assert np.array_equal(found[np.isin(found[:, 0], twice)], wanted)
    if budget > 64:
        assert len(found) < 0.3 * len(records)
