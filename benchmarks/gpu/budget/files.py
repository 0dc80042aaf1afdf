"""The same tokens in the files of other training scripts."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.gpu.budget.text import Text
from benchmarks.peers.stand_in import Encoding

HEADER = (20240520, 1)
"""First numbers of a header of llm.c's files, which modded-nanogpt's are: a mark and a version."""
GPT2_DELIMITER = 50256
"""The delimiter that modded-nanogpt's script looks for."""
FILLED = 128
"""50,304 for GPT-2's vocabulary, as nanoGPT's script has it by itself."""
SHARED_FOLDER = "base_data_climbmix"
"""Where nanochat's scripts look for text, in the folder of NANOCHAT_BASE_DIR."""
ORDERS = 4
"""Orders of the documents of which modded-nanogpt's many files are links: its script reads each file once."""


def shuffled(pieces: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """The pieces in another order."""
    return [pieces[number] for number in np.random.default_rng(seed).permutation(len(pieces))]


def write_nanogpt(folder: Path, text: Text) -> None:
    """train.bin and val.bin: uint16, without a header; the vocabulary, filled up to a multiple of 128, in meta.pkl."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": -(-text.vocab // FILLED) * FILLED}))
    for name, documents in (("train", text.train), ("val", text.held_out)):
        documents.tokens.astype("<u2").tofile(folder / f"{name}.bin")


def write_nanochat(folder: Path, text: Text, sequence: int) -> None:
    """Its tables of text, a tokenizer, and the bytes of each token.

    A row of a table is the number of a piece, whose tokens the tokenizer knows (`benchmarks.peers.stand_in`). Its
    loader begins each row with a document and drops what does not fit, so long ones are cut: nothing of them is lost.
    """
    import torch

    train, held_out = (documents.pieces(sequence) for documents in (text.train, text.held_out))
    order = np.random.default_rng(0).permutation(len(train)).tolist()
    (folder / SHARED_FOLDER).mkdir(parents=True, exist_ok=True)
    for name, numbers in (("0", order), ("1", range(len(train), len(train) + len(held_out)))):
        table = pa.table({"text": [str(number) for number in numbers]})
        pq.write_table(table, folder / SHARED_FOLDER / f"shard_0000{name}.parquet", row_group_size=256)
    (folder / "tokenizer").mkdir(exist_ok=True)
    known = Encoding(text.vocab, text.delimiter, pieces=[*train, *held_out])
    (folder / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(known))
    torch.save(torch.from_numpy(text.tokenizer.token_bytes()), folder / "tokenizer" / "token_bytes.pt")


def write_modded(folder: Path, text: Text, *, longest: int, files: int, least: int) -> int:
    """Many files of training text and one of held-out text; the number of held-out tokens that its script may read.

    The delimiter is 50256, whose place the tokens' first id takes. longest: tokens of a document that the script reads.
    least: held-out tokens that it needs; a shorter text is repeated.
    """
    place = folder / "data" / "fineweb10B"
    place.mkdir(parents=True, exist_ok=True)
    pieces = text.train.pieces(longest - 1)
    for seed in range(ORDERS):
        parts = [part for piece in shuffled(pieces, seed) for part in (np.array([text.delimiter], np.uint16), piece)]
        write_with_header(place / f"order{seed}.bin", renumbered(np.concatenate(parts), text))
    for number in range(files):
        link = place / f"fineweb_train_{number:06d}.bin"
        link.unlink(missing_ok=True)
        link.symlink_to(f"order{number % ORDERS}.bin")
    held_out = np.resize(text.held_out.tokens, max(len(text.held_out.tokens), least + 2))
    write_with_header(place / "fineweb_val_000000.bin", renumbered(held_out, text))
    return len(held_out) - 2


def renumbered(tokens: np.ndarray, text: Text) -> np.ndarray:
    """Token ids with the delimiter's changed for GPT-2's."""
    swap = np.arange(max(text.vocab, GPT2_DELIMITER + 1), dtype=np.uint16)
    swap[[text.delimiter, GPT2_DELIMITER]] = swap[[GPT2_DELIMITER, text.delimiter]]
    return swap[tokens]


def modded_encoding(text: Text) -> Encoding:
    """The tokenizer as modded-nanogpt's script asks for it: the spelling of each id."""
    ids = renumbered(np.arange(text.vocab), text).tolist()
    ranks = {spelling: ids[number] for spelling, number in text.spellings().items()}
    return Encoding(GPT2_DELIMITER + 1, GPT2_DELIMITER, ranks=ranks)


def write_with_header(path: Path, tokens: np.ndarray) -> None:
    """256 numbers of int32 (mark, version, number of tokens), then the tokens as uint16."""
    header = np.zeros(256, "<i4")
    header[:3] = (*HEADER, len(tokens))
    path.write_bytes(header.tobytes() + tokens.astype("<u2").tobytes())
