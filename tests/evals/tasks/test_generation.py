"""What encoder-decoders and decoders write: prompts as in training, greedy and by beams; files that are refused."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.evals.config import GenerationFile, Summarization, Translation
from hornbook.evals.task import TaskContext
from hornbook.evals.tasks.generation import write
from hornbook.model.generate.beam import beam_search
from hornbook.model.transformer import Source, Transformer
from hornbook.parallel.world import World
from hornbook.run.job.run_inputs import open_inputs
from hornbook.settings.resolve import resolve
from hornbook.text.config.labels import AnswerLabels
from tests.evals.models import QUESTIONS, SETTINGS, context, engine

WORLD = World(torch.device("cpu"))
PAIRS = ("model.kind=encoder_decoder", "model.encoder_layers=1")
LABELS = AnswerLabels(prompt="translation.de", answer="translation.en", template="to English: {prompt}")
ROWS = [{"translation": {"de": "eins", "en": "one"}}, {"translation": {"de": "zwei", "en": "two"}}]


def asked(corpus: Path, sequence: int = 128) -> TaskContext:
    """The context of an encoder-decoder."""
    model = resolve(None, [*SETTINGS, *PAIRS], {}).recipe.model
    return replace(context(corpus, sequence), model=model)


def save(folder: Path, rows: list[Any]) -> str:
    path = folder / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def greedy(model: Transformer, source: list[int], start: int, steps: int) -> list[int]:
    """Written out, without a cache."""
    tokens = [start]
    with torch.no_grad():
        for _ in range(steps):
            hidden, _ = model(torch.tensor([tokens]), source=Source(torch.tensor([source])))
            assert model.head is not None
            tokens.append(int(model.head.logits(hidden)[0, -1, :257].argmax()))
    return tokens[1:]


def test_an_encoder_decoder_answers_as_it_was_trained(tmp_path: Path, tiny_corpus: Path) -> None:
    pytest.importorskip("sacrebleu")
    own, model = asked(tiny_corpus), engine(0, 257, *PAIRS)
    task: Any = Translation(path=save(tmp_path, ROWS), labels=LABELS, max_tokens=5).build(own)
    tokenizer = own.tokenizer
    assert task.items[0].tokens == [*tokenizer.encode("to English: eins"), tokenizer.end_id]
    assert task.texts == [["to English: eins\none"], ["to English: zwei\ntwo"]]
    found = write(model, WORLD, task.items[0].tokens, own, 5)
    assert found == tokenizer.decode(greedy(model.model, task.items[0].tokens, own.start, 5))
    with model.evaluation_mode() as transformer:
        memory = transformer.encode(Source(torch.tensor([task.items[0].tokens])))
        best = beam_search(
            transformer, [own.start], beams=3, max_tokens=5, stop=(tokenizer.end_id,), memory=memory, vocab=257
        )[0].tokens
    assert write(model, WORLD, task.items[0].tokens, own, 5, (), (3, 1.0)) == tokenizer.decode(best)
    assert best != greedy(model.model, task.items[0].tokens, own.start, 5), "else beams show nothing"
    scores = task.score(model, WORLD).as_dict()
    assert {"bleu", "bleu_signature", "chrf", "chrf_signature", "chrf_sentence", "items", "digest"} <= set(scores)


def test_what_is_written_is_scored(tmp_path: Path, tiny_corpus: Path) -> None:
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    own, model = context(tiny_corpus), engine()
    tokens = [own.tokenizer.delimiter_id, *own.tokenizer.encode("the model")]
    right = write(model, WORLD, tokens, own, 12)
    rows = [{"prompt": "the model", "answer": f" {right}"}] * 2
    translated = Translation(path=save(tmp_path, rows), max_tokens=12).build(own).score(model, WORLD).as_dict()
    assert translated["chrf"] == pytest.approx(100)
    rows = [{"prompt": "the model", "answer": "of all the words none"}] * 2
    summed = Summarization(path=save(tmp_path, rows), max_tokens=12).build(own).score(model, WORLD).as_dict()
    assert summed["rouge1"] == 0
    assert not any("signature" in name for name in summed)


def test_a_text_may_have_several_references(tmp_path: Path, tiny_corpus: Path) -> None:
    pytest.importorskip("sacrebleu")
    pytest.importorskip("rouge_score")
    own, model = context(tiny_corpus), engine()
    right = write(model, WORLD, [own.tokenizer.delimiter_id, *own.tokenizer.encode("the model")], own, 12)
    rows = [{"prompt": "the model", "answer": ["of all the words none", " ", right]}] * 2
    task: Any = Translation(path=save(tmp_path, rows), max_tokens=12).build(own)
    assert [item.answers for item in task.items] == [["of all the words none", right]] * 2
    assert task.texts == [["the model\nof all the words none", right]] * 2, "contamination looks for all"
    found = task.score(model, WORLD).as_dict()
    assert found["chrf"] == pytest.approx(100)
    assert found["bleu_signature"].startswith("nrefs:2|")
    other = Translation(path=save(tmp_path, [{**row, "answer": row["answer"][:1]} for row in rows]), max_tokens=12)
    alone = other.build(own).score(model, WORLD).as_dict()
    assert alone["chrf"] < 50
    assert alone["digest"] != found["digest"]
    asked = GenerationFile(path=save(tmp_path, rows), prompt="{prompt}", max_tokens=12, stop=[], normalize=False)
    assert asked.build(own).score(model, WORLD).as_dict()["exact"] == 1


def test_a_question_may_be_answered_by_an_encoder_decoder(tmp_path: Path, tiny_corpus: Path) -> None:
    own, model = asked(tiny_corpus), engine(0, 257, *PAIRS)
    source = [*own.tokenizer.encode("the model"), own.tokenizer.end_id]
    right = own.tokenizer.decode(greedy(model.model, source, own.start, 4)).strip()
    path = save(tmp_path, [{"question": "the model", "answer": right}, {"question": "the model", "answer": "not this"}])
    task = GenerationFile(path=path, max_tokens=4, stop=[], normalize=False).build(own)
    assert task.score(model, WORLD).as_dict()["exact"] == 0.5


@pytest.mark.parametrize("kind", ["decoder", "encoder_decoder"])
def test_a_decoder_reads_the_end_of_a_long_prompt_and_an_encoder_its_beginning(
    tmp_path: Path, tiny_corpus: Path, kind: str
) -> None:
    pytest.importorskip("sacrebleu")
    own = asked(tiny_corpus, 24) if kind == "encoder_decoder" else context(tiny_corpus, 24)
    rows = [{"prompt": "begin" + "x" * 30 + "end", "answer": "y"}] * 2
    config = Translation(path=save(tmp_path, rows), max_tokens=8)
    with pytest.raises(UsageError, match=r"test.jsonl:1: 3[89] tokens of prompt and 8 of the answer .* lower max_tok"):
        config.build(own)
    task: Any = config.model_copy(update={"long": "cut"}).build(own)
    kept = own.tokenizer.decode(task.items[0].tokens)
    assert len(task.items[0].tokens) == (24 if kind == "encoder_decoder" else 16)
    assert ("begin" in kept, "xend" in kept) == ((True, False) if kind == "encoder_decoder" else (False, True))


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([*ROWS, {"translation": {"de": "drei", "en": " "}}], r"test.jsonl:3: no answer: 'translation.en' is ' '"),
        ([*ROWS, {"translation": {"de": "drei", "en": [" "]}}], r"test.jsonl:3: no answer: 'translation.en' is "),
        ([*ROWS, {"translation": {"de": "drei", "en": []}}], r"test.jsonl:3: no answer: 'translation.en' is "),
        ([*ROWS, {"translation": {"de": "drei", "en": ["three", 3]}}], r"test.jsonl:3: an answer is not a string: "),
        ([*ROWS, {"translation": {"de": "drei", "en": 3}}], r"test.jsonl:3: answer is not a string: "),
        ([*ROWS, {"translation": {"de": "drei"}}], r"test.jsonl:3: missing answer: no key 'translation.en'"),
        ([*ROWS, ["x"]], r"test.jsonl:3: not an object"),
        (ROWS[:1], r"has 1 rows: a score needs two or more"),
    ],
)
def test_a_file_that_is_no_test_set_is_named(tmp_path: Path, tiny_corpus: Path, rows: list[Any], problem: str) -> None:
    pytest.importorskip("sacrebleu")
    with pytest.raises(UsageError, match=f"eval.tasks, translation: .*{problem}"):
        Translation(path=save(tmp_path, rows), labels=LABELS).build(context(tiny_corpus))


def test_parallel_files_are_a_test_set_with_one_digest(tmp_path: Path, tiny_corpus: Path) -> None:
    pytest.importorskip("sacrebleu")
    (tmp_path / "test.de").write_text("eins\nzwei\n")
    (tmp_path / "test.en").write_text("one\ntwo\n")
    labels = AnswerLabels(prompt="de", answer="en")
    config = Translation(path=str(tmp_path / "test.de"), layout="parallel", labels=labels, max_tokens=8)
    task: Any = config.build(context(tiny_corpus))
    assert [item.answers for item in task.items] == [["one"], ["two"]]
    with pytest.raises(UsageError, match="was changed: its digest is ") as told:
        config.model_copy(update={"digest": "0" * 32}).build(context(tiny_corpus))
    config = config.model_copy(update={"digest": str(told.value).split("its digest is ")[1][:32]})
    config.build(context(tiny_corpus))
    (tmp_path / "test.en").write_text("one\ntoo\n")
    with pytest.raises(UsageError, match="was changed"):
        config.build(context(tiny_corpus))
    (tmp_path / "test.en").write_text("one\n")
    with pytest.raises(UsageError, match=r"parallel files differ in lines: test.de has 2, test.en has 1"):
        config.build(context(tiny_corpus))
    (tmp_path / "test.de").unlink()
    with pytest.raises(UsageError, match=r"eval.tasks, translation.*test.de does not exist"):
        config.build(context(tiny_corpus))


@pytest.mark.parametrize("kind", ["generation", "translation", "summarization"])
def test_stages_of_a_pipeline_write_nothing(tmp_path: Path, tiny_corpus: Path, kind: str) -> None:
    task = f'eval.tasks=[{{kind = "{kind}", path = "{save(tmp_path, ROWS)}"}}]'
    words = [*SETTINGS, "model.layers=2", f"data.path={tiny_corpus}", "parallel.pipeline.stages=2", task]
    with pytest.raises(UsageError, match=f"eval.tasks, {kind}: no rank of a pipeline has the whole model"):
        open_inputs(resolve(None, words, {}))


SHARED = ["train.threads=1", "model.layers=2"]
EXPERTS = 'model.mlp={kind = "experts", count = 4, active = 2}'


@pytest.fixture(scope="module")
def alone(tiny_corpus: Path, run_ranks: Any) -> Callable[..., list[Any]]:
    """Answers of one process, by its settings."""
    address = "tests/evals/models.py:answers"
    return functools.cache(lambda *words: run_ranks(address, 1, str(tiny_corpus), {"data": 1}, words)[0])


@pytest.mark.parametrize(
    ("ranks", "parallel", "words"),
    [
        (2, {"data": 2}, SHARED),
        (2, {"data": 2, "shard": "everything"}, [*SHARED, *PAIRS]),
        (3, {"data": 3, "shard": "optimizer"}, SHARED),
        (2, {"data": 1, "expert": 2}, [*SHARED, EXPERTS]),
        (2, {"data": 1, "tensor": 2}, SHARED),
        (4, {"data": 2, "context": {"ranks": 2}}, SHARED),
        (4, {"data": 2, "tensor": 2, "shard": "everything"}, [*SHARED, *PAIRS]),
    ],
    ids=str,
)
def test_data_ranks_share_the_answers_and_all_have_those_of_one_process(
    tiny_corpus: Path, run_ranks: Any, alone: Any, ranks: int, parallel: dict[str, Any], words: list[str]
) -> None:
    """Answers of unlike lengths, of which the last turn has too few for all ranks."""
    greedy_texts, asked, beam_texts, _, some, _ = alone(*words)
    assert len({len(each) for each in greedy_texts}) > 2, "else ranks that end early show nothing"
    assert greedy_texts != beam_texts
    assert (asked, len(some)) == (len(QUESTIONS), 1)
    data_ranks = parallel["data"] * parallel.get("expert", 1)
    turns = -(-len(QUESTIONS) // data_ranks)
    for found in run_ranks("tests/evals/models.py:answers", ranks, str(tiny_corpus), parallel, words):
        assert found == [greedy_texts, turns, beam_texts, turns, greedy_texts[:data_ranks], 1]
