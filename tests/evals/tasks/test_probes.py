"""Tasks without files: their items, that the seed decides them, and models that know the answers."""

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.data.batch import Batch
from hornbook.errors import UsageError
from hornbook.evals.config import Arithmetic, Cloze, Copy, OwnTask, Recall
from hornbook.evals.tasks.build import build_tasks
from hornbook.parallel.world import World
from tests.evals.models import context, engine

ALL: Sequence[OwnTask] = (
    Copy(items=4),
    Arithmetic(items=6),
    Cloze(items=5),
    Recall(items=3, facts=2, distances=[0, 9]),
)
WORLD = World(torch.device("cpu"))


class Repeater:
    """A model that finds likely what stood `lag` tokens before in its row, and nothing else."""

    def __init__(self, lag: int) -> None:
        self.lag = lag

    def predictions(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.roll(batch.tokens, self.lag - 1, 1)
        before[:, : self.lag - 1] = -1
        right = (before == batch.targets).float()
        return 5 - 4 * right, right


def test_items_follow_from_the_seed_alone(tiny_corpus: Path) -> None:
    one, other = (build_tasks(ALL, context(tiny_corpus, micro_batch=size)) for size in (1, 4))
    model = engine()
    first, second = ([task.score(model, WORLD) for task in tasks] for tasks in (one, other))
    assert [each.digest for each in first] == [each.digest for each in second]
    assert [each.as_dict()["items"] for each in first] == [4, 6, 5, 6]
    for a, b in zip(first, second, strict=True):
        assert a.as_dict() == pytest.approx(b.as_dict(), abs=1e-5)
    assert first[3].as_dict().keys() >= {"accuracy_at_0", "accuracy_at_9"}


def test_another_seed_asks_something_else(tiny_corpus: Path) -> None:
    from dataclasses import replace

    own = context(tiny_corpus)
    for config in ALL:
        here, there = (config.build(each) for each in (own, replace(own, seed=1)))
        assert here != there


def test_a_model_that_repeats_is_found_to_copy(tiny_corpus: Path) -> None:
    task = Copy(tokens=8, items=5).build(context(tiny_corpus))
    found = task.score(_model(Repeater(8)), WORLD).as_dict()
    assert found["accuracy"] == 1.0
    assert found["gain"] == pytest.approx(4.0)
    assert found["gain_se"] == pytest.approx(0.0, abs=1e-6)
    assert task.score(_model(Repeater(5)), WORLD).as_dict()["accuracy"] < 0.5


def test_sums_are_right(tiny_corpus: Path) -> None:
    task: Any = Arithmetic(operations=["+", "-", "*"], digits=2, items=30).build(context(tiny_corpus))
    for text in task.texts:
        a, sign, b, result = re.fullmatch(r"(\d+)([-+*])(\d+)=(\d+)", text).groups()  # pyright: ignore
        assert int(result) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert 10 <= int(a) <= 99
    assert {item.group for item in task.items} == {"add", "sub", "mul"}


def test_words_of_a_cloze_come_from_held_out_text(tiny_corpus: Path) -> None:
    own = context(tiny_corpus)
    task: Any = Cloze(items=8, choices=3, words=6).build(own)
    for item in task.items:
        answers = {own.tokenizer.decode(each.continuation) for each in item.requests}
        assert len(answers) == 3
        assert item.text.endswith(own.tokenizer.decode(item.requests[item.right].continuation))
        assert len(item.text.split()) == 7


def test_few_documents_give_several_passages_each(tiny_corpus: Path) -> None:
    task: Any = Cloze(items=60).build(context(tiny_corpus))
    assert 24 < len(task.items) <= 60
    assert len(set(task.texts)) == len(task.items)


def test_facts_lie_as_far_back_as_stated(tiny_corpus: Path) -> None:
    own = context(tiny_corpus)
    near, far = ({len(item.requests[0].context) for item in _recall(own, distance)} for distance in (0, 20))
    assert max(far) - max(near) == pytest.approx(20, abs=3)  # names have one digit or two
    for item in _recall(own, 20):
        text, code = own.tokenizer.decode(item.requests[0].context), item.requests[item.right].continuation
        name = text.rpartition("key ")[2].removesuffix(" is")
        assert f"The code of key {name} is{own.tokenizer.decode(code)}." in text


def _recall(own: Any, distance: int) -> Any:
    task: Any = Recall(items=6, facts=2, distances=[distance]).build(own)
    return task.items


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (Copy(tokens=100), "copy: twice 100 tokens, and the model reads 128 .*set tokens to 64 or less"),
        (Recall(distances=[500]), r"recall: 4 facts.*lower facts or distances"),
        (Recall(facts=32), r"recall: 32 facts.*lower facts or distances"),
        (Arithmetic(shots=32), r"arithmetic, item 1: .*lower shots or digits of the task$"),
        (Cloze(choices=80), r"cloze: the validation text has \d+ different words.*80 are needed"),
    ],
)
def test_what_does_not_fit_is_said(tiny_corpus: Path, config: OwnTask, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        config.build(context(tiny_corpus))


def test_only_decoders_of_tokens_are_asked(tiny_corpus: Path) -> None:
    from dataclasses import replace

    own = context(tiny_corpus)
    encoder = replace(own, model=own.model.model_copy(update={"kind": "encoder"}))
    with pytest.raises(UsageError, match="copy: it asks a decoder for texts, and this model is an encoder"):
        Copy().build(encoder)


def test_two_tasks_of_one_name_are_refused(tiny_corpus: Path) -> None:
    with pytest.raises(UsageError, match="two tasks have the name 'copy': set `name`"):
        build_tasks([Copy(), Copy(tokens=4)], context(tiny_corpus))
    assert len(build_tasks([Copy(), Copy(tokens=4, name="copy4")], context(tiny_corpus))) == 2


def _model(repeater: Repeater) -> Any:
    repeater.evaluation_mode = nullcontext  # pyright: ignore[reportAttributeAccessIssue]
    return repeater
