"""Labelled sets as batches: every label on its token, against a slow reading of the shards; keyed, whole, balanced."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hornbook.data.batch import Batch
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Answer, Causal, Labels, ObjectiveConfig, Seq2Seq
from hornbook.data.corpus import Corpus
from hornbook.data.labelled.labelled import only_label
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.validation import held_out
from hornbook.data.vocabulary import load_vocabulary
from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.labels import AnswerLabels, ClassLabels, LabelsConfig, NumberLabels, SpanLabels, TagLabels
from hornbook.text.config.text import BPE, SourceConfig, TextConfig, TokenizerConfig, Unigram, WordPiece
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "ate", "some", "fish", "with", "much", "joy"]
PIECES = WordPiece(vocab=300, objectives=["masked"])
BYTES = BPE(vocab=320)
SEQUENCE = 24


def make(folder: Path, labels: LabelsConfig, rows: list[dict[str, object]], tokenizer: TokenizerConfig) -> Corpus:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TextConfig(
        sources={"set": SourceConfig(paths=[str(folder / "raw.jsonl")])},
        labels=labels,
        tokenizer=tokenizer,
        validation=0.2,
    )
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return Corpus.open(folder / "data")


def texts(count: int, seed: int = 0) -> list[str]:
    """Different texts; some do not fit into a row."""
    draw = np.random.default_rng(seed)
    return [f"{number} " + " ".join(draw.choice(WORDS, draw.integers(2, 30))) for number in range(count)]


def loader_of(corpus: Corpus, objective: ObjectiveConfig, seed: int = 1) -> Loader:
    return build_loader(
        DataConfig(objective=objective), corpus.root, sequence=SEQUENCE, micro_batch=4, seed=seed, prefetch=False
    )


def one_pass(corpus: Corpus, objective: ObjectiveConfig, seed: int = 1) -> list[Batch]:
    loader = loader_of(corpus, objective, seed)
    return loader.take(loader.index.epoch_tokens(1.0) // SEQUENCE).batches


def stored(corpus: Corpus, split: str = "train") -> list[tuple[list[int], np.ndarray]]:
    """(tokens, labels) of every document, in order."""
    found = []
    for shard in getattr(corpus, split)["set"].shards:
        begin = 0
        for end in shard.ends.tolist():
            assert shard.labels is not None
            found.append((shard.data[begin:end].tolist(), np.array(shard.labels[begin:end])))
            begin = end
    return found


def pieces(batches: list[Batch]) -> Iterator[dict[str, list]]:
    """The documents of batches, each with the columns of its tokens; padding is left out."""
    for batch in batches:
        for row, lengths in enumerate(batch.document_lengths):
            begin = 0
            for length in lengths:
                mine = slice(begin, begin + length)
                columns = {"tokens": batch.tokens, "targets": batch.targets, "weights": batch.weights}
                columns |= {"values": batch.values, "types": batch.types}
                piece = {name: part[row, mine].tolist() for name, part in columns.items() if part is not None}
                begin += length
                if any(piece["weights"]):
                    yield piece


def key(tokens: list[int]) -> tuple[int, ...]:
    """Cut documents may end otherwise, but the texts begin with their numbers."""
    return tuple(tokens[:8])


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    rows: list[dict[str, object]] = [{"text": text, "label": int(n % 5 == 0)} for n, text in enumerate(texts(80))]
    return make(tmp_path_factory.mktemp("classes"), ClassLabels(labels=["no", "yes"]), rows, PIECES)


@pytest.mark.parametrize("token", ["first", "last"])
def test_each_text_carries_its_label_once(classes: Corpus, token: str) -> None:
    documents = {key(tokens): labels[0, 0] for tokens, labels in stored(classes)}
    seen = list(pieces(one_pass(classes, Labels.model_validate({"token": token}))))
    assert sorted(key(piece["tokens"]) for piece in seen) == sorted(documents)
    for piece in seen:
        place = 0 if token == "first" else len(piece["tokens"]) - 2
        assert [n for n, weight in enumerate(piece["weights"]) if weight] == [place]
        assert piece["targets"][place] == documents[key(piece["tokens"])]
        assert piece["tokens"][-1] == classes.end_id  # cut ones too
    assert any(len(piece["tokens"]) == SEQUENCE for piece in seen)


def test_the_last_token_of_a_text_without_an_end_token(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": text, "label": n % 2} for n, text in enumerate(texts(20))]
    corpus = make(tmp_path, ClassLabels(labels=["a", "b"]), rows, BYTES)
    for piece in pieces(one_pass(corpus, Labels(token="last"))):
        assert piece["weights"][-1] == 1 == sum(piece["weights"])


def test_batches_depend_on_neither_world_nor_history(classes: Corpus) -> None:
    loader = loader_of(classes, Labels())
    loader.take(8)
    whole = loader.take(8)
    for rank in range(2):
        part = loader_of(classes, Labels())
        part.seek(8)
        share = part.take(8, rank, 2)
        assert (share.total_weight, share.token_hash) == (whole.total_weight, whole.token_hash)
        for mine, theirs in zip(share.batches, whole.batches[rank::2], strict=True):
            assert mine.tokens.equal(theirs.tokens)
            assert mine.targets.equal(theirs.targets)
            assert mine.weights.equal(theirs.weights)
    assert whole.total_weight == sum(float(batch.weights.sum()) for batch in whole.batches)


def test_another_seed_packs_otherwise(classes: Corpus) -> None:
    first, second = (loader_of(classes, Labels(), seed).index.fingerprint for seed in (1, 2))
    assert first != second
    assert first == loader_of(classes, Labels(), 1).index.fingerprint


def test_balance_shows_rare_labels_as_often(classes: Corpus) -> None:
    counts = np.bincount([int(labels[0, 0]) for _, labels in stored(classes)])
    assert counts[0] > 2 * counts[1]
    shown = list(pieces(one_pass(classes, Labels(balance=True))))
    assert np.bincount([piece["targets"][0] for piece in shown]).tolist() == [counts.max()] * 2
    times = np.unique([str(key(piece["tokens"])) for piece in shown if piece["targets"][0] == 1], return_counts=True)[1]
    assert len(times) == counts[1]
    assert times.max() - times.min() <= 1


def test_held_out_texts_come_once(classes: Corpus) -> None:

    def labels(max_tokens: int) -> float:
        rows = held_out(
            classes,
            "set",
            sequence=SEQUENCE,
            max_tokens=max_tokens,
            document_mask=True,
            objective=Labels(balance=True),
        )
        return sum(float(batch.weights.sum()) for batch in rows.batches(2))

    assert labels(10**6) == len(stored(classes, "validation"))
    assert 1 <= labels(1) <= SEQUENCE // 2


@pytest.mark.parametrize(
    "labels",
    [ClassLabels(labels=["a", "b"], text="question", pair="sentence"), ClassLabels(layout="qnli")],
    ids=["rows", "qnli"],
)
def test_types_of_pairs(tmp_path: Path, labels: ClassLabels) -> None:
    rows: list[dict[str, object]] = [{"question": f"{n} cat", "sentence": "sat on", "label": 0} for n in range(30)]
    corpus = make(tmp_path, labels, rows, PIECES)
    for piece in pieces(one_pass(corpus, Labels())):
        first = piece["tokens"].index(corpus.end_id)
        assert piece["types"] == [0] * (first + 1) + [1] * (len(piece["tokens"]) - first - 1)
        assert piece["tokens"].count(corpus.end_id) == 2


def test_numbers_and_several_labels(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"text": t, "x": n / 7, "y": -n} for n, t in enumerate(texts(30))]
    corpus = make(tmp_path / "n", NumberLabels(values=["x", "y"]), rows, PIECES)
    wanted = {key(tokens): labels[0].tolist() for tokens, labels in stored(corpus)}
    seen = {key(piece["tokens"]): piece["values"][0] for piece in pieces(one_pass(corpus, Labels()))}
    assert seen == wanted
    rows = [{"text": t, "label": ["b"] if n % 2 else ["a", "c"]} for n, t in enumerate(texts(30))]
    corpus = make(tmp_path / "m", ClassLabels(labels=["a", "b", "c"], multiple=True), rows, PIECES)
    assert {tuple(p["values"][0]) for p in pieces(one_pass(corpus, Labels()))} == {(0, 1, 0), (1, 0, 1)}


@pytest.mark.parametrize("tokenizer", [PIECES, BYTES, Unigram(vocab=400, sentinels=4)])
def test_tags_stand_at_the_first_piece_of_their_words(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    rows: list[dict[str, object]] = []
    for text in texts(40):
        words = text.split()
        rows.append({"tokens": words, "tags": [len(word) % 3 for word in words]})
    corpus = make(tmp_path, TagLabels(labels=["x", "y", "z"]), rows, tokenizer)
    wanted = {key(tokens): labels[:, 0].tolist() for tokens, labels in stored(corpus)}
    counts = sorted(sum(not math.isnan(label) for label in labels) for labels in wanted.values())
    assert set(counts) <= {len(row["tags"]) for row in rows}  # pyright: ignore[reportArgumentType]
    for piece in pieces(one_pass(corpus, Labels())):
        labels = wanted[key(piece["tokens"])]
        cut = len(labels) > len(piece["tokens"]) and corpus.end_id != corpus.delimiter_id
        for n, (target, weight) in enumerate(zip(piece["targets"], piece["weights"], strict=True)):
            closed = cut and n == len(piece["tokens"]) - 1
            assert weight == float(not closed and not math.isnan(labels[n]))
            assert not weight or target == labels[n]


def test_answers_that_are_cut_off_are_not_asked_for(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    for n, text in enumerate(texts(60)):
        word = text.split()[-1]
        begin = text.rindex(word)
        answers = {"text": [word], "answer_start": [begin]} if n % 3 else {"text": [], "answer_start": []}
        rows.append({"question": f"{n} what", "context": text, "answers": answers})
    corpus = make(tmp_path, SpanLabels(), rows, PIECES)
    documents = {key(tokens): (tokens, labels[:, 0]) for tokens, labels in stored(corpus)}
    asked = 0
    for piece in pieces(one_pass(corpus, Labels())):
        tokens, labels = documents[key(piece["tokens"])]
        assert piece["weights"] == [1.0] + [0.0] * (len(piece["tokens"]) - 1)
        kept = len(tokens) if len(tokens) <= SEQUENCE else SEQUENCE - 1
        assert piece["targets"][:kept] == labels[:kept].tolist()
        bits = [int(bit) for bit in piece["targets"]]
        assert sum(bit & 1 for bit in bits) == sum(bit >> 1 & 1 for bit in bits) == 1
        asked += 1
    whole = sum(len(tokens) <= SEQUENCE or labels[0] == 7 for tokens, labels in documents.values())
    assert 0 < whole == asked < len(documents)


@pytest.mark.parametrize("tokenizer", [BYTES, WordPiece(vocab=300, objectives=["causal"])])
def test_only_what_is_answered_counts(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"{n} cat:", "answer": t} for n, t in enumerate(texts(40))]
    corpus = make(tmp_path, AnswerLabels(), rows, tokenizer)
    documents = {key(tokens): (tokens, labels[:, 0]) for tokens, labels in stored(corpus)}
    own_end = corpus.end_id != corpus.delimiter_id
    for piece in pieces(one_pass(corpus, Answer())):
        tokens, labels = documents[key(piece["tokens"])]
        for n, weight in enumerate(piece["weights"]):
            last = n == len(tokens) - 1
            answered = not own_end if last else not math.isnan(labels[n + 1])
            assert weight == float(answered)
            assert not weight or piece["targets"][n] == (corpus.end_id if last else tokens[n + 1])


SPANS = [Unigram(vocab=400, sentinels=4), WordPiece(vocab=300, objectives=["span"], sentinels=4)]
"""Tokenizers for pairs: one whose texts begin with the end token, which pairs leave out, and one with its own."""


@pytest.mark.parametrize("tokenizer", SPANS, ids=lambda config: config.kind)
def test_prompts_and_answers_as_pairs(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    rows: list[dict[str, object]] = [{"prompt": f"{n} cat:", "answer": t} for n, t in enumerate(texts(40))]
    corpus = make(tmp_path, AnswerLabels(), rows, tokenizer)
    own_end = corpus.end_id != corpus.delimiter_id
    begin = [corpus.delimiter_id] if own_end else []
    wanted = set()
    for tokens, labels in stored(corpus):
        place = int(np.argmax(~np.isnan(labels[:, 0])))
        room = SEQUENCE - 1
        source, target = [*begin, *tokens[1:place]], [*begin, *tokens[place : len(tokens) - own_end]]
        wanted.add((*source[:room], corpus.end_id, *target[:room], corpus.end_id))
    seen = set()
    padding = load_vocabulary(corpus).pad_id
    for batch in one_pass(corpus, Seq2Seq()):
        assert batch.source is not None
        for row, (sources, targets) in enumerate(
            zip(batch.source.document_lengths, batch.document_lengths, strict=True)
        ):
            s = t = 0
            for source, target in zip(sources, targets, strict=True):
                if batch.weights[row, t]:
                    assert batch.tokens[row, t] == padding
                    assert batch.tokens[row, t + 1 : t + target].equal(batch.targets[row, t : t + target - 1])
                    pair = batch.source.tokens[row, s : s + source], batch.targets[row, t : t + target]
                    seen.add(tuple(token for side in pair for token in side.tolist()))
                s, t = s + source, t + target
    assert seen == wanted


@pytest.mark.parametrize("tokenizer", SPANS, ids=lambda config: config.kind)
def test_rows_of_pairs_hold_as_many_as_fit_with_begin_and_end(tmp_path: Path, tokenizer: TokenizerConfig) -> None:
    draw = np.random.default_rng(0)
    rows: list[dict[str, object]] = [
        {"prompt": f"{n} {' '.join(draw.choice(WORDS, draw.integers(1, 9)))}", "answer": str(draw.choice(WORDS))}
        for n in range(300)
    ]
    corpus = make(tmp_path, AnswerLabels(), rows, tokenizer)
    around = 1 + (corpus.end_id != corpus.delimiter_id)
    prompts = [around + int(np.argmax(~np.isnan(labels[:, 0]))) - 1 for _, labels in stored(corpus, "validation")]
    wanted: list[list[int]] = [[]]  # the prompts' side alone is full here
    for prompt in prompts:
        if sum(wanted[-1]) + prompt > SEQUENCE:
            wanted.append([])
        wanted[-1].append(prompt)
    held = held_out(corpus, "set", sequence=SEQUENCE, document_mask=True, objective=Seq2Seq())
    found = []
    for batch in held.batches(4):
        assert batch.source is not None
        for row, (sources, targets) in enumerate(
            zip(batch.source.document_lengths, batch.document_lengths, strict=True)
        ):
            begins = np.cumsum([0, *targets[:-1]])
            found.append([source for source, t in zip(sources, begins, strict=True) if batch.weights[row, t]])
    assert found == wanted
    assert any(sum(row) == SEQUENCE for row in found)
    assert held.plan.padding == len(wanted) * SEQUENCE - sum(prompts)


def test_what_does_not_fit_is_refused(classes: Corpus, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match='whose kind is classification: take "labels"'):
        loader_of(classes, Answer())
    rows: list[dict[str, object]] = [{"prompt": f"{n}", "answer": "a"} for n in range(30)]
    answers = make(tmp_path / "a", AnswerLabels(), rows, BYTES)
    with pytest.raises(UsageError, match='take "answer"'):
        loader_of(answers, Labels())
    with pytest.raises(UsageError, match='leave it at "concat"'):
        build_loader(
            DataConfig(objective=Labels(), packing="best_fit"), classes.root, sequence=8, micro_batch=1, seed=0
        )


def test_plain_text_has_none(tiny_corpus: Path) -> None:
    with pytest.raises(UsageError, match=r"needs labels, and .* has none: prepare it with a section \[text\.labels\]"):
        loader_of(Corpus.open(tiny_corpus), Labels())


def test_a_labelled_set_is_text_too(classes: Corpus) -> None:
    assert loader_of(classes, Causal()).take(4).total_weight > 0


def test_labels_that_are_damaged_are_named(classes: Corpus, tmp_path: Path) -> None:
    shutil.copytree(classes.root, tmp_path / "copy")
    path = next((tmp_path / "copy" / "tokens" / "train").rglob("*.labels"))
    data = bytearray(path.read_bytes())
    data[0] ^= 255
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="labels: its digest"):
        Corpus.open(tmp_path / "copy").verify()
    path.write_bytes(data[:-4])
    with pytest.raises(IntegrityError, match=r"\.labels: expected"):
        Corpus.open(tmp_path / "copy")


def test_a_set_of_one_label_is_known(tmp_path: Path) -> None:
    """Among classes and tags; numbers and sets of labels may be equal."""
    same: list[dict[str, object]] = [{"text": text, "label": 1} for text in texts(20)]
    found = make(tmp_path / "one", ClassLabels(labels=["a", "b"]), same, PIECES)
    assert only_label(found) == "b"
    mixed: list[dict[str, object]] = [*same, *({"text": f"other {text}", "label": 0} for text in texts(20))]
    assert only_label(make(tmp_path / "two", ClassLabels(labels=["a", "b"]), mixed, PIECES)) is None
    tagged: list[dict[str, object]] = [{"tokens": text.split(), "tags": [0] * len(text.split())} for text in texts(9)]
    assert only_label(make(tmp_path / "tags", TagLabels(labels=["O", "X"]), tagged, PIECES)) == "O"
    assert only_label(make(tmp_path / "numbers", NumberLabels(), same, PIECES)) is None
