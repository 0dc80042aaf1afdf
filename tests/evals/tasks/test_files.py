"""Tasks of local files: what their rows become, and rows, files and answers that are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from hornbook.errors import UsageError
from hornbook.evals.config import ContinuationFile, FileTask, GenerationFile, MinimalPairs, MultipleChoice
from hornbook.evals.tasks.generation import until
from hornbook.parallel.world import World
from tests.evals.models import context, engine

WORLD = World(torch.device("cpu"))


def write(folder: Path, *rows: Any) -> str:
    path = folder / "items.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


QUESTIONS = (
    {"question": "one two", "choices": ["the", "zebra"], "answer": 0},
    {"question": "a page", "choices": ["x", "says", "y"], "answer": "B"},
    {"question": "its", "choices": ["x", "page"], "answer": "page"},
)


def test_answers_are_numbers_letters_or_texts(tmp_path: Path, tiny_corpus: Path) -> None:
    own = context(tiny_corpus)
    task: Any = MultipleChoice(path=write(tmp_path, *QUESTIONS), prompt="Q: {question}\nA:").build(own)
    assert [item.right for item in task.items] == [0, 1, 1]
    assert task.texts == ["Q: one two\nA: the", "Q: a page\nA: says", "Q: its\nA: page"]
    assert task.items[1].sizes == [2, 5, 2]
    found = task.score(engine(), WORLD).as_dict()
    assert found["items"] == 3
    assert 0 <= found["accuracy"] <= 1


def test_the_likelier_sentence_of_a_pair_counts(tmp_path: Path, tiny_corpus: Path) -> None:
    path = write(tmp_path, *({"sentence_good": "the model", "sentence_bad": "model zzz"},) * 2)
    model, own = engine(), context(tiny_corpus)
    right = MinimalPairs(path=path).build(own).score(model, WORLD).as_dict()["accuracy"]
    swapped = MinimalPairs(path=path, good="sentence_bad", bad="sentence_good").build(own)
    assert {right, swapped.score(model, WORLD).as_dict()["accuracy"]} == {0.0, 1.0}


def test_a_model_that_tells_nothing_apart_is_at_chance(tmp_path: Path, tiny_corpus: Path) -> None:
    """Such as one of zeros before its first step: the right sentence comes first in each pair."""
    model = engine()
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.zero_()
    path = write(tmp_path, *({"sentence_good": "the model", "sentence_bad": "the medol"},) * 2)
    found = MinimalPairs(path=path).build(context(tiny_corpus)).score(model, WORLD).as_dict()
    assert (found["accuracy"], found["accuracy_norm"]) == (0.5, 0.5)


def test_what_follows_is_scored_by_token_and_by_byte(tmp_path: Path, tiny_corpus: Path) -> None:
    rows = ({"context": "the", "continuation": " model"}, {"context": "", "continuation": "a"})
    task = ContinuationFile(path=write(tmp_path, *rows)).build(context(tiny_corpus))
    found = task.score(engine(), WORLD)
    nats = found.values["loss"] * [6, 1]  # one byte is one token
    assert found.as_dict()["bits_per_byte"] == pytest.approx(nats.sum() / 0.6931471805599453 / 7)


def test_an_answer_is_written_greedily(tmp_path: Path, tiny_corpus: Path) -> None:
    own, model = context(tiny_corpus), engine()
    tokens = [own.tokenizer.delimiter_id, *own.tokenizer.encode("the model")]
    with torch.no_grad():
        for _ in range(4):
            hidden, _ = model.model(torch.tensor([tokens]))
            tokens.append(int(model.model.head.logits(hidden)[0, -1].argmax()))  # pyright: ignore
    text = own.tokenizer.decode(tokens[-4:])
    rows = (
        {"question": "the model", "answer": ["?", f" {text.strip()}"]},
        {"question": "the model", "answer": "not this"},
    )
    task = GenerationFile(path=write(tmp_path, *rows), max_tokens=4, stop=[], normalize=False).build(own)
    assert task.score(model, WORLD).values["exact"].tolist() == [1.0, 0.0]  # pyright: ignore


def test_writing_ends_at_the_first_stop(tiny_corpus: Path) -> None:
    tokenizer = context(tiny_corpus).tokenizer
    taken: list[int] = []

    def ids() -> Any:
        for token in tokenizer.encode("ab. c\nd"):
            taken.append(token)
            yield token

    assert until(ids(), tokenizer, ["\n", ". "]) == "ab"
    assert len(taken) == 4, "nothing is computed behind a stop"
    assert until(ids(), tokenizer, ["", "x"]) == "ab. c\nd", "an empty stop stops nothing"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": "q", "choices": ["a"], "answer": 0}, r"items.jsonl:2: 'choices' must be a list of two texts"),
        ({"question": "q", "choices": ["a", ""], "answer": 0}, r"items.jsonl:2: choice 2 is empty: correct the row"),
        ({"question": "q", "choices": [" ", "a"], "answer": 1}, r"items.jsonl:2: choice 1 is empty"),
        ({"question": "q", "choices": ["a", "b"], "answer": 2}, r"items.jsonl:2: 'answer' is 2: the right choice is"),
        ({"question": "q", "choices": ["a", "b"], "answer": "C"}, r"items.jsonl:2: 'answer' is 2"),
        ({"question": "q", "choices": ["a", "b"], "answer": "\u00df"}, r"items.jsonl:2: 'answer' is '\u00df'"),
        ({"question": "q", "choices": ["a", "b"]}, r"items.jsonl:2: 'answer' is None"),
        (
            {"text": "q", "choices": ["a", "b"], "answer": 0},
            r"items.jsonl:2: no text or number 'question' \(keys: text",
        ),
        ({"question": "q" * 300, "choices": ["a", "b"], "answer": 0}, r"items.jsonl:2: 302 tokens.*cut"),
        (["q"], r"items.jsonl:2: a JSON object is needed, not list"),
    ],
)
def test_a_row_that_is_no_question_is_named(tmp_path: Path, tiny_corpus: Path, row: Any, problem: str) -> None:
    config = MultipleChoice(path=write(tmp_path, QUESTIONS[0], row))
    with pytest.raises(UsageError, match=problem):
        config.build(context(tiny_corpus))


def test_a_long_prompt_is_cut_where_asked(tmp_path: Path, tiny_corpus: Path) -> None:
    row = {"question": "q" * 300, "choices": ["a", "b"], "answer": 0}
    task = MultipleChoice(path=write(tmp_path, QUESTIONS[0], row), long="cut").build(context(tiny_corpus))
    assert task.score(engine(), WORLD).as_dict()["cut"] == 1, "items, and not their answers"
    config = GenerationFile(path=write(tmp_path, *[{"question": "q" * 300, "answer": "a"}] * 2), max_tokens=8)
    with pytest.raises(UsageError, match=r"items.jsonl:1: 301 tokens of prompt and 8 of the answer"):
        config.build(context(tiny_corpus))
    own: Any = config.model_copy(update={"long": "cut"}).build(context(tiny_corpus))
    assert [len(item.tokens) for item in own.items] == [120, 120]


@pytest.mark.parametrize("config", [MinimalPairs, MultipleChoice, ContinuationFile, GenerationFile])
def test_a_missing_file_is_named(tmp_path: Path, tiny_corpus: Path, config: type[FileTask]) -> None:
    with pytest.raises(UsageError, match=r"eval.tasks, \w+: .*gone.jsonl cannot be read .*restore the file"):
        config(path=str(tmp_path / "gone.jsonl")).build(context(tiny_corpus))


def test_a_changed_file_is_refused(tmp_path: Path, tiny_corpus: Path) -> None:
    path = write(tmp_path, *QUESTIONS)
    digest = xxhash.xxh3_128_hexdigest(Path(path).read_bytes())
    config = MultipleChoice(path=path, digest=digest)
    config.build(context(tiny_corpus))
    write(tmp_path, *QUESTIONS[:2])
    with pytest.raises(UsageError, match=f"was changed: its digest is [0-9a-f]{{32}}, and the recipe states {digest}"):
        config.build(context(tiny_corpus))
