import json
import math
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Causal, FillInTheMiddle
from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.objectives.fim import cut
from hornbook.data.vocabulary import Vocabulary, load_vocabulary
from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.data.conftest import flip

FIM = FillInTheMiddle()
MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


def texts() -> list[str]:
    """Short documents with letters of one to four bytes, and one that spells a special token."""
    rng = np.random.default_rng(0)
    words = ["one", "tokens", " ", "\n", "Stra\u00dfe", "\u65e5\u672c\u8a9e", "\U0001f984", "<|fim_middle|>", "e\u0301"]
    return ["".join(rng.choice(words, rng.integers(1, 40))) for _ in range(300)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokenized documents; a byte-level tokenizer with the three tokens of fill-in-the-middle."""
    folder = tmp_path_factory.mktemp("fim")
    lines = [json.dumps({"text": text, "id": str(number)}) for number, text in enumerate(texts())]
    (folder / "a.jsonl").write_text("\n".join(lines))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = tokenizers.decoders.ByteLevel()  # pyright: ignore
    alphabet, specials = tokenizers.pre_tokenizers.ByteLevel.alphabet(), ["<|endoftext|>", *MARKS]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    source = SourceConfig(paths=[str(folder / "a.jsonl")])
    config = TextConfig(sources={"a": source}, tokenizer=TokenizerFile(path=str(folder / "tokenizer.json")), steps=[])
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return folder / "data"


def loader(data: Path, objective: Any = FIM, seed: int = 1) -> Loader:
    config = DataConfig(objective=objective)
    return build_loader(config, data, sequence=32, micro_batch=4, seed=seed, prefetch=False)


def documents(corpus: Corpus) -> list[list[int]]:
    (shard,) = corpus.train["a"].shards
    return [ids.tolist() for ids in np.split(shard.data, shard.ends[:-1].astype(np.int64))]


def restored(ids: list[int], vocabulary: Vocabulary) -> str:
    """The document that a rearranged one was made from."""
    decode, special = vocabulary.tokenizer.decode, vocabulary.special
    assert ids[0] == special.prefix
    assert special.suffix is not None
    assert special.middle is not None
    after, between = ids.index(special.suffix), ids.index(special.middle)
    if after == 1:  # suffix first: the prefix stands before the middle
        return decode(ids[between + 1 :]) + decode(ids[2:between])
    return decode(ids[1:after]) + decode(ids[between + 1 :]) + decode(ids[after + 1 : between])


def test_documents_come_back_byte_by_byte(data: Path) -> None:
    fim, plain = loader(data), Corpus.open(data)
    vocabulary = load_vocabulary(plain)
    (folder,) = (data / "plans").glob("fim-*[0-9a-f]")
    changed = Corpus.open(folder)
    changed.verify()
    kinds = Counter()
    for before, after in zip(documents(plain), documents(changed), strict=True):
        assert before[0] == after[0] == vocabulary.delimiter_id
        kinds[after[1] == vocabulary.special.prefix and (2 if after[2] == vocabulary.special.suffix else 1)] += 1
        if before != after:
            assert restored(after[1:], vocabulary).encode() == vocabulary.tokenizer.decode(before[1:]).encode()
            assert sum(token == vocabulary.special.middle for token in after) == 1
    assert all(kinds[kind] > 40 for kind in (False, 1, 2))
    refs = [ref for sample in range(20) for ref in fim.index.documents(sample)]
    assert {ref.shard for ref in refs} == {"tokens/train/a/00000"}


def test_shares_and_cuts_follow_their_rates() -> None:
    count, text = 100_000, "abcdefghi"
    cuts = [cut(text, FIM, 1, "shard", number) for number in range(count)]
    made = [each for each in cuts if each is not None]

    def inside(found: int, of: int, share: float) -> bool:
        return abs(found / of - share) < 3.29 * math.sqrt(share * (1 - share) / of)

    assert inside(len(made), count, 0.5)
    assert inside(sum(each.suffix_first for each in made), len(made), 0.5)
    assert all(each.prefix + each.middle + each.suffix == text for each in made)
    pairs = Counter((len(each.prefix), len(each.suffix)) for each in made)
    assert len(pairs) == 55  # two of ten places, in order
    expected = {pair: len(made) / 100 * (1 if sum(pair) == 9 else 2) for pair in pairs}
    assert sum((pairs[pair] - due) ** 2 / due for pair, due in expected.items()) < 91.87  # 99.9 %, 54 degrees


def test_the_same_seed_gives_the_same_shards_and_they_are_made_once(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("plans"))
    first = loader(data).take(8).token_hash
    assert loader(copy).take(8).token_hash == first
    (shard,) = (copy / "plans").glob("fim-*/tokens/train/a/00000.bin")
    written = shard.stat().st_mtime_ns
    assert loader(copy).take(8).token_hash == first
    assert shard.stat().st_mtime_ns == written
    shard.write_bytes(shard.read_bytes()[:-2])  # damaged: made again
    assert loader(copy).take(8).token_hash == first
    assert (
        loader(copy, seed=2).index.fingerprint
        != loader(copy).index.fingerprint
        != loader(copy, Causal()).index.fingerprint
    )
    assert loader(copy, FillInTheMiddle(rate=0.9)).take(8).token_hash != first


def test_a_tokenizer_without_the_tokens_is_refused(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("plans", "tokenizer*.json", "special*"))
    definition = (data / "tokenizer" / "tokenizer.json").read_text()
    for mark in MARKS:
        definition = definition.replace(mark, mark.replace("fim", "other"))
    (copy / "tokenizer" / "tokenizer.json").write_text(definition)
    index = json.loads((copy / "tokens" / "index.json").read_text())
    index["tokenizer_digest"] = Tokenizer.load(copy / "tokenizer").digest
    (copy / "tokens" / "index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"data.objective needs tokens for prefix, suffix .*objectives fim --over"):
        loader(copy)


def test_damage_is_noticed_in_what_is_rearranged_and_in_what_came_of_it(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    shutil.rmtree(copy / "plans", ignore_errors=True)
    loader(copy).take(4)
    (made,) = (path for path in (copy / "plans").iterdir() if path.is_dir())
    for folder, remedy in ((made, f"delete {made}: it is made again"), (copy, "restore the file")):
        flip(folder / "tokens/train/a/00000.bin", 100)
        with pytest.raises(IntegrityError, match=f"{folder}/tokens/train/a/00000.bin: block 0 .* {remedy}"):
            loader(copy).take(4)
        shutil.rmtree(made, ignore_errors=True)
