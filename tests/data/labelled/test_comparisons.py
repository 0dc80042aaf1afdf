"""Compared answers as batches: whole comparisons in a row, cut to fit and told, equal on every rank; references."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hornbook.cli.main import main
from hornbook.data.batch import CHOSEN, MISMATCHED, REJECTED, Batch, Compared
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objectives import Answer
from hornbook.data.config.preferences import DPO, KTO, ORPO, Comparing, Reward
from hornbook.data.corpus import Corpus
from hornbook.data.labelled.comparisons import find_answers
from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.validation import held_out
from hornbook.errors import Exit, UsageError
from hornbook.evals.labels import RewardTask
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.hf import write_hf
from hornbook.model.init.init import initial_values
from hornbook.model.storage.load import load_model
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World
from hornbook.run.job.start.run_reference import compute_references
from hornbook.settings.recipe import Recipe
from hornbook.settings.training import TrainConfig
from hornbook.text.config.labels import LabelsConfig, PreferenceLabels, RatedLabels
from hornbook.text.config.text import SourceConfig, TextConfig, TokenizerFile
from hornbook.text.refinery.pipeline.prepare import prepare
from hornbook.text.tokenizer.tokenize import tokenize
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.conftest import write_tokenizer

SEQUENCE, COUNT = 96, 30
NAMES = ["<|im_start|>", "<|im_end|>"]
TRAIN = TrainConfig.model_validate(
    {"sequence": SEQUENCE, "precision": "fp32", "device": "cpu", "micro_batch": 2, "batch_tokens": 4 * SEQUENCE}
)


def make(folder: Path, labels: LabelsConfig, rows: list[dict[str, Any]], validation: float = 0.2) -> Corpus:
    write_tokenizer(folder / "tokenizer", NAMES)
    (folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = TextConfig(
        sources={"set": SourceConfig(paths=[str(folder / "raw.jsonl")])},
        labels=labels,
        tokenizer=TokenizerFile(path=str(folder / "tokenizer")),
        chat_template="chatml",
        validation=validation,
    )
    prepare(config, folder / "data", workers=1)
    tokenize(folder / "data", config, workers=1)
    return Corpus.open(folder / "data")


def pair(number: int) -> dict[str, Any]:
    return {"prompt": f"{number}", "chosen": "c" * (1 + number % 4), "rejected": f"r{number % 7}"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make(tmp_path_factory.mktemp("pairs"), PreferenceLabels(), [pair(number) for number in range(COUNT)])


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    rows = [{"prompt": f"{n}", "completion": f"a{n}" * (1 + n % 2), "label": n % 3 > 0} for n in range(COUNT)]
    return make(tmp_path_factory.mktemp("rated"), RatedLabels(), rows, validation=0)


def loader_of(corpus: Corpus, objective: Comparing, sequence: int = SEQUENCE) -> Loader:
    config = DataConfig(objective=objective)
    return build_loader(config, corpus.root, sequence=sequence, micro_batch=2, seed=1, prefetch=False)


def compared(batch: Batch) -> Compared:
    assert batch.compared is not None
    return batch.compared


def said(corpus: Corpus, batches: list[Batch]) -> list[list[tuple[int, str, str]]]:
    """Of each row: (side, whole text, what is marked as an answer) of its conversations."""
    tokenizer, found = Tokenizer.load(corpus.root / "tokenizer"), []
    for batch in batches:
        sides, marks = compared(batch).sides, compared(batch).marks
        for row, lengths in enumerate(batch.document_lengths):
            assert sum(lengths) == batch.tokens.shape[1]
            begin, mine = 0, []
            for number, length in enumerate(lengths):
                span = slice(begin, begin + length)
                assert batch.positions[row, span].tolist() == list(range(length)) or number == len(lengths) - 1
                if number < int((sides[row] >= 0).sum()):
                    assert set((marks[row, span][:-1] // 2).tolist()) == {number + 1}
                    answer = batch.targets[row, span][marks[row, span] % 2 == 1].tolist()
                    text = tokenizer.decode(batch.tokens[row, span].tolist())
                    mine.append((int(sides[row, number]), text, tokenizer.decode(answer)))
                begin += length
            found.append(mine)
    return found


def asked(prompt: object, answer: str) -> str:
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def test_every_pair_is_whole_in_one_row(pairs: Corpus) -> None:
    loader = loader_of(pairs, ORPO())
    whole = loader.take(loader.index.plans[0].rows)
    seen = []
    for row in said(pairs, whole.batches):
        for (side, text, answer), (other, text2, answer2) in zip(row[::2], row[1::2], strict=True):
            number = int(text.split("\n")[1].removesuffix("<|im_end|>"))
            good, bad = pair(number)["chosen"], pair(number)["rejected"]
            assert (side, text, answer) == (CHOSEN, asked(number, good), f"{good}<|im_end|>")
            assert (other, text2, answer2) == (REJECTED, asked(number, bad), f"{bad}<|im_end|>")
            seen.append(number)
    assert len(set(seen)) == len(seen) == pairs.train["set"].documents == whole.total_weight
    for batch in whole.batches:
        assert compared(batch).counts[:2] == (len(seen), len(seen))
        assert batch.weights.bool().equal((compared(batch).marks % 2 == 1) | _of_chosen(batch))
    assert sum(int(_of_chosen(batch).sum()) for batch in whole.batches) == compared(whole.batches[0]).counts[2]


def test_answers_of_several_turns_keep_what_is_not_learned(tmp_path: Path) -> None:
    first = {"role": "assistant", "content": "first", "weight": 0}
    turns = [first, {"role": "user", "content": "u"}, {"role": "assistant", "content": "end"}]
    rows = [{"prompt": "x", "chosen": turns, "rejected": f"r{number}"} for number in range(4)]
    corpus = make(tmp_path, PreferenceLabels(), rows, validation=0)
    (row, *_) = said(corpus, loader_of(corpus, ORPO(), 160).take(1).batches)
    assert row[0][2] == "end<|im_end|>"
    assert row[0][1].startswith(asked("x", "first"))


def _of_chosen(batch: Batch) -> torch.Tensor:
    mine = compared(batch)
    return (mine.sides.gather(1, (mine.marks // 2 - 1).clamp(min=0)) == CHOSEN) & (mine.marks > 0)


def test_ranks_see_the_same(pairs: Corpus) -> None:
    loader = loader_of(pairs, ORPO())
    loader.take(2)
    whole = loader.take(8)
    for rank in range(2):
        part = loader_of(pairs, ORPO())
        part.seek(2)
        share = part.take(8, rank, 2)
        assert (share.total_weight, share.token_hash) == (whole.total_weight, whole.token_hash)
        for mine, theirs in zip(share.batches, whole.batches[rank::2], strict=True):
            assert mine.tokens.equal(theirs.tokens)
            assert compared(mine).marks.equal(compared(theirs).marks)
            assert compared(mine).counts == compared(theirs).counts


def test_evaluation_is_the_loss_of_chosen_answers(pairs: Corpus) -> None:
    held = held_out(pairs, "set", sequence=SEQUENCE, document_mask=True, objective=ORPO())
    tokenizer = Tokenizer.load(pairs.root / "tokenizer")
    found = []
    for batch in held.batches(2):
        assert batch.compared is None
        for row, weights in zip(batch.targets, batch.weights, strict=True):
            found += tokenizer.decode(row[weights > 0].tolist()).split("<|im_end|>")
    assert sum(bool(each) for each in found) == pairs.validation["set"].documents
    assert set("".join(found)) == {"c"}


class Lengths:
    """A reward model for which longer conversations are better."""

    def outputs(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(batch.tokens.shape), batch.positions[..., None].float() + 1


def test_rewards_have_the_number_of_their_pair(pairs: Corpus) -> None:
    rows = held_out(pairs, "set", sequence=SEQUENCE, document_mask=True, objective=Reward())
    scores = RewardTask("set", rows.batches(2), pairs, rows.plan).score(Lengths(), World(torch.device("cpu")))
    stream = pairs.validation["set"]
    assert sorted(scores.rows[:, 1]) == list(range(stream.documents))
    sizes = find_answers(stream, SEQUENCE, mismatched=False).sizes
    assert scores.rows[:, 2:].tolist() == sizes[:, scores.rows[:, 1].astype(int)].T.tolist()


def test_prompts_are_mismatched_with_the_answer_before(rated: Corpus) -> None:
    loader = mismatching(rated)
    whole = loader.take(loader.index.plans[0].rows)
    (shard,) = rated.train["set"].shards
    tokenizer = Tokenizer.load(rated.root / "tokenizer")
    stored = [tokenizer.decode(shard.data[a:b]) for a, b in zip([0, *shard.ends], shard.ends, strict=False)]
    answers = [text.split("assistant\n")[1] for text in stored]
    sides = []
    for row in said(rated, whole.batches):
        for (side, text, answer), (other, text2, answer2) in zip(row[::2], row[1::2], strict=True):
            place = stored.index(text)
            assert answers[place].startswith(answer)
            assert (other, text2) == (MISMATCHED, text.replace(answers[place], answers[place - 1]))
            assert answer2 == answers[place - 1].removesuffix("\n")
            number = int(text.split("\n")[1].removesuffix("<|im_end|>"))
            assert side == (CHOSEN if number % 3 > 0 else REJECTED)
            sides.append(side)
    assert len(sides) == COUNT == whole.total_weight
    assert {CHOSEN: sides.count(CHOSEN), REJECTED: sides.count(REJECTED)} == {CHOSEN: 20, REJECTED: 10}


def test_a_prompt_is_not_mismatched_with_an_answer_of_its_own(tmp_path: Path) -> None:
    """Several answers to one prompt often stand side by side, a good and a bad one."""
    rows = [{"prompt": f"{n // 2}", "completion": f"a{n}", "label": n % 2 == 0} for n in range(12)]
    corpus = make(tmp_path, RatedLabels(), rows, validation=0)
    found = find_answers(corpus.train["set"], SEQUENCE, mismatched=True)
    (shard,) = corpus.train["set"].shards
    tokenizer = Tokenizer.load(corpus.root / "tokenizer")
    stored = [tokenizer.decode(shard.data[a:b]) for a, b in zip([0, *shard.ends], shard.ends, strict=False)]
    prompts = [text.split("assistant")[0] for text in stored]
    assert len(set(prompts)) == 6
    assert all(prompts[number] != prompts[other] for number, other in enumerate(found.others))
    assert len(set(found.others.tolist())) == 6, "the nearest one"


def write_model(folder: Path, corpus: Corpus, seed: int = 3) -> Path:
    config = ModelConfig(layers=1, width=32, heads=2)
    model = build_model(config, 320, "meta")
    write_hf(folder, dict(initial_values(model, config, seed)), config, 320, corpus.root / "tokenizer")
    return folder


def refer(corpus: Corpus, objective: Comparing, model: Path, **train: str) -> dict[str, Any]:
    data = DataConfig(objective=objective, path=str(corpus.root))
    recipe = Recipe(train=TRAIN.model_copy(update=train), data=data)
    return compute_references(recipe, model, lambda *_: None)


def mismatching(corpus: Corpus) -> Loader:
    model = corpus.root.parent / "model"
    if not model.exists():
        write_model(model, corpus)
    return loader_of(corpus, KTO(reference=refer(corpus, KTO(), model)["digest"]))


@pytest.mark.parametrize("kind", ["pairs", "rated"])
def test_a_model_is_its_own_reference(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    corpus: Corpus = request.getfixturevalue(kind)
    objective: Comparing = DPO() if kind == "pairs" else KTO()
    model = write_model(tmp_path / "model", corpus)
    found = refer(corpus, objective, model)
    loader = loader_of(corpus, objective.model_copy(update={"reference": found["digest"]}))
    batch = loader.take(8)
    engine = parallelize(load_model(model).model, ParallelConfig(), TRAIN)
    losses = {name: float(each) for name, each in engine.forward_backward(batch.batches, batch.total_weight).items()}
    expected = np.log(2) if kind == "pairs" else 0.5
    assert losses["loss"] / batch.total_weight == pytest.approx(expected, abs=1e-6)
    assert losses["reward_margin"] == pytest.approx(0, abs=1e-4)
    assert float(compared(batch.batches[0]).references.abs().sum()) > 10
    again = loader_of(corpus, objective.model_copy(update={"reference": str(model)}))
    assert again.index.plans[0].digest == loader.index.plans[0].digest
    assert refer(corpus, objective, model, precision="bf16") == found, "asked again, what is there stays"
    assert len(list((corpus.root / "reference").glob(f"{found['digest']}-*"))) == len(found["files"])


def test_the_same_command_goes_on_with_its_reference(pairs: Corpus, tmp_path: Path) -> None:
    model, run = write_model(tmp_path / "model", pairs, seed=9), tmp_path / "run"
    refer(pairs, DPO(), model)
    sizes = [f"train.sequence={SEQUENCE}", f"train.batch_tokens={2 * SEQUENCE}", "train.micro_batch=2"]
    words = [*sizes, "data.objective.kind=dpo", "train.precision=fp32", "train.device=cpu", "eval.every=0"]
    start = ["train", "--from", str(model), "--data", str(pairs.root), "--out", str(run), "--resume", "auto", *words]
    for tokens in (2 * SEQUENCE, 4 * SEQUENCE):
        assert main([*start, f"train.tokens={tokens}"]) == Exit.DONE


def test_references_that_do_not_fit(pairs: Corpus, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", pairs, seed=5)
    with pytest.raises(UsageError, match="start with --from MODEL"):
        loader_of(pairs, DPO())
    refer(pairs, DPO(), model)
    loader_of(pairs, DPO(reference=str(model)))
    with pytest.raises(UsageError, match=r"it has none; compute them: hornbook reference"):
        loader_of(pairs, DPO(reference=str(model)), sequence=64)
    weights = model / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    with pytest.raises(UsageError, match="the model was changed or is another"):
        loader_of(pairs, DPO(reference=str(model)))
    with pytest.raises(UsageError, match="is no model"):
        loader_of(pairs, DPO(reference=str(tmp_path)))
    write_tokenizer(tmp_path / "other", ["<|other|>", "<|more|>"])
    (model / "tokenizer.json").write_bytes((tmp_path / "other" / "tokenizer.json").read_bytes())
    with pytest.raises(UsageError, match="another tokenizer"):
        refer(pairs, DPO(), model)


@pytest.mark.parametrize("objective", [ORPO(), Reward()])
def test_only_what_compares_with_a_reference_asks_one(pairs: Corpus, tmp_path: Path, objective: Comparing) -> None:
    model = write_model(tmp_path / "model", pairs, seed=7)
    with pytest.raises(UsageError, match="dpo, ipo or kto"):
        refer(pairs, objective, model)


def test_data_that_does_not_fit(pairs: Corpus, rated: Corpus) -> None:
    with pytest.raises(UsageError, match=r'"kto" needs labels of kind rated.*those of kind preference'):
        loader_of(pairs, KTO(reference="0" * 32))
    with pytest.raises(UsageError, match=r'"orpo" needs labels of kind preference.*those of kind rated'):
        loader_of(rated, ORPO())
    with pytest.raises(UsageError, match="does not fit the labels"):
        build_loader(DataConfig(objective=Answer()), pairs.root, sequence=SEQUENCE, micro_batch=2, seed=1)


def test_what_is_longer_than_a_row_is_cut_and_told(tmp_path: Path) -> None:
    rows = [pair(number) for number in range(12)]
    rows += [{"prompt": "long", "chosen": f"{n}" + "x" * 90, "rejected": f"no{n}"} for n in range(4)]
    rows += [{"prompt": f"{n}" + "y" * 200, "chosen": "a", "rejected": "b"} for n in range(4)]
    corpus = make(tmp_path, PreferenceLabels(), rows, validation=0)
    loader = loader_of(corpus, ORPO())
    assert loader.index.notes == [
        "4 of 20 comparisons of source set have answers that are cut to fit (train.sequence 96)",
        "4 of 20 comparisons of source set have an answer beyond a row and are left out (train.sequence 96)",
    ]
    whole = loader.take(loader.index.plans[0].rows)
    assert whole.total_weight == 16
    for row in said(corpus, whole.batches):
        for (_, _, answer), (_, _, other) in zip(row[::2], row[1::2], strict=True):
            if answer.endswith("x"):
                assert other[:2] == "no"
                assert other.endswith("<|im_end|>")
                assert len(row) == 2
    with pytest.raises(UsageError, match=r"no comparison of source set is within train.sequence 8: raise it"):
        loader_of(corpus, ORPO(), 8)
