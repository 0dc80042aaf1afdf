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
from hornbook.run.diagnose.runs.curves import Facts
from hornbook.run.job import Start
from hornbook.run.launch.launch import launch
from hornbook.run.observe.layers import activations
from hornbook.run.observe.layers.activations import largest_logit
from hornbook.run.observe.layers.statistics_log import StatisticsLog
from hornbook.run.observe.layers.weights import layer_of
from hornbook.run.state import State
from hornbook.run.step_report import Step
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


def test_layers_are_blocks_and_what_is_beside_them() -> None:
    names = ["encoder.blocks.11.mlp.up.weight", "blocks.3.norm1.weight", "embedding.weight", "encoder.norm.weight"]
    assert [*map(layer_of, names)] == ["encoder.blocks.11", "blocks.3", "embedding", "encoder.norm"]


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
            log(cast("Step", SimpleNamespace(attempt=attempt, step=step, tokens=step)))
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
