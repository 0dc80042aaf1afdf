"""`hornbook plan --verify`: what is planned of a rank's memory is what its step holds on fake tensors."""

import json
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.cli.train.simulation import Traced, trace_layout
from hornbook.plan.devices.hardware import Cluster, Device
from hornbook.plan.planner import plan_run
from hornbook.settings.resolve import resolve

CPU = Device(name="a CPU", fp32=1.0, memory=64, bandwidth=50)
VOCAB = 512
GPT2 = {"attention.kind": "full", "attention.bias": "true", "mlp": "mlp", "norm": "layer", "position.kind": "learned"}
QWEN = {"attention.kv_heads": "2", "attention.qk_norm": "head", "head.tied": "false"}
EXPERTS = {"mlp.kind": "experts", "mlp.count": "4", "mlp.active": "2", "mlp.hidden": "48"}
FAMILIES: dict[str, dict[str, str]] = {"gpt2": GPT2 | {"position.length": "128"}, "qwen": QWEN, "experts": EXPERTS}
SMALL = ("model.layers=3", "model.width=128", "model.heads=4", f"model.vocab={VOCAB}", "train.sequence=128")
SMALL += ("train.micro_batch=8", "train.batch_tokens=1024", "train.device=cpu")


def traced(*words: str) -> dict[str, tuple[int, int]]:
    recipe = resolve(None, [*SMALL, *words], environ={}).recipe
    count = recipe.parallel.world
    found: Traced = trace_layout(recipe, VOCAB, plan_run(recipe, Cluster(device=CPU, count=count)).best)
    return {name: (planned, seen) for name, planned, seen in found.rows}


@pytest.mark.parametrize(
    ("recompute", "precision"), [("none", "fp32"), ("none", "bf16"), ("block", "bf16"), ("selective", "fp32")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_planned_is_what_a_step_on_fake_tensors_holds(family: str, recompute: str, precision: str) -> None:
    words = [f"model.{name}={value}" for name, value in FAMILIES[family].items()]
    words += ["model.layers=6"] if recompute == "block" else []  # the peak is within 5 % in a deep model
    found = traced(*words, f"parallel.recompute={recompute}", f"train.precision={precision}")
    for name in ("weights", "gradients", "activations"):
        assert found[name][0] == found[name][1], name
    assert found["optimizer"][0] == pytest.approx(found["optimizer"][1], rel=0.01)
    assert found["peak"][0] == pytest.approx(found["peak"][1], rel=0.05)


@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients", "everything"])
def test_the_peak_of_data_ranks_is_planned_within_a_few_percent(shard: str) -> None:
    found = traced("parallel.data=4", f"parallel.shard={shard}", "train.batch_tokens=8192", "train.precision=bf16")
    assert found["weights"][0] == pytest.approx(found["weights"][1], rel=0.02)
    assert found["peak"][0] == pytest.approx(found["peak"][1], rel=0.05)


def test_the_stage_that_holds_most_is_traced() -> None:
    words = ("parallel.pipeline=3", "train.batch_tokens=8192", "train.precision=bf16", "model.vocab=64")
    found = traced(*words)
    assert found["activations"][0] == pytest.approx(found["activations"][1], rel=0.03)


def test_a_trace_of_t5_keeps_scores_and_says_so() -> None:
    """What it keeps beyond the plan is the scores of self-attention, in each of 3 + 3 blocks."""
    words = ["train.sequence=128", "train.micro_batch=8", "train.batch_tokens=1024", "train.device=cpu"]
    recipe = resolve("tiny-t5", [*words, "train.precision=fp32"], environ={}).recipe
    found = trace_layout(recipe, VOCAB, plan_run(recipe, Cluster(device=CPU)).best)
    planned, seen = next(row[1:] for row in found.rows if row[0] == "activations")
    assert seen - planned == pytest.approx(6 * 8 * recipe.model.heads * 128 * 128 * 4, rel=0.1)
    assert any("attention keeps scores" in note for note in found.notes)


def test_the_command_prints_both(capsys: pytest.CaptureFixture[str]) -> None:
    words = [part for each in SMALL for part in (f"--{each}").split("=")]
    assert main(["plan", "tiny", *words, "--verify", "--json"]) == 0
    text: dict[str, Any] = json.loads(capsys.readouterr().out)
    rows = {row["category"]: row for row in text["traced"]["rows"]}
    assert rows["activations"]["planned"] == rows["activations"]["traced"] > 0
    assert text["traced"]["layout"] == text["layouts"][0]["name"]


@pytest.mark.parametrize(("surgery", "within"), [('["lora"]', 0.05), ('["dora"]', 0.05)])
def test_frozen_weights_have_no_gradients_and_moments(surgery: str, within: float) -> None:
    found = traced(f"surgery={surgery}", "train.precision=bf16", "model.layers=6")
    assert found["weights"][0] == found["weights"][1]
    assert found["gradients"][0] == found["gradients"][1] < 0.2 * found["weights"][1]
    for name in ("optimizer", "activations", "peak"):
        assert found[name][0] == pytest.approx(found[name][1], rel=within), name
