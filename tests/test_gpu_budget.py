"""A fixed budget on a GPU: the same tokens in the files of other scripts, and how these are started and read."""

import json
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.contenders.peers_here import Found
from benchmarks.gpu.budget import modded, nanochat, nanogpt, ours, part
from benchmarks.gpu.budget.files import modded_encoding, write_modded, write_nanochat, write_nanogpt
from benchmarks.gpu.budget.scripts import Script, last_number, settled
from benchmarks.gpu.budget.text import LeftOut, Text, sources
from benchmarks.gpu.parts import LEFT_OUT
from benchmarks.peers.stand_in import Encoding
from hornbook.settings.resolve import resolve


@pytest.fixture
def text(tiny_corpus: Path) -> Text:
    return Text(tiny_corpus)


def test_text_is_found_by_the_variable_or_beside_the_checkout(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    with pytest.raises(LeftOut, match="BENCH_TEXT names no folder"):
        sources({}, root)
    beside = tmp_path / "shared" / "data" / "a.jsonl.gz"
    beside.parent.mkdir(parents=True)
    beside.touch()
    assert sources({}, root) == [beside]
    assert sources({"BENCH_TEXT": str(root.parent)}, root) == [root.parent]
    with pytest.raises(LeftOut, match="which is no folder"):
        sources({"BENCH_TEXT": str(beside)}, root)


def test_documents_are_whole_and_pieces_lose_nothing(text: Text) -> None:
    starts = np.concatenate([[0], text.train.ends[:-1]])
    assert np.array_equal(np.flatnonzero(text.train.tokens == text.delimiter), starts)
    inside = text.train.tokens[text.train.tokens != text.delimiter]
    pieces = text.train.pieces(20)
    assert max(map(len, pieces)) <= 20
    assert np.array_equal(np.concatenate(pieces), inside)
    assert len(inside) == text.train.bytes  # a token stands for a byte here


def test_bits_per_byte_are_those_of_all_tokens_over_all_bytes(text: Text) -> None:
    nats = 2.0 * len(text.held_out.tokens)
    assert text.bits_per_byte(2.0) == pytest.approx(nats / np.log(2) / text.held_out.bytes, rel=1e-12)


def test_nanogpt_reads_the_tokens_as_they_are(text: Text, tmp_path: Path) -> None:
    write_nanogpt(tmp_path, text)
    assert np.array_equal(np.fromfile(tmp_path / "val.bin", np.uint16), text.held_out.tokens)
    assert np.array_equal(np.fromfile(tmp_path / "train.bin", np.uint16), text.train.tokens)
    assert pickle.loads((tmp_path / "meta.pkl").read_bytes())["vocab_size"] == 384


def test_nanochat_gets_each_piece_once_with_its_bytes(text: Text, tmp_path: Path) -> None:
    write_nanochat(tmp_path, text, 16)
    encoding: Encoding = pickle.loads((tmp_path / "tokenizer" / "tokenizer.pkl").read_bytes())
    assert encoding.n_vocab == text.vocab
    assert encoding.encode_single_token("<|bos|>") == text.delimiter
    sizes = torch.load(tmp_path / "tokenizer" / "token_bytes.pt", weights_only=True)
    for name, documents in (("00000", text.train), ("00001", text.held_out)):
        rows = pq.read_table(tmp_path / "base_data_climbmix" / f"shard_{name}.parquet")["text"].to_pylist()
        tokens = encoding.encode_ordinary_batch(rows)
        assert sum(map(len, tokens)) == sum(documents.tokens != text.delimiter)
        assert sum(int(sizes[each].sum()) for each in tokens) == documents.bytes
    assert sizes[text.delimiter] == 0
    train = pq.read_table(tmp_path / "base_data_climbmix" / "shard_00000.parquet")["text"].to_pylist()
    assert sorted(map(int, train)) == list(range(len(train)))
    assert train != sorted(train, key=int)


def test_modded_nanogpt_finds_headers_delimiters_and_enough_files(text: Text, tmp_path: Path) -> None:
    least = 2 * len(text.held_out.tokens)
    room = write_modded(tmp_path, text, longest=16, files=6, least=least)
    assert room == least
    files = sorted((tmp_path / "data" / "fineweb10B").glob("fineweb_train_*.bin"))
    assert len(files) == 6
    first, second = (read(path) for path in files[:2])
    assert not np.array_equal(first, second)
    assert np.array_equal(np.sort(first), np.sort(second))
    assert np.array_equal(read(files[4]), first)
    starts = np.flatnonzero(first == 50256)
    assert starts[0] == 0
    assert np.diff(np.append(starts, len(first))).max() <= 16
    assert len(first) - len(starts) == sum(text.train.tokens != text.delimiter)
    held_out = read(tmp_path / "data" / "fineweb10B" / "fineweb_val_000000.bin")
    wanted = np.where(text.held_out.tokens == text.delimiter, 50256, text.held_out.tokens)
    assert np.array_equal(held_out, np.resize(wanted, least + 2))


def read(path: Path) -> np.ndarray:
    """The tokens behind a header."""
    header = np.fromfile(path, np.int32, 256)
    tokens = np.fromfile(path, np.uint16, offset=1024)
    assert header[:3].tolist() == [20240520, 1, len(tokens)]
    assert not header[3:].any()
    return tokens


def test_spellings_have_the_ids_of_the_files(text: Text) -> None:
    ranks = modded_encoding(text)._mergeable_ranks
    ids = text.tokenizer.encode("a")
    assert ranks[b"a"] == ids[-1]
    assert 50256 not in ranks.values()
    assert len(set(ranks.values())) == len(ranks) == text.vocab - 1


SOURCE = """
class Hyperparameters:
    val_tokens: int = 10485760 # how many
    val_batch_size: int = 4 * 64 * 1024 * 8
    num_scheduled_iterations: int = 1270  # steps
    num_extension_iterations: int = 15
    val_loss_every: int = 250  # every
TRAIN_MAX_NUM_DOCS = {16384: 64, 32768: 96}
"""


def test_the_copy_of_a_script_has_other_numbers() -> None:
    found: dict[str, object] = {}
    made = modded.edited(SOURCE, modded.lengths(700, 3, 5 * 1024 + 7))
    exec(made, found)
    values = vars(found["Hyperparameters"])  # pyright: ignore[reportArgumentType]
    assert values["num_scheduled_iterations"] == 700
    assert values["num_extension_iterations"] == 3
    assert values["val_tokens"] == values["val_batch_size"] == 5 * 1024
    assert values["val_loss_every"] == 0
    assert found["TRAIN_MAX_NUM_DOCS"] == dict.fromkeys((16384, 32768, 49152), modded.MOST_DOCUMENTS)


@pytest.mark.parametrize("line", ["val_tokens: int", "TRAIN_MAX_NUM_DOCS"])
def test_another_version_of_a_script_is_refused(line: str) -> None:
    with pytest.raises(RuntimeError, match="version"):
        modded.edited(SOURCE.replace(line, f"other_{line}"), modded.lengths(700, 3, 4096))


@pytest.mark.parametrize(
    ("step", "line", "seconds"),
    [
        (nanogpt.STEP, "iter 12: loss 4.2, time 250.50ms, mfu -100.00%", 0.2505),
        (nanochat.STEP, "step 00012/00016 (75.00%) | loss: 4.2 | lrm: 1.00 | dt: 1,250.50ms | tok/sec: 9", 1.2505),
        (modded.STEP, "step:5/31 train_time:1250ms step_avg:250.50ms", 0.2505),
    ],
)
def test_times_of_steps_are_read(step: re.Pattern[str], line: str, seconds: float) -> None:
    script = Script(sys.executable, Path(), (), step)
    assert script.seconds([line, "val loss 3.2\n"]) == [pytest.approx(seconds)]


def test_a_script_is_run_with_the_tokens_and_its_failure_told(tmp_path: Path) -> None:
    (tmp_path / "known.pkl").write_bytes(pickle.dumps(Encoding(7, 3, ranks={b"a": 5})))
    program = "import sys, tiktoken\nknown = tiktoken.get_encoding('gpt2')\n"
    program += "print('loss', known._mergeable_ranks[b'a'], sys.argv[1])\nsys.exit(int(sys.argv[2]))\n"
    (tmp_path / "train.py").write_text(program)
    words = ("-m", "benchmarks.peers.stand_in", "known.pkl", "train.py")
    script = Script(sys.executable, tmp_path, words, nanogpt.STEP)
    lines = script.run(["--x=1", "0"], tmp_path / "log")
    assert last_number(r"loss (\d)", lines) == 5
    assert "--x=1" in (tmp_path / "log").read_text()
    with pytest.raises(RuntimeError, match=r"ended with 3: loss 5 --x=1"):
        script.run(["--x=1", "3"], tmp_path / "log")
    with pytest.raises(RuntimeError, match="no line has"):
        last_number(r"bits (\d)", lines)


def test_a_step_of_a_trial_leaves_out_those_that_compile() -> None:
    assert settled([60.0, 9.0, 0.5, 0.7, 0.5, 0.4]) == 0.5
    with pytest.raises(RuntimeError, match="no step"):
        settled([])


def test_the_recipe_is_of_the_size_of_its_peers_and_its_batch_too() -> None:
    recipe = resolve(str(ours.RECIPE), ["train.tokens=131072"], environ={}).recipe
    assert (recipe.model.layers, recipe.model.width) == (12, 768)
    assert recipe.train.batch_tokens == ours.BATCH == nanochat.SIZES["total-batch-size"]
    rows, parts, sequence = (
        nanogpt.SIZES[name] for name in ("batch_size", "gradient_accumulation_steps", "block_size")
    )
    assert rows * parts * sequence == ours.BATCH
    assert sequence == recipe.train.sequence == nanochat.SIZES["max-seq-len"]


def test_a_peer_that_fails_is_told_and_tried_again(
    tiny_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such kernel")

    spec = {"contender": "nanochat", "dry_run": True}
    monkeypatch.setattr(sys, "argv", ["part", str(tmp_path / "figures.json"), json.dumps(spec)])
    monkeypatch.setattr(part, "find", lambda _: Found(sys.executable, str(tmp_path)))
    monkeypatch.setattr(part, "make", lambda *_: Text(tiny_corpus))
    monkeypatch.setitem(part.PEERS, "nanochat", fail)
    assert part.main() == LEFT_OUT
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["problem"] == "no such kernel"
    assert figures["text"]["train_tokens"] == len(Text(tiny_corpus).train.tokens)
    monkeypatch.setitem(part.PEERS, "nanochat", lambda *given: given[3].add(bits_per_byte=1.5))
    assert part.main() == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["bits_per_byte"] == 1.5
    assert "problem" not in figures
