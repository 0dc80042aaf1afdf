"""An objective from outside the package: a file of a user's own, named in the recipe by its import path."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.data.batch import GlobalBatch
from hornbook.data.config.data import DataConfig
from hornbook.data.config.objective import Objective
from hornbook.data.corpus import Corpus
from hornbook.data.loader.loader import build_loader
from hornbook.data.validation import held_out
from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.settings.resolve import resolve

ROOT = Path(__file__).resolve().parents[3]

OTHERS = """
from typing import Literal

from hornbook.data.config.objective import Objective
from hornbook.data.config.objectives import Causal
from hornbook.settings.fields import Config


class Part(Config):
    kind: Literal["others:Part"] = "others:Part"

    def build(self, model, layer):
        return None


class Halved(Objective):
    kind: Literal["others:Halved"] = "others:Halved"

    def build(self, context):
        return HalfTheWeight(Causal().build(context))


class HalfTheWeight:
    def __init__(self, causal):
        self.causal, self.plans, self.segments = causal, causal.plans, causal.segments

    def build(self, refs, micro_batch):
        built = self.causal.build(refs, micro_batch)
        return built._replace(total_weight=built.total_weight / 2)
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules `skip_first`, as docs/parts.md prints it, and `others`, in the path."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parts.md").read_text(), re.DOTALL)
    (printed,) = [block for block in blocks if "class SkipFirst(" in block]
    (tmp_path / "skip_first.py").write_text(printed)
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("skip_first", "others"):
        sys.modules.pop(name, None)


def first_batch(corpus: Path, objective: Any) -> GlobalBatch:
    config = DataConfig(objective=objective)
    return build_loader(config, corpus, sequence=32, micro_batch=8, seed=1, prefetch=False).take(8)


SKIPPING = {"kind": "skip_first:SkipFirst", "tokens": 4}


@pytest.mark.usefixtures("own")
def test_it_trains_from_a_recipe_and_resumes(tmp_path: Path, launch_run: Callable[..., Exit], branch: Callable) -> None:
    words = ["data.objective=skip_first:SkipFirst", "data.objective.tokens=4"]
    run, causal = RunDir(tmp_path / "run"), RunDir(tmp_path / "causal")
    assert launch_run(run.path, *words, "train.tokens=768") == Exit.DONE
    assert launch_run(run.path, "train.tokens=1450", mode="resume") == Exit.DONE
    assert launch_run(causal.path) == Exit.DONE
    assert [step["token_hash"] for step in branch(run.path)] == [step["token_hash"] for step in branch(causal.path)]
    assert branch(run.path)[0]["loss"] != branch(causal.path)[0]["loss"]
    objective = resolve(str(run.recipe), [], {}).recipe.data.objective
    assert objective.model_dump() == SKIPPING
    one, other = (json.loads(next(each.evals.iterdir()).read_text())["rows"] for each in (run, causal))
    assert one != other  # losses of different objectives cannot be compared
    with pytest.raises(UsageError, match=r"data\.objective\.tokens"):
        launch_run(run.path, "data.objective.tokens=5", mode="resume")


@pytest.mark.usefixtures("own")
def test_it_changes_rows_of_training_and_of_evaluation(tiny_corpus: Path) -> None:
    causal, skipping = first_batch(tiny_corpus, {"kind": "causal"}), first_batch(tiny_corpus, SKIPPING)
    for plain, batch in zip(causal.batches, skipping.batches, strict=True):
        assert torch.equal(batch.tokens, plain.tokens)
        assert torch.equal(batch.weights, torch.where(plain.positions < 4, 0.0, plain.weights))
    assert skipping.total_weight == sum(float(batch.weights.sum()) for batch in skipping.batches)
    objective = DataConfig(objective=SKIPPING).objective  # pyright: ignore[reportArgumentType]
    rows = held_out(Corpus.open(tiny_corpus), "prose", sequence=32, document_mask=True, objective=objective)
    assert all(not batch.weights[batch.positions < 4].any() for batch in rows.batches(8))


@pytest.mark.usefixtures("own")
def test_it_may_be_mixed_unless_it_builds_batches_of_its_own(tiny_corpus: Path) -> None:
    parts = [{"objective": SKIPPING, "weight": 0.5}, {"objective": {"kind": "causal"}, "weight": 0.5}]
    mixed = first_batch(tiny_corpus, {"kind": "mixture", "parts": parts})
    plain, skipping = first_batch(tiny_corpus, {"kind": "causal"}), first_batch(tiny_corpus, SKIPPING)
    assert skipping.total_weight < mixed.total_weight < plain.total_weight
    assert first_batch(tiny_corpus, {"kind": "others:Halved"}).total_weight == plain.total_weight / 2
    with pytest.raises(ValueError, match="Halved builds batches of its own"):
        first_batch(tiny_corpus, {"kind": "mixture", "parts": [{"objective": {"kind": "others:Halved"}}]})


@pytest.mark.usefixtures("own")
def test_a_part_that_is_no_objective_is_refused() -> None:
    with pytest.raises(UsageError, match=r"data\.objective.*Part is no objective"):
        resolve(None, ["data.objective=others:Part"], {})


def test_an_objective_by_itself_is_causal() -> None:
    assert Objective().transform(None, "data.objective") is None  # pyright: ignore[reportArgumentType]
    assert Objective().decoder_start is None
