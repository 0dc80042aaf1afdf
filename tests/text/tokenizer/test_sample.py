"""Which documents are held out, and which train the tokenizer."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hornbook.text.splits import Split, is_validation
from hornbook.text.tokenizer.train import TrainingTexts


def write(path: Path, texts: list[str]) -> Path:
    clusters = [f"{index:032x}" for index, _ in enumerate(texts)]
    sizes = [len(text.encode()) for text in texts]
    pq.write_table(pa.table({"text": texts, "cluster": clusters, "bytes": sizes}), path)
    return path


def test_the_share_of_held_out_clusters_is_the_one_asked_for():
    clusters = [f"{number:032x}" for number in range(20_000)]
    for share in (0.0, 0.01, 0.3):
        held_out = sum(is_validation(cluster, share) for cluster in clusters)
        assert held_out == pytest.approx(20_000 * share, abs=4 * (20_000 * share) ** 0.5)


def test_a_larger_share_holds_out_the_same_documents_and_more():
    clusters = [f"{number:032x}" for number in range(3000)]
    small, large = ({cluster for cluster in clusters if is_validation(cluster, share)} for share in (0.05, 0.2))
    assert small < large


def test_the_split_never_changes():
    """Documents must stay where they are between versions: these values are part of the format."""
    held_out = [number for number in range(200) if is_validation(f"{number:032x}", 0.05)]
    assert held_out == [36, 89, 91, 105, 119, 150, 160, 168, 185]


def test_all_training_documents_when_there_is_room(tmp_path: Path):
    texts = [f"text {number}" for number in range(500)]
    shards = [write(tmp_path / "a", texts[:300]), write(tmp_path / "b", texts[300:])]
    found = [text for batch in TrainingTexts(dict.fromkeys(shards, Split()), 10**9) for text in batch]
    assert found == texts


def test_held_out_documents_do_not_train_the_tokenizer(tmp_path: Path):
    texts = [f"text {number}" for number in range(500)]
    found = {text for batch in TrainingTexts({write(tmp_path / "a", texts): Split(0.2)}, 10**9) for text in batch}
    expected = {text for number, text in enumerate(texts) if not is_validation(f"{number:032x}", 0.2)}
    assert found == expected


def test_a_sample_is_even_and_within_its_bound(tmp_path: Path):
    texts = [f"{number:06d}" * 20 for number in range(4000)]
    shards = [write(tmp_path / str(part), texts[1000 * part : 1000 * part + 1000]) for part in range(4)]
    limit = 40_000
    found = [text for batch in TrainingTexts(dict.fromkeys(shards, Split()), limit) for text in batch]
    assert found == [text for batch in TrainingTexts(dict.fromkeys(shards, Split()), limit) for text in batch]
    size = sum(len(text) for text in found)
    assert limit - 300 < size <= limit
    quarters = [sum(int(text[:6]) // 1000 == part for text in found) for part in range(4)]
    assert max(quarters) - min(quarters) <= 2


def test_batches_are_bounded(tmp_path: Path):
    texts = ["x" * 100_000 for _ in range(50)]
    sizes = [sum(map(len, batch)) for batch in TrainingTexts({write(tmp_path / "a", texts): Split()}, 10**9)]
    assert sum(sizes) == 5_000_000
    assert max(sizes) <= 2**20 + 100_000
