"""What holds for every objective, through the loader."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from hornbook.data.batch import Batch, GlobalBatch
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import ObjectiveConfig
from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.validation import held_out
from hornbook.errors import IntegrityError, UsageError
from hornbook.settings.recipe import Recipe
from hornbook.settings.resume_rules import refuse_incompatible, resume_changes
from tests.data.conftest import SENTINELS, VOCAB, Raw, restate, write_tokenizer

SEQUENCE = 64
SMALL = [
    {"mode": "R", "density": 0.15, "mean_span": 3},
    {"mode": "X", "density": 0.5, "mean_span": 8},
    {"mode": "S", "density": 0.25},
]
OBJECTIVES: dict[str, dict[str, Any]] = {
    "prefix": {"kind": "prefix"},
    "masked": {"kind": "masked"},
    "whole words": {"kind": "masked", "whole_word": True},
    "span": {"kind": "span"},
    "infill": {"kind": "infill"},
    "ul2": {"kind": "ul2", "denoisers": SMALL},
    "masked mixture": {
        "kind": "mixture",
        "parts": [{"objective": {"kind": "masked", "rate": rate}} for rate in (0.15, 0.4)],
    },
    "pair mixture": {
        "kind": "mixture",
        "parts": [
            {"objective": {"kind": "span"}},
            {"weight": 2, "objective": {"kind": "ul2", "denoisers": SMALL}},
            {"objective": {"kind": "infill"}},
        ],
    },
}
PAIRS = ["span", "infill", "ul2", "pair mixture"]
TENSORS = ("tokens", "targets", "weights", "positions", "samples", "sources")
_CONFIGS: TypeAdapter[ObjectiveConfig] = TypeAdapter(ObjectiveConfig)


def objective(name: str) -> ObjectiveConfig:
    return _CONFIGS.validate_python(OBJECTIVES[name])


@pytest.fixture(scope="module")
def raw(make_corpus: Callable) -> Raw:
    rng = np.random.default_rng(5)
    lengths = {name: rng.integers(2, 300, count).tolist() for name, count in (("a", 120), ("b", 40))}
    raw = make_corpus(lengths, shards=3, separate_end=True, validation={"a": lengths["b"]})
    write_tokenizer(raw)
    return raw


def loader(raw: Raw, name: str, *, micro_batch: int = 4, seed: int = 1, **options: Any) -> Loader:
    config = DataConfig(objective=objective(name), **options)
    return build_loader(config, raw.path, sequence=SEQUENCE, micro_batch=micro_batch, seed=seed, prefetch=False)


def row(batch: Batch, number: int) -> tuple[list[Any], ...]:
    """All of one row, padding of pairs left out, because its width depends on the rows beside it."""
    end = int(batch.weights[number].sum()) if batch.source is not None else batch.tokens.shape[1]
    columns = [getattr(batch, name)[number, :end].tolist() for name in TENSORS[:4]]
    ids = [int(batch.samples[number]), int(batch.sources[number])]
    prefixes = None if batch.prefixes is None else batch.prefixes[number]
    if batch.source is None:
        return (*columns, [*batch.document_lengths[number]], ids, prefixes)  # pyright: ignore[reportReturnType]
    pieces = [length for length in batch.document_lengths[number] if length]
    full = len(pieces) - (sum(pieces) > end)
    assert sum(pieces[:full]) == end
    lengths = batch.source.document_lengths[number][:full]
    used = sum(lengths)
    source = [tensor[number, :used].tolist() for tensor in (batch.source.tokens, batch.source.positions)]
    return (*columns, pieces[:full], [*lengths], *source, ids)


def rows(batch: GlobalBatch) -> list[tuple[list[Any], ...]]:
    return [row(part, number) for part in batch.batches if not part.is_empty for number in range(len(part.tokens))]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_sample_is_the_same_after_a_restart_and_for_any_cut(raw: Raw, name: str) -> None:
    first = loader(raw, name)
    taken = [first.take(12) for _ in range(8)]
    for micro_batch, world in ((4, 1), (5, 2), (1, 3), (64, 4)):
        again = loader(raw, name, micro_batch=micro_batch)
        for k in (5, 2):
            again.seek(12 * k)
            shares = []
            for rank in range(world):
                again.seek(12 * k)
                shares.append(again.take(12, rank, world))
            assert {share.token_hash for share in shares} == {taken[k].token_hash}
            assert {share.total_weight for share in shares} == {taken[k].total_weight}
            found = sorted(
                (one for share in shares for one in rows(share)),
                key=lambda one: one[-2:] if one[-1] is None else one[-1],
            )
            assert sorted(map(str, found)) == sorted(map(str, rows(taken[k])))
    assert taken[0].total_weight == sum(float(batch.weights.sum()) for batch in taken[0].batches)
    assert len({batch.token_hash for batch in taken}) == 8
    assert loader(raw, name, seed=2).take(12).token_hash != taken[0].token_hash


@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_epochs_differ(raw: Raw, name: str) -> None:
    data = loader(raw, name, order="sequential", weights={"b": 1.0})
    count = data.index.epoch_tokens(1) // SEQUENCE
    first, second = rows(data.take(count)), rows(data.take(count))
    same = sum(one[:-2] == other[:-2] and one[2] == other[2] for one, other in zip(first, second, strict=True))
    assert same < count / 8


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("document_mask", [True, False])
def test_pairs_are_well_formed(raw: Raw, name: str, document_mask: bool) -> None:
    data = loader(raw, name, document_mask=document_mask)
    made = data.take(data.index.epoch_tokens(1) // SEQUENCE)
    for batch in made.batches:
        source = batch.source
        assert source is not None
        assert source.tokens.shape[1] <= SEQUENCE + 8
        assert batch.tokens.shape[1] <= SEQUENCE + 8
        assert {tensor.dtype for tensor in (source.tokens, source.positions, batch.tokens, batch.targets)} == {
            torch.int64
        }
        for number, (lengths, inputs) in enumerate(zip(batch.document_lengths, source.document_lengths, strict=True)):
            assert len(lengths) == len(inputs)
            assert min(*lengths, *inputs) > 0
            assert sum(lengths) == batch.tokens.shape[1]
            assert sum(inputs) == source.tokens.shape[1]
            assert batch.positions[number].tolist() == [k for length in lengths for k in range(length)]
            assert source.positions[number].tolist() == [k for length in inputs for k in range(length)]
            used = int(batch.weights[number].sum())
            assert batch.weights[number].tolist() == [1.0] * used + [0.0] * (len(batch.tokens[number]) - used)
            begin = 0
            for length in lengths[: len(lengths) - (used < sum(lengths))]:
                tokens, targets = (
                    each[number, begin : begin + length].tolist() for each in (batch.tokens, batch.targets)
                )
                assert tokens[1:] == targets[:-1]  # shifted right behind the start token
                assert targets[-1] == 1
                assert tokens[0] in {VOCAB, 1}
                begin += length
            assert begin == used


def text_of(batch: Batch, number: int) -> list[list[int]]:
    """The pieces of text behind a row of spans: each sentinel of the source replaced by its span in the target."""
    assert batch.source is not None
    sentinels = range(VOCAB + 5, VOCAB + 5 + SENTINELS)
    found, s, t = [], 0, 0
    for inputs, outputs in zip(batch.source.document_lengths[number], batch.document_lengths[number], strict=True):
        source = batch.source.tokens[number, s : s + inputs].tolist()
        target = batch.targets[number, t : t + outputs].tolist()
        counted = bool(batch.weights[number, t])
        s, t = s + inputs, t + outputs
        if not counted:
            continue
        spans: dict[int, list[int]] = {}
        for token in target[:-1]:
            if token in sentinels:
                spans[token] = []
            else:
                spans[next(reversed(spans))].append(token)
        assert list(spans) == sorted(spans, reverse=True)[: len(spans)]
        assert max(spans) == VOCAB + 5 + SENTINELS - 1  # <extra_id_0>, the last id as in T5
        found.append([token for each in source[:-1] for token in spans.get(each, [each])])
    return found


def test_an_epoch_of_spans_holds_every_document_and_no_piece_crosses_one(raw: Raw) -> None:
    data = loader(raw, "span", order="sequential", weights={"a": 1.0})
    made = data.take(data.index.epoch_tokens(1) // SEQUENCE)
    pieces = [
        piece for batch in made.batches for number in range(len(batch.tokens)) for piece in text_of(batch, number)
    ]
    bodies = [document[1:-1] for document in raw.documents["train"]["a"]]  # delimiter and end belong to no piece
    left = 0
    for body in bodies:
        at = 0
        while len(body) - at >= 2:
            piece = pieces.pop(0)
            assert body[at : at + len(piece)] == piece
            at += len(piece)
        left += len(body) - at
    assert pieces == []
    assert left < 0.01 * sum(map(len, bodies))  # ends of one token


def test_without_document_mask_rows_are_those_of_t5(raw: Raw) -> None:
    data = loader(raw, "span", order="sequential", weights={"a": 1.0}, document_mask=False)
    batch = data.take(100).batches
    assert {tuple(each.tokens.shape[1:]) + tuple(each.source.tokens.shape[1:]) for each in batch if each.source} == {
        (14, 64)
    }
    stream = [token for document in raw.documents["train"]["a"] for token in document]
    texts = [text for each in batch for number in range(len(each.tokens)) for text in text_of(each, number)]
    assert texts == [stream[begin : begin + 70] for begin in range(0, 7000, 70)]


def test_denoisers_come_at_their_rates_behind_their_mode(raw: Raw) -> None:
    data = loader(raw, "ul2")
    count = data.index.epoch_tokens(1) // SEQUENCE
    made = data.take(count)
    modes = np.concatenate([batch.source.tokens[:, 0].numpy() for batch in made.batches if batch.source])
    shares = np.bincount(modes - VOCAB - 2, minlength=3) / count  # [R], [S], [X]
    assert np.abs(shares - 1 / 3).max() < 3.29 * np.sqrt(2 / 9 / count)


@pytest.mark.parametrize("name", [*PAIRS, "prefix", "masked"])
def test_evaluation_is_the_same_at_any_time_and_goes_through_the_text_once(raw: Raw, name: str) -> None:
    corpus = Corpus.open(raw.path)

    def batches(limit: int, seed: int = 1) -> list[Batch]:
        options: dict[str, Any] = {"sequence": SEQUENCE, "document_mask": True, "seed": seed}
        return list(held_out(corpus, "a", max_tokens=limit, objective=objective(name), **options).batches(3))

    first = batches(2000)
    assert [row(batch, 0) for batch in first] == [row(batch, 0) for batch in batches(2000)]
    assert [row(batch, 0) for batch in first] != [row(batch, 0) for batch in batches(2000, seed=2)]
    samples = [int(sample) for batch in batches(10**9) for sample in batch.samples]
    assert sorted(samples) == list(range(len(samples)))
    assert {int(sample) for batch in first for sample in batch.samples} < set(samples)
    widths = sum((batch.tokens if batch.source is None else batch.source.tokens).numel() for batch in first)
    assert 1500 < widths < 2600


def test_the_objective_is_part_of_the_fingerprint_and_cannot_change_on_resume(raw: Raw) -> None:
    prints = {name: loader(raw, name).index.fingerprint for name in OBJECTIVES}
    plain = build_loader(DataConfig(), raw.path, sequence=SEQUENCE, micro_batch=4, seed=1).index.fingerprint
    assert len({*prints.values(), plain}) == len(OBJECTIVES) + 1
    assert "(masked)" in loader(raw, "masked").index.describe()
    old = Recipe(data=DataConfig(objective=objective("span")))
    new = Recipe(data=DataConfig(objective=objective("masked")))
    with pytest.raises(UsageError, match=r"data.objective.kind \"span\" -> \"masked\" cannot change on resume"):
        refuse_incompatible(resume_changes(old, new))


def test_the_part_of_a_text_changes_with_the_epoch_and_every_epoch_has_all_of_it(raw: Raw) -> None:
    data = loader(raw, "ul2", order="sequential", weights={"a": 1.0})
    count = data.index.epoch_tokens(1) // SEQUENCE
    body = sorted(token for document in raw.documents["train"]["a"] for token in document[1:-1])
    modes = []
    for epoch in range(3):
        made = data.take(count)
        found = {}
        for batch in made.batches:
            assert batch.source is not None
            for number, sample in enumerate(batch.samples.tolist()):
                found[sample] = int(batch.source.tokens[number, 0])
        modes.append([found[sample] for sample in sorted(found)])
        samples = range(epoch * count, (epoch + 1) * count)
        held = [ref.length for sample in samples for ref in data.index.documents(sample)]
        assert 0.9 * len(body) < sum(held) < 1.1 * len(body)
    assert all(0.2 < np.mean(np.equal(modes[0], other)) < 0.5 for other in modes[1:])


def refusal(raw: Raw, sequence: int = SEQUENCE, packing: Any = "concat", **settings: Any) -> str:
    asked = _CONFIGS.validate_python(settings)
    config = DataConfig(objective=asked, packing=packing)
    with pytest.raises(UsageError) as caught:
        build_loader(config, raw.path, sequence=sequence, micro_batch=4, seed=1, prefetch=False)
    return str(caught.value)


def test_what_tokenizer_or_text_cannot_give_is_refused_with_key_and_remedy(raw: Raw, make_corpus: Callable) -> None:
    few, none = make_corpus({"a": [300] * 9}), make_corpus({"a": [300] * 9})
    write_tokenizer(few, without=["[S]"], sentinels=2)
    write_tokenizer(none, without=["[MASK]"], sentinels=0)
    text = refusal(few, kind="span")
    assert "takes 3 spans out of a row of train.sequence 64, and the tokenizer has 2 sentinel tokens" in text
    assert "text.tokenizer.sentinels = 3 or more" in text
    assert "data.objective needs sentinel tokens" in refusal(none, kind="span")
    assert "span --overwrite` trains one" in refusal(none, kind="span")
    assert "data.objective needs a mask token" in refusal(none, kind="infill")
    denoisers = [{"mode": "R", "density": 0.15, "mean_span": 6}, {"mode": "S", "density": 0.25}]
    assert "data.objective.denoisers.1 needs a mode token S" in refusal(few, kind="ul2", denoisers=denoisers)
    text = refusal(raw, kind="span", mean_span=80)
    assert text.startswith("data.objective.mean_span is 80, and no piece of text is longer than 73 tokens")
    assert "train.sequence is 64" in text
    short = make_corpus({"a": [12] * 200})
    write_tokenizer(short)
    assert "longer than 11 tokens (the longest document has 11," in refusal(short, kind="span", mean_span=12)
    assert "data.objective.denoisers.4.mean_span is 64" in refusal(short, kind="ul2")
    assert "train.sequence 2 is too short" in refusal(raw, kind="span", sequence=2)
    assert 'data.packing: "best_fit" packs plain text' in refusal(raw, kind="span", packing="best_fit")
    mixed = [{"objective": {"kind": "causal"}}, {"objective": {"kind": "masked"}}]
    assert "parts.1.objective is for encoder models and data.objective.parts.0.objective for decoder models" in refusal(
        raw, kind="mixture", parts=mixed
    )
    single = make_corpus({"a": [300] * 9, "b": [2] * 90})
    write_tokenizer(single)
    assert "data.weights: source b has no document of 2 tokens" in refusal(single, kind="span")


def test_another_tokenizer_than_that_of_the_shards_is_refused(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [300] * 9})
    write_tokenizer(raw)
    path = raw.path / "tokens" / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_digest": "0" * 32}))
    with pytest.raises(IntegrityError, match="is not the tokenizer that made the token shards"):
        loader(raw, "masked")


def test_ids_outside_the_vocabulary_are_damage(make_corpus: Callable) -> None:
    raw = make_corpus({"a": [300] * 9})
    write_tokenizer(raw)
    path = raw.path / "tokens/train/a/00000.bin"
    tokens = np.fromfile(path, np.uint16)
    tokens[1000] = 60_000
    tokens.tofile(path)
    restate(raw.path)
    data = loader(raw, "span")
    with pytest.raises(IntegrityError, match=r"00000.bin: found token id 60000"):
        data.take(data.index.epoch_tokens(1) // SEQUENCE)


@pytest.mark.parametrize("name", PAIRS)
def test_little_of_a_batch_is_padding(make_corpus: Callable, name: str) -> None:
    rng = np.random.default_rng(3)
    raw = make_corpus({"a": np.maximum(4, rng.lognormal(np.log(350), 1.2, 400)).astype(int).tolist()})
    write_tokenizer(raw)
    config = DataConfig(objective=objective(name))
    data = build_loader(config, raw.path, sequence=256, micro_batch=16, seed=1, prefetch=False)
    batches = data.take(data.index.epoch_tokens(1) // 256 // 16 * 16).batches
    held = padding = 0
    for batch in batches:
        assert batch.source is not None
        held += batch.tokens.numel() + batch.source.tokens.numel()
        for number in np.flatnonzero(batch.weights[:, -1] == 0):
            padding += batch.document_lengths[number][-1] + batch.source.document_lengths[number][-1]
    assert padding < 0.05 * held
