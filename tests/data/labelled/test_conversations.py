"""Conversations as batches: weights on what the assistant says alone, nothing across conversations, cuts are told."""

import json
from pathlib import Path
from typing import Any

import pytest

from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Answer, Labels, Seq2Seq
from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.errors import UsageError
from hornbook.text.config.labels import ChatLabels
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.chat_template import Message, read_chat_template
from hornbook.text.tokenizer.tokenize import tokenize
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.conftest import write_tokenizer

SEQUENCE = 96
NAMES = ["<|im_start|>", "<|im_end|>"]


def talk(number: int) -> list[dict[str, str]]:
    turns = [
        ("user", f"{number}?"),
        ("assistant", f"a{number}" * (1 + number % 3)),
        ("user", "why"),
        ("assistant", "b"),
    ]
    return [{"role": role, "content": content} for role, content in turns[: 2 + 2 * (number % 2)]]


def make(folder: Path, rows: list[dict[str, Any]], template: str = "chatml") -> Corpus:
    write_tokenizer(folder / "tokenizer", NAMES)
    (folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TextConfig(
        sources={"set": SourceConfig(paths=[str(folder / "raw.jsonl")])},
        labels=ChatLabels(),
        tokenizer=TokenizerFile(path=str(folder / "tokenizer")),
        chat_template=template,
        validation=0.1,
    )
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return Corpus.open(folder / "data")


def loader_of(corpus: Corpus, sequence: int = SEQUENCE) -> Loader:
    config = DataConfig(objective=Answer())
    return build_loader(config, corpus.root, sequence=sequence, micro_batch=2, seed=1, prefetch=False)


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make(tmp_path_factory.mktemp("talks"), [{"messages": talk(number)} for number in range(40)])


def learned(corpus: Corpus, messages: list[dict[str, str]]) -> list[tuple[int, int, float]]:
    """(token, next token, weight) of each token of a conversation but the last, slowly."""
    tokenizer = Tokenizer.load(corpus.root / "tokenizer")
    tokens: list[int] = []
    weights: list[float] = []
    for each in messages:
        head = [*tokenizer.encode_parts([(NAMES[0], True)]), *tokenizer.encode(f"{each['role']}\n")]
        said = [*tokenizer.encode(each["content"]), *tokenizer.encode_parts([(NAMES[1], True)])]
        tokens += [*head, *said, *tokenizer.encode("\n")]
        weights += [0.0] * len(head) + [float(each["role"] == "assistant")] * len(said) + [0.0]
    return list(zip(tokens[:-1], tokens[1:], weights[1:], strict=True))


def test_only_answers_count_and_no_row_mixes_conversations(talks: Corpus) -> None:
    loader = loader_of(talks)
    whole = loader.take(loader.index.plans[0].rows)
    expected = [learned(talks, talk(number)) for number in range(40)]
    found = []
    for batch in whole.batches:
        for row, lengths in enumerate(batch.document_lengths):
            begin = 0
            for length in lengths:
                mine = slice(begin, begin + length)
                columns = [part[row, mine].tolist() for part in (batch.tokens, batch.targets, batch.weights)]
                assert batch.positions[row, mine].tolist() == list(range(length))
                assert columns[2][-1] == 0
                if any(columns[2]):
                    found.append(list(zip(*columns, strict=True))[:-1])
                begin += length
            assert begin == SEQUENCE
    held_out = talks.validation["set"].documents
    assert len(found) == 40 - held_out
    assert all(piece in expected for piece in found)
    assert len({str(piece) for piece in found}) == len(found)
    assert whole.total_weight == sum(weight for piece in found for _, _, weight in piece)


def test_ranks_and_a_resume_see_the_same(talks: Corpus) -> None:
    loader = loader_of(talks)
    loader.take(4)
    whole = loader.take(8)
    for rank in range(2):
        part = loader_of(talks)
        part.seek(4)
        share = part.take(8, rank, 2)
        assert (share.total_weight, share.token_hash) == (whole.total_weight, whole.token_hash)
        for mine, theirs in zip(share.batches, whole.batches[rank::2], strict=True):
            assert mine.tokens.equal(theirs.tokens)
            assert mine.weights.equal(theirs.weights)


def test_what_is_longer_than_a_row_is_cut_and_told(tmp_path: Path) -> None:
    asked, said = {"role": "user", "content": "long"}, {"role": "assistant", "content": "z"}
    rows = [{"messages": [asked, {**said, "content": f"{number}" + "x" * 300}]} for number in range(6)]
    rows += [{"messages": [{**asked, "content": f"{number}" + "y" * 300}, said]} for number in range(6)]
    corpus = make(tmp_path, [*rows, *({"messages": talk(number)} for number in range(20))])
    loader, tokenizer = loader_of(corpus), Tokenizer.load(corpus.root / "tokenizer")
    (shard,) = corpus.train["set"].shards
    documents = [
        tokenizer.decode(shard.data[start:end]) for start, end in zip([0, *shard.ends], shard.ends, strict=False)
    ]
    answers, questions = (sum(letter * 300 in text for text in documents) for letter in "xy")
    assert min(answers, questions) > 3
    of = f"{len(documents)} conversations of source set"
    assert loader.index.notes == [
        f"{answers} of {of} are longer than train.sequence 96 and lose their end",
        f"{questions} of {of} have no answer within train.sequence 96 and are left out",
    ]
    seen = "".join(
        tokenizer.decode(row)
        for batch in loader.take(loader.index.plans[0].rows).batches
        for row in batch.tokens.tolist()
    )
    assert seen.count("user\nlong") == answers
    assert "yy" not in seen
    with pytest.raises(UsageError, match=r"no conversation of source set has an answer within a row: raise train.seq"):
        loader_of(corpus, 8)


def test_a_conversation_is_asked_for_as_it_was_learned(talks: Corpus) -> None:
    tokenizer = Tokenizer.load(talks.root / "tokenizer")
    template = read_chat_template(talks.root / "tokenizer", tokenizer)
    assert template is not None
    prompt = template.encode([Message("user", "7?")])
    stored = [pair[0] for pair in learned(talks, talk(7))]
    assert stored[: len(prompt)] == prompt


@pytest.mark.parametrize("objective", [Labels(), Seq2Seq()])
def test_objectives_that_learn_no_conversation(talks: Corpus, objective: Any) -> None:
    with pytest.raises(UsageError, match='kind is chat: take "answer"'):
        build_loader(DataConfig(objective=objective), talks.root, sequence=SEQUENCE, micro_batch=2, seed=1)


def test_a_template_that_does_not_fit(tmp_path: Path) -> None:
    (tmp_path / "other.jinja").write_text("{% for m in messages %}<|start|>{{ m.content }}{% endfor %}")
    with pytest.raises(UsageError, match=r"text.chat_template .*other.jinja: .*<\|start\|>.*no such token"):
        make(tmp_path / "a", [{"messages": talk(1)}], str(tmp_path / "other.jinja"))
    with pytest.raises(UsageError, match=r"text.chat_template: nowhere.jinja cannot be read.*tokenizer, plain, chatml"):
        make(tmp_path / "b", [{"messages": talk(1)}], "nowhere.jinja")
    strict = "{{ raise_exception('no system') if messages[0].role == 'system' }}"
    (tmp_path / "strict.jinja").write_text(strict + "{% for m in messages %}{{ m.content }}{% endfor %}")
    rows = [{"messages": [{"role": "system", "content": "s"}, *talk(1)]}]
    with pytest.raises(UsageError, match=r"raw.jsonl:1: .*no system: leave the row out \(text.exclude\)"):
        make(tmp_path / "c", rows, str(tmp_path / "strict.jinja"))
