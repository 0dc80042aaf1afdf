import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hornbook.data.batch import Batch
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Masked, Replaced
from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.validation import held_out
from hornbook.errors import UsageError
from hornbook.text.config.text import BPE, SourceConfig, TextConfig
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize
from tests.data.conftest import VOCAB, Raw, spelling, write_tokenizer

SEQUENCE = 128


@pytest.fixture(scope="module")
def raw(make_corpus: Callable) -> Raw:
    rng = np.random.default_rng(5)
    sizes = rng.integers(2, 400, 1500).tolist()
    raw = make_corpus({"a": sizes}, validation={"a": sizes[:100]}, shards=2)
    write_tokenizer(raw)
    return raw


def loader(raw: Raw, sequence: int = SEQUENCE, **options: Any) -> Loader:
    config = DataConfig(objective=Masked(**options))
    return build_loader(config, raw.path, sequence=sequence, micro_batch=16, seed=1, prefetch=False)


def plain(raw: Raw, sequence: int = SEQUENCE) -> Loader:
    return build_loader(DataConfig(), raw.path, sequence=sequence, micro_batch=16, seed=1, prefetch=False)


def whole(data: Loader, samples: int) -> dict[str, np.ndarray]:
    names = ("tokens", "targets", "weights", "positions")
    batches = data.take(samples).batches
    return {name: torch.cat([getattr(batch, name) for batch in batches]).numpy() for name in names}


def inside(found: float, of: float, share: float) -> bool:
    """Within the 99.9 % interval of a binomial share."""
    return abs(found / of - share) < 3.29 * math.sqrt(share * (1 - share) / of)


def test_a_million_tokens_are_masked_as_in_bert(raw: Raw) -> None:
    samples = 8192
    rows, causal = whole(loader(raw), samples), whole(plain(raw), samples)
    assert (rows["targets"] == causal["tokens"]).all()
    chosen, ordinary = rows["weights"] > 0, (causal["tokens"] != raw.delimiter)
    assert set(np.unique(rows["weights"])) == {0.0, 1.0}
    assert ordinary.sum() > 1e6
    wanted = np.maximum(1, np.rint(0.15 * ordinary.sum(1))) * (ordinary.sum(1) > 0)
    assert (chosen.sum(1) == wanted).all()  # exactly, in every row
    assert abs(chosen.sum() / ordinary.sum() - 0.15) < 0.001
    assert not (chosen & ~ordinary).any()  # never special tokens, padding among them
    assert (rows["tokens"] == rows["targets"])[~chosen].all()
    tokens, targets = rows["tokens"][chosen], rows["targets"][chosen]
    masked, kept = (tokens == VOCAB + 1), (tokens == targets)
    assert inside(masked.sum(), len(tokens), 0.8)
    assert inside((~masked & ~kept).sum(), len(tokens), 0.1 * (1 - 1 / (VOCAB - 1)))
    replaced = tokens[~masked & ~kept]
    assert set(replaced) == set(range(1, VOCAB))  # all ordinary tokens, no special one
    expected = len(replaced) / (VOCAB - 1)
    statistic = ((np.bincount(replaced, minlength=VOCAB)[1:] - expected) ** 2 / expected).sum()
    assert statistic < 1143.0  # 99.9 % point of chi-square with 998 degrees
    places = np.bincount(np.nonzero(chosen & ordinary.all(1, keepdims=True))[1], minlength=SEQUENCE)
    assert ((places - places.mean()) ** 2 / places.mean()).sum() * 1 / 0.85 < 181.99  # 127 degrees; without replacement


