"""What is read of a shard is compared with its checksums first, whoever reads it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hornbook.data.config.data import DataConfig
from hornbook.data.corpus import Corpus
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.loader.loader import build_loader
from hornbook.data.loader.provenance import find_documents
from hornbook.data.shards.shard import TokenShard, _map_error, truncated
from hornbook.data.shards.shard_table import ShardTable
from hornbook.data.validation import held_out
from hornbook.errors import DoesNotFitError, IntegrityError
from hornbook.evals.baselines import baselines
from hornbook.files.artifact import digest_file
from hornbook.text.tokenizer.shards import BLOCK_BYTES
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.data.conftest import Raw, flip, write_tokenizer

Make = Callable[..., Raw]
SIZES = [1000] * 1400  # 2.8 MB of uint16: three blocks


def stem(raw: Raw, split: str = "train", number: int = 0) -> str:
    return f"{raw.path}/tokens/{split}/a/{number:05d}"


def read_all(raw: Raw, **config: Any) -> None:
    data = build_loader(DataConfig(**config), raw.path, sequence=256, micro_batch=8, seed=1, prefetch=False)
    data.take(data.index.epoch_tokens(1) // 256)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_a_flipped_bit_ends_training_and_names_block_and_documents(make_corpus: Make, dtype: str, packing: str) -> None:
    raw = make_corpus({"a": SIZES}, dtype=dtype)
    read_all(raw, packing=packing)
    flip(Path(stem(raw) + ".bin"), BLOCK_BYTES + 1000)  # an id below the vocabulary's size, but another
    first = BLOCK_BYTES // np.dtype(dtype).itemsize
    words = rf"00000.bin: block 1 \(tokens {first:,} to {2 * first - 1:,}\) is damaged, and with it documents"
    words += rf" {first // 1000} to \d+ \('tokens/train/a/00000#{first // 1000}', .*hornbook tokenize"
    with pytest.raises(IntegrityError, match=words):
        read_all(raw, packing=packing)


def test_a_block_is_compared_when_it_is_first_touched_and_once(
    make_corpus: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []
    check = TokenShard.check_block
    monkeypatch.setattr(
        TokenShard, "check_block", lambda shard, block: (compared.append(block), check(shard, block))[1]
    )
    raw = make_corpus({"a": SIZES})
    data = build_loader(DataConfig(order="sequential"), raw.path, sequence=1024, micro_batch=8, seed=1, prefetch=False)
    seen = []
    for _ in range(data.index.epoch_tokens(2) // 8192):
        data.take(8)
        seen.append(list(compared))
    assert seen[0] == [0]
    assert seen[-1] == [0, 1, 2]
    flip(Path(stem(raw) + ".bin"), 0)  # was found sound: this process reads it from memory as it may
    data.take(8)
    data.index.corpus.train["a"].shards[0].sound[:] = 0
    data.seek(0)
    with pytest.raises(IntegrityError, match="block 0"):
        data.take(1)


def test_the_token_behind_a_row_belongs_to_what_is_compared(make_corpus: Make) -> None:
    """The last target of a row that ends with its block is the first id of the next one."""
    raw = make_corpus({"a": [700_000]})
    flip(Path(stem(raw) + ".bin"), BLOCK_BYTES)
    data = build_loader(DataConfig(order="sequential"), raw.path, sequence=1024, micro_batch=1, seed=1, prefetch=False)
    data.take(511)
    with pytest.raises(IntegrityError, match="block 1 "):
        data.take(1)


def test_more_blocks_than_are_found_at_once(make_corpus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.data.shards.shard_table._MOST_FOUND", 1)
    raw = make_corpus({"a": [40] * 300}, shards=100)
    stream = (corpus := Corpus.open(raw.path)).train["a"]
    written = [token for document in raw.documents["train"]["a"] for token in document]
    whole = (np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([stream.tokens]))
    assert ShardTable(corpus, [stream]).gather(*whole).tolist() == written
    assert all(shard.sound.all() for shard in stream.shards)


READERS: dict[str, Callable[[Raw], Any]] = {
    "training": read_all,
    "best fit": lambda raw: read_all(raw, packing="best_fit"),
    "pairs": lambda raw: read_all(raw, objective={"kind": "span"}),
    "baselines": lambda raw: baselines(Corpus.open(raw.path), Tokenizer.load(raw.path / "tokenizer")),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_every_reader_notices(make_corpus: Make, reader: str, ending: str) -> None:
    sizes = [300] * 9
    raw = make_corpus({"a": sizes}, validation={"a": sizes})
    write_tokenizer(raw)
    READERS[reader](raw)
    for plan in (raw.path / "plans").glob("*"):  # what was made before
        plan.rename(raw.path / f"old-{plan.name}")
    flip(Path(stem(raw) + ending), 8)
    with pytest.raises(IntegrityError, match=rf"00000{ending}"):
        READERS[reader](raw)


def test_validation_notices(make_corpus: Make) -> None:
    raw = make_corpus({"a": [300] * 9}, validation={"a": [300] * 9})
    flip(Path(stem(raw, "validation") + ".bin"), 100)
    corpus = Corpus.open(raw.path)
    rows = held_out(corpus, "a", sequence=64, document_mask=True)
    with pytest.raises(IntegrityError, match=r"validation/a/00000.bin: block 0"):
        list(rows.batches(4))


def test_the_list_of_documents_is_compared_before_it_is_read(make_corpus: Make) -> None:
    raw = make_corpus({"a": [300] * 9})
    path = Path(stem(raw) + ".docs.parquet")
    flip(path, 100)
    index = GlobalIndex(Corpus.open(raw.path), DataConfig(), sequence=64, seed=1)
    with pytest.raises(IntegrityError, match=r"docs.parquet is damaged"):
        index.documents(0)
    with pytest.raises(IntegrityError, match=r"docs.parquet is damaged"):
        find_documents([("train", index.streams[0])], "x")


def test_documents_are_numbered_where_their_list_is_damaged_too(make_corpus: Make) -> None:
    raw = make_corpus({"a": [300] * 9})
    for ending in (".bin", ".docs.parquet"):
        flip(Path(stem(raw) + ending), 8)
    with pytest.raises(IntegrityError, match=r"and with it documents 0 to 8: restore"):
        read_all(raw)


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"digests": {}, "blocks": []}', '{"digests": {"bin": 1}, "blocks": {}}']
)
def test_checksums_that_cannot_be_read_are_named(make_corpus: Make, text: str | None) -> None:
    raw = make_corpus({"a": [300] * 9})
    path = Path(stem(raw) + ".json")
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(IntegrityError, match=r"00000.json: the shard's checksums cannot be read"):
        read_all(raw)


def test_checksums_of_another_shard_do_not_count(make_corpus: Make) -> None:
    """A shard that was exchanged whole: the index lists another."""
    raw, other = make_corpus({"a": [300] * 9}), make_corpus({"a": [300] * 9}, seed=9)
    for ending in (".bin", ".idx", ".docs.parquet", ".json"):
        Path(stem(raw) + ending).write_bytes(Path(stem(other) + ending).read_bytes())
    with pytest.raises(IntegrityError, match=r"00000.json is not of the shard that the index lists"):
        read_all(raw)


def test_a_shard_cut_after_it_was_opened_is_an_error_where_it_is_seen_in_time(make_corpus: Make) -> None:
    raw = make_corpus({"a": SIZES})
    data = build_loader(DataConfig(), raw.path, sequence=256, micro_batch=8, seed=1, prefetch=False)
    assert truncated(data.corpus.train["a"].shards) is None
    os.truncate(stem(raw) + ".bin", 4096)
    with pytest.raises(IntegrityError, match=r"00000.bin: expected 2800000 bytes, found 4096"):
        data.take(8)
    assert "00000.bin: expected 2800000 bytes, found 4096" in str(truncated(data.corpus.train["a"].shards))


CUT = """
import os, sys
from hornbook.data.corpus import Corpus
corpus = Corpus.open(sys.argv[1])
data = corpus.train["a"].shards[0].data
os.truncate(sys.argv[2], int(sys.argv[3]))
print(int(data[-1]))
"""


def test_a_shard_cut_under_the_map_is_told(make_corpus: Make) -> None:
    raw = make_corpus({"a": SIZES})
    path = stem(raw) + ".bin"
    words = [sys.executable, "-c", CUT, str(raw.path), path]
    done = subprocess.run([*words, "4096"], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done
    assert f"{path}: expected 2800000 bytes, found 4096" in done.stderr


def test_a_bus_error_of_something_else_ends_the_process_as_ever(make_corpus: Make, tmp_path: Path) -> None:
    raw, other = make_corpus({"a": SIZES}), tmp_path / "other"
    other.write_bytes(bytes(2**20))
    script = CUT.replace("data = ", "import numpy as np\ndata = np.memmap(sys.argv[2], mode='r') #")
    words = [sys.executable, "-c", script, str(raw.path), str(other), "4096"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGBUS, done


def test_a_map_that_finds_no_room_does_not_fit(tmp_path: Path) -> None:
    error = _map_error(tmp_path / "x.bin", OSError(12, "Cannot allocate memory"))
    assert isinstance(error, DoesNotFitError)
    assert "x.bin: no address space is left" in str(error)


def test_labels_are_compared_before_they_are_read(make_corpus: Make) -> None:
    raw = make_corpus({"a": [300] * 9})
    path = Path(stem(raw) + ".labels")
    np.zeros(2700, "<f4").tofile(path)
    index = json.loads((raw.path / "tokens/index.json").read_text())
    sidecar = json.loads(Path(stem(raw) + ".json").read_text())
    sidecar["digests"]["labels"] = index["shards"][0]["labels"] = digest_file(path)
    index["labels"] = {"kind": "regression"}
    (raw.path / "tokens/index.json").write_text(json.dumps(index))
    Path(stem(raw) + ".json").write_text(json.dumps(sidecar))
    labels = Corpus.open(raw.path).train["a"].shards[0].labels
    assert labels is not None
    assert labels.shape == (2700, 1)
    flip(path, 77)
    with pytest.raises(IntegrityError, match=r"00000.labels is damaged"):
        _ = Corpus.open(raw.path).train["a"].shards[0].labels
