"""`log.statistics_every`: by their definitions, the same on any ranks, without a change of training."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file

from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.mlp.grouped import Weights, grouped_glu
from hornbook.run.checkpoints.state import State
from hornbook.run.doctor.curves import Facts
from hornbook.run.doctor.run_report import diagnose_run
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.run.layers import activations
from hornbook.run.layers.activations import largest_logit
from hornbook.run.layers.weights import layer_of
from hornbook.run.ledger.step_report import Step
from hornbook.run.observe.statistics_log import StatisticsLog
from hornbook.settings.resolve import resolve
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
ON, OFF = "log.statistics_every=4", "log.statistics_every=0"
DIVIDED = (ON, "model.layers=2", "train.tokens=1024")


def statistics(folder: Path) -> list[dict[str, Any]]:
    return [{**each, "attempt": 1} for each in read_records(RunDir(folder).statistics)]


def last_weights(folder: Path) -> dict[str, bytes]:
    newest = max(RunDir(folder).checkpoints.glob("step-*"))
    return {path.name: path.read_bytes() for path in sorted(newest.rglob("*.safetensors"))}


def numbers(record: dict[str, Any]) -> Iterator[float]:
    for value in record.values():
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, float):
                yield each


def test_they_only_look_and_count_what_the_run_counts(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "off", OFF)
    launch_run(tmp_path / "on", ON, "checkpoint.every=1")
    steps = branch(tmp_path / "on")
    assert steps == branch(tmp_path / "off")
    assert last_weights(tmp_path / "on") == last_weights(tmp_path / "off")
    assert not RunDir(tmp_path / "off").statistics.exists()
    found = statistics(tmp_path / "on")
    assert [each["step"] for each in found] == [4, 8, 12]
    for each in found:
        whole = sum(norm**2 for norm in each["gradient_norm"]) ** 0.5
        assert whole == pytest.approx(steps[each["step"] - 1]["gradient_norm"], rel=1e-3)
    saved = RunDir(tmp_path / "on").checkpoints
    before, after = (load_file(saved / f"step-{step:08d}" / "model.safetensors") for step in (7, 8))
    name = "model.embed_tokens.weight"
    change = (after[name] - before[name]).norm() / before[name].norm()
    second = dict(
        zip(found[1]["layers"], zip(found[1]["weight_norm"], found[1]["update_ratio"], strict=True), strict=True)
    )
    assert second["embedding"] == pytest.approx((float(before[name].norm()), float(change)), rel=1e-3)
    assert set(second) == {"embedding", "blocks.0", "norm"}


@pytest.fixture(scope="module")
def of_one_process(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> list[dict[str, Any]]:
    """What one process finds in the run that the layouts divide."""
    run = RunDir(tmp_path_factory.mktemp("statistics") / "one")
    assert launch(resolve(None, (*tiny_settings, *DIVIDED), environ={}), run, Start(quiet=True)) == Exit.DONE
    return statistics(run.path)


@pytest.mark.parametrize(
    "layout",
    [
        ("parallel.shard=everything", "parallel.data=2"),
        pytest.param(("parallel.tensor=2",), marks=pytest.mark.slow),
        ("parallel.pipeline.stages=2",),
        pytest.param(("parallel.shard=optimizer", "parallel.data=2"), marks=pytest.mark.slow),
    ],
)
def test_ranks_find_what_one_process_finds(
    tmp_path: Path,
    launcher: Launcher,
    of_one_process: list[dict[str, Any]],
    tiny_settings: tuple[str, ...],
    layout: tuple[str, ...],
) -> None:
    words = [*tiny_settings, *DIVIDED, *layout]
    started = launcher.start(["train", "--out", str(tmp_path / "two"), *words], tmp_path / "two.log")
    assert started.wait() == Exit.DONE, started.text
    two = statistics(tmp_path / "two")
    assert [each["layers"] for each in two] == [each["layers"] for each in of_one_process]
    for mine, theirs in zip(two, of_one_process, strict=True):
        assert [*numbers(mine)] == pytest.approx([*numbers(theirs)], rel=5e-3, abs=1e-6)


def test_the_largest_logit_is_that_of_pairs_that_see_each_other() -> None:
    generator = torch.Generator().manual_seed(1)
    query = torch.randn(2, 4, 9, 8, generator=generator)
    key = torch.randn(2, 2, 9, 8, generator=generator)
    mask = AttentionMask("causal", ((4, 5), (9,)))
    scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
    seen = torch.ones(9, 9).tril().bool().repeat(2, 1, 1)
    seen[0, 4:, :4] = False
    assert float(largest_logit(query, key, mask, None)) == pytest.approx(
        float(scores[seen[:, None].expand_as(scores)].max())
    )


def test_dead_units_of_experts_are_those_of_experts_that_serve_some(tmp_path: Path, launch_run: Launch) -> None:
    """The first two of eight units of each expert are never positive; the last expert serves too few tokens to tell."""
    generator = torch.Generator().manual_seed(3)
    gate, up, down = (torch.randn(4, *size, generator=generator) for size in ((8, 6), (8, 6), (6, 8)))
    x = torch.rand(60, 6, generator=generator)
    gate[:, :2], gate[:, 2:] = -gate[:, :2].abs(), gate[:, 2:].abs()
    experts = torch.tensor([[0, 1]] * 20 + [[1, 2]] * 37 + [[2, 3]] * 3)
    world = SimpleNamespace(axis_size=lambda _: 1, axis_rank=lambda _: 0)
    watch = activations.ActivationWatch(cast("Any", SimpleNamespace(world=world)), ["blocks.0"])
    watch._sums = torch.zeros(1, activations._SUMS, dtype=torch.float64)
    weights = torch.ones(60, 2)
    y = watch._see_experts(0, 4, grouped_glu, x, experts, weights, Weights(gate, up, down))
    assert torch.equal(y, grouped_glu(x, experts, weights, Weights(gate, up, down)))
    found = watch._outputs([*watch._sums[0].tolist(), 0.0, 0.0], [1.0])
    assert found.dead_units == [pytest.approx(2 / 8)]
    assert found.expert_load == [pytest.approx(57 / 30)]
    assert found.idle_experts == [0]
    experts_run = ("model.mlp.kind=experts", "model.mlp.count=4", "model.mlp.active=2", "model.mlp.hidden=16")
    assert launch_run(tmp_path / "run", ON, *experts_run, "train.tokens=512") == Exit.DONE
    (record,) = statistics(tmp_path / "run")
    assert record["dead_units"][0] is not None
    assert 1 <= record["expert_load"][0] <= 2
    assert 0 <= record["idle_experts"][0] < 1


@pytest.mark.slow
def test_ranks_that_divide_experts_count_dead_units_together(
    tmp_path: Path, launcher: Launcher, launch_run: Launch, tiny_settings: tuple[str, ...]
) -> None:
    words = ("model.mlp.kind=experts", "model.mlp.count=3", "model.mlp.active=2", "model.mlp.hidden=16", ON)
    words = (*words, "train.tokens=512", "model.mlp.activation=relu", "train.micro_batch=1")
    assert launch_run(tmp_path / "one", *words) == Exit.DONE
    two = [*tiny_settings, *words, "parallel.expert=2"]
    started = launcher.start(["train", "--out", str(tmp_path / "two"), *two], tmp_path / "two.log")
    assert started.wait() == Exit.DONE, started.text
    (mine,), (theirs,) = (statistics(tmp_path / name) for name in ("two", "one"))
    assert theirs["dead_units"][0] > 0
    assert mine["dead_units"] == pytest.approx(theirs["dead_units"], abs=0.03)
    assert mine["expert_load"] == pytest.approx(theirs["expert_load"], rel=0.05)


def test_layers_are_blocks_and_what_is_beside_them() -> None:
    names = ["encoder.blocks.11.mlp.up.weight", "blocks.3.norm1.weight", "embedding.weight", "encoder.norm.weight"]
    assert [*map(layer_of, names)] == ["encoder.blocks.11", "blocks.3", "embedding", "encoder.norm"]


def test_weights_that_grow_are_told_by_the_run_and_by_the_doctor(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries and keys are made larger before each step, so that logits grow as step^3."""
    original = State.forward_backward

    def grow(state: State, batch: Any) -> Any:
        with torch.no_grad():
            for name, parameter in state.engine.named_parameters.items():
                if "query" in name or "key" in name:
                    parameter.mul_(30 if state.step == 0 else ((state.step + 1) / state.step) ** 1.5)
        return original(state, batch)

    monkeypatch.setattr(State, "forward_backward", grow)
    assert launch_run(tmp_path / "run", "log.statistics_every=1", "optim.lr=1e-6", "guard.mode=off") == Exit.DONE
    told = [each for each in read_records(RunDir(tmp_path / "run").events) if each["kind"] == "precursor"]
    assert [each["rule"] for each in told] == ["attention_logits"]
    (found,) = [each for each in diagnose_run(RunDir(tmp_path / "run")).findings if each.name == "attention_logits"]
    assert "the largest attention logit of blocks.0 is" in found.evidence
    assert "qk_norm" in found.remedy


