"""Labelled models from language models: the stack is read, the head is new, and that is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hornbook.errors import Exit, UsageError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.model.config.head_config import TokenClassificationHead
from hornbook.model.hf.hf import read_hf
from hornbook.model.storage.load import load_model
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.job import Start
from hornbook.run.job.start.init_from import InitFrom, init_from_import
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import Resolved, resolve

Launch = Callable[..., Exit]
LABELS = [f"token {number}" for number in range(320)]
"""As many as tokens, so that the next token may be the label and any corpus will do."""


@pytest.fixture
def parent(tmp_path: Path, launch_run: Launch) -> Path:
    """A checkpoint of a language model."""
    assert launch_run(tmp_path / "parent") == Exit.DONE
    return checkpoint_path(tmp_path / "parent")


@pytest.fixture
def start(tiny_settings: tuple[str, ...]) -> Callable[..., Exit]:
    """Launch a run that labels tokens, from a checkpoint."""

    def act(folder: Path, parent: Path, *words: str, labels: list[str] = LABELS) -> Exit:
        resolved = resolve(None, (*tiny_settings, *words), environ={})
        head = TokenClassificationHead(labels=labels)
        recipe = resolved.recipe.model_copy(update={"model": resolved.recipe.model.model_copy(update={"head": head})})
        init_from = InitFrom("import", parent, new_head=read_hf(parent)[0].head != head)
        return launch(Resolved(recipe, resolved.origins), RunDir(folder), Start("start", init_from))

    return act


def saved(folder: Path, step: int, name: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(RunDir(folder).checkpoints / f"step-{step:08d}" / name)


def test_the_stack_is_read_and_the_head_is_new(
    tmp_path: Path, parent: Path, start: Callable[..., Exit], events: Callable[..., list[dict[str, Any]]]
) -> None:
    assert start(tmp_path / "run", parent) == Exit.DONE
    before, first, last = (
        load_file(parent / "model.safetensors"),
        saved(tmp_path / "run", 0),
        saved(tmp_path / "run", 12),
    )
    shared = before.keys() & first.keys()
    assert all(torch.equal(before[name], first[name]) for name in shared)
    assert len(shared) == len(before.keys() - {"lm_head.weight"})
    assert first.keys() - shared == {"score.weight", "score.bias"}
    assert 0.01 < float(first["score.weight"].std()) < 0.03
    assert not first["score.bias"].any()
    assert not torch.equal(first["score.weight"], last["score.weight"])
    (record,) = events(tmp_path / "run", "start")
    assert record["origin"]["new_head"] is True
    assert "the head (token_classification: token 0, token 1" in (tmp_path / "run" / "log.txt").read_text()
    keys = json.loads((checkpoint_path(tmp_path / "run") / "config.json").read_text())
    assert keys["architectures"] == ["LlamaForTokenClassification"]
    assert keys["id2label"]["319"] == "token 319"


def test_the_same_head_is_read_too(
    tmp_path: Path, parent: Path, start: Callable[..., Exit], events: Callable[..., list[dict[str, Any]]]
) -> None:
    start(tmp_path / "first", parent)
    assert start(tmp_path / "second", checkpoint_path(tmp_path / "first")) == Exit.DONE
    assert torch.equal(saved(tmp_path / "second", 0)["score.weight"], saved(tmp_path / "first", 12)["score.weight"])
    (record,) = events(tmp_path / "second", "start")
    assert "new_head" not in record["origin"]
    other = [*LABELS[:-1], "another"]
    assert start(tmp_path / "third", checkpoint_path(tmp_path / "first"), labels=other) == Exit.DONE
    assert not torch.equal(saved(tmp_path / "third", 0)["score.weight"], saved(tmp_path / "first", 12)["score.weight"])


def test_under_an_adapter_the_head_is_trained_whole(tmp_path: Path, parent: Path, start: Callable[..., Exit]) -> None:
    """The base holds the stack and the head's first values, the adapter its own and the trained head."""
    assert start(tmp_path / "run", parent, 'surgery=[{kind="lora", rank=2}]') == Exit.DONE
    adapter = saved(tmp_path / "run", 12, "adapter_model.safetensors")
    base = load_file(tmp_path / "run" / "base" / "model.safetensors")
    prefix = "base_model.model."
    assert not torch.equal(adapter[f"{prefix}score.weight"], base["score.weight"])
    assert torch.equal(
        saved(tmp_path / "run", 0, "adapter_model.safetensors")[f"{prefix}score.weight"], base["score.weight"]
    )
    config = json.loads((checkpoint_path(tmp_path / "run") / "adapter_config.json").read_text())
    assert (config["task_type"], config["modules_to_save"]) == ("TOKEN_CLS", ["score"])
    loaded = load_model(checkpoint_path(tmp_path / "run"))
    assert loaded.model.head is not None
    assert torch.equal(loaded.model.head.weight, adapter[f"{prefix}score.weight"])


def test_a_tensor_that_lacks_besides_the_head_is_an_error(
    tmp_path: Path, parent: Path, start: Callable[..., Exit]
) -> None:
    with pytest.raises(Exception, match=r"blocks\.1\."):
        start(tmp_path / "run", parent, "model.layers=2")


LABELLED = ("data.objective.kind=labels", "data.objective.token=last", 'model.head.labels=["a", "b"]')


def test_a_recipe_keeps_its_head_for_labels(parent: Path, tiny_settings: tuple[str, ...]) -> None:
    recipe = resolve(None, tiny_settings, environ={}).recipe
    words = ("model.head.kind=classification", *LABELLED, "model.head.dropout=0.1")
    resolved = resolve(None, words, environ={})
    adopted, init_from = init_from_import(resolved, parent)
    assert init_from.new_head
    assert InitFrom.from_record(init_from.record()) == init_from
    assert adopted.recipe.model.width == recipe.model.width
    assert adopted.recipe.model.head == resolved.recipe.model.head
    assert adopted.origins["model.head.labels"] == "command line"
    assert adopted.origins["model.width"] == str(parent)
    plain, init_from = init_from_import(resolve(None, [], environ={}), parent)
    assert not init_from.new_head
    assert plain.recipe.model.head.kind == "lm"


def test_a_head_that_does_not_fit_the_stack_is_refused(parent: Path) -> None:
    words = ("model.head.kind=token_classification", *LABELLED)
    with pytest.raises(UsageError, match="an encoder-decoder writes its answers as text"):
        resolve(None, ("model.kind=encoder_decoder", *words), environ={})
    with pytest.raises(UsageError, match=r"model\.width is 64 \(command line\)"):
        init_from_import(resolve(None, ("model.width=64", "model.heads=4", *words), environ={}), parent)


def test_the_ledger_of_older_runs_says_nothing_of_heads(tmp_path: Path, parent: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", init_from=InitFrom("import", parent))
    records = list(read_records(RunDir(tmp_path / "run").events))
    assert all("new_head" not in json.dumps(record) for record in records)