def test_the_distribution_is_that_of_transformers(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(raw.path / "tokenizer" / "tokenizer.json"), mask_token="[MASK]", pad_token="[PAD]"
    )
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    torch.manual_seed(0)
    causal, rows = whole(plain(raw), 4096), whole(loader(raw), 4096)
    ordinary = causal["tokens"] != raw.delimiter
    special = torch.from_numpy(~ordinary).long()
    made = collator.torch_mask_tokens(torch.from_numpy(causal["tokens"].copy()), special_tokens_mask=special)
    theirs, labels = (tensor.numpy() for tensor in made)

    def fates(tokens: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """How many tokens are left alone, masked, replaced, kept."""
        masked, same = tokens == VOCAB + 1, tokens == causal["tokens"]
        parts = (ordinary & ~chosen, chosen & masked, chosen & ~masked & ~same, chosen & same)
        return np.array([part.sum() for part in parts], float)

    table = np.stack([fates(rows["tokens"], rows["weights"] > 0), fates(theirs, labels != -100)])
    expected = table.sum(0) * table.sum(1, keepdims=True) / table.sum()
    assert ((table - expected) ** 2 / expected).sum() < 16.27  # 99.9 % point of chi-square with 3 degrees


def test_a_generator_has_masks_alone_and_every_token_is_told(raw: Raw) -> None:
    config = DataConfig(objective=Replaced(), packing="best_fit")
    data = build_loader(config, raw.path, sequence=SEQUENCE, micro_batch=16, seed=1, prefetch=False)
    taken, shares = data.take(100), set[float]()
    counted = 0
    for batch in taken.batches:
        assert batch.detection is not None
        chosen, told = batch.weights > 0, batch.detection.weights(batch)
        assert (batch.tokens[chosen] == VOCAB + 1).all()
        assert (batch.tokens == batch.targets)[~chosen].all()
        assert (batch.targets[chosen] != VOCAB + 1).all()
        assert torch.equal(told.sum(1), batch.detection.used.float())
        for row, used in zip(batch.targets, batch.detection.used.tolist(), strict=True):
            assert (row[used:] == row[-1]).all()  # padding
        counted += int(told.sum())
        shares.add(batch.detection.share)
    (share,) = shares
    assert share == pytest.approx(taken.total_weight / counted)
    assert counted < 100 * SEQUENCE


def test_each_epoch_has_masks_of_its_own_unless_they_are_static(raw: Raw) -> None:
    for dynamic in (True, False):
        data = loader(raw, dynamic=dynamic)
        rows = data.index.epoch_tokens(1) // SEQUENCE
        seen = [whole(data, rows) for _ in range(2)]
        order = [data.index.sampler.locate(np.arange(epoch * rows, (epoch + 1) * rows))[1] for epoch in (0, 1)]
        first, second = (each["tokens"][np.argsort(where)] for each, where in zip(seen, order, strict=True))
        targets = [each["targets"][np.argsort(where)] for each, where in zip(seen, order, strict=True)]
        assert (targets[0] == targets[1]).all()
        assert (first == second).all() != dynamic
        assert ((first != second).any(1).mean() > 0.99) == dynamic


def words_of(tokens: np.ndarray, positions: np.ndarray) -> list[list[int]]:
    """Places of each word's tokens, by spelling."""
    words: list[list[int]] = []
    for place, (token, position) in enumerate(zip(tokens.tolist(), positions.tolist(), strict=True)):
        if token == 0:
            continue
        before = tokens[place - 1] if place and position else 0
        inside = words and words[-1][-1] == place - 1 and before and spelling(token)[0] != "_"
        if inside and not spelling(before).endswith("."):
            words[-1].append(place)
        else:
            words.append([place])
    return words


def test_whole_words_are_chosen_or_none_of_it(raw: Raw) -> None:
    rows = whole(loader(raw, whole_word=True), 400)
    lengths, exact = Counter(), 0
    for tokens, weights, positions in zip(rows["targets"], rows["weights"], rows["positions"], strict=True):
        words = words_of(tokens, positions)
        for word in words:
            assert len({weights[place] for place in word}) == 1
            lengths[len(word)] += int(weights[word[0]])
        wanted = max(1, round(0.15 * sum(map(len, words))))
        assert weights.sum() <= wanted
        exact += weights.sum() == wanted
    assert exact > 390
    assert all(lengths[size] > 50 for size in (1, 2, 3, 4))


@pytest.mark.parametrize("vocab", [300, 2000])
def test_rows_of_chinese_and_japanese_are_masked_at_the_rate(tmp_path: Path, vocab: int) -> None:
    """Sentences without a blank: each character is a word, so no row is far from 15 %, as no row of English is."""
    rng = np.random.default_rng(3)
    letters = [chr(point) for point in (*range(0x4E00, 0x4E60), *range(0x3042, 0x3080))]
    sentences = ["".join(rng.choice(letters, 30)) + "\u3002" for _ in range(3000)]
    rows = [json.dumps({"text": "".join(sentences[first : first + 20])}) for first in range(0, 3000, 20)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    tokenizer = BPE(vocab=vocab, objectives=["masked"])
    config = TextConfig(sources={"a": SourceConfig(paths=[str(tmp_path / "a.jsonl")])}, tokenizer=tokenizer)
    prepare(config, tmp_path / "data", workers=1)
    tokenize(tmp_path / "data", config, workers=1)
    data = DataConfig(objective=Masked(whole_word=True))
    found = build_loader(data, tmp_path / "data", sequence=256, micro_batch=8, seed=1, prefetch=False)
    read = whole(found, 64)
    chosen, ordinary = read["weights"] > 0, read["targets"] != found.corpus.delimiter_id
    shares = chosen.sum(1) / ordinary.sum(1)
    assert 0.14 <= shares.min() <= shares.max() <= 0.16


def evaluation(raw: Raw, **options: Any) -> list[Batch]:
    corpus = Corpus.open(raw.path)
    settings: dict[str, Any] = {"sequence": SEQUENCE, "max_tokens": 8000, "document_mask": True}
    return list(held_out(corpus, "a", objective=Masked(**options), seed=3, **settings).batches(8))


def test_evaluation_has_masks_and_a_rate_of_its_own(raw: Raw) -> None:
    def share(batches: list[Batch]) -> float:
        ordinary = sum(int((batch.targets != raw.delimiter).sum()) for batch in batches)
        return sum(float(batch.weights.sum()) for batch in batches) / ordinary

    first, second = evaluation(raw, rate=0.3, eval_rate=0.15), evaluation(raw, rate=0.3, eval_rate=0.15)
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(first, second, strict=True))
    assert abs(share(first) - 0.15) < 0.002
    assert abs(share(evaluation(raw, rate=0.3)) - 0.3) < 0.002
    assert sum(batch.targets.numel() for batch in first) == 62 * SEQUENCE


def test_a_tokenizer_without_mask_is_refused(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [300]})
    write_tokenizer(raw, without=["[MASK]"])
    with pytest.raises(UsageError, match=r"data.objective needs a mask token.*tokenizer.objectives span,ul2,masked "):
        loader(raw)