def test_a_damaged_file_and_a_run_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of the past that cannot be read ends no run; steps that were left behind are not judged with new ones."""
    path = tmp_path / "statistics.jsonl"
    path.write_text("no line of it\n")
    found = SimpleNamespace(record=dict)
    layers = SimpleNamespace(is_due=lambda _: True, measure=lambda *_: found)
    state = cast("State", SimpleNamespace(layers=layers, loader=None, micro_batch=1))
    judged = list[list[int]]()
    monkeypatch.setattr(StatisticsLog, "_judge", lambda log, _: judged.append([each["step"] for each in log._records]))
    with StatisticsLog(state, path, Facts(), print) as log:
        for attempt, step in ((1, 10), (1, 20), (1, 30), (2, 20)):
            log(cast("Step", SimpleNamespace(attempt=attempt, step=step, tokens=step, lr=1.0)))
    assert judged == [[10], [10, 20], [10, 20, 30], [10, 20]]


def test_growing_logits_are_told_once_with_their_time_and_remedy(
    tmp_path: Path, launch_run: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Synthetic logits in a real run: 300 * step^1.5."""
    calls = iter(range(1, 100))

    def grow(*_: Any) -> torch.Tensor:
        return torch.tensor(300.0 * next(calls) ** 1.5)

    monkeypatch.setattr(activations, "largest_logit", grow)
    assert launch_run(tmp_path / "run", "log.statistics_every=1") == Exit.DONE
    told = [each for each in read_records(RunDir(tmp_path / "run").events) if each["kind"] == "precursor"]
    assert [each["rule"] for each in told] == ["attention_logits"]
    assert "grows as tokens^1.5" in told[0]["text"]
    text = RunDir(tmp_path / "run").log.read_text()
    assert text.count("warning: growing attention logits") == 1
    assert "model.attention.qk_norm" in text
