"""Published figures counted anew."""

import pytest

from hornbook.errors import UsageError
from hornbook.plan.claims import Counted, recompute_claim
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.settings.resolve import resolve

NEMOTRON = ["model.layers=32", "model.width=6144", "model.heads=48", "model.attention.kv_heads=8", "model.mlp=mlp"]
NEMOTRON += ["model.mlp.activation=relu2", "model.mlp.hidden=24576", "model.vocab=256000", "model.head.tied=false"]
NEMOTRON += ["model.position.length=4096", "train.sequence=4096", "train.batch_tokens=262144", "train.precision=bf16"]


def counted(claim: str) -> dict[str, Counted]:
    recipe = resolve(None, NEMOTRON, environ={}).recipe
    return {row.convention: row for row in recompute_claim(claim, recipe, 256000, parse_cluster("16xH100"))}


def test_the_printed_mfu_of_nemotron_counts_heads_that_are_not_there() -> None:
    """NVIDIA printed 66.07 %; over the pairs and the heads that there are it is about 55 %."""
    row = counted("66.07%")["all pairs, heads not grouped"]
    assert row.causal == pytest.approx(0.555, abs=0.003)
    width, layers, tokens = 6144, 32, 262144
    weights = layers * 12 * width**2 + 256000 * width
    assert row.operations == tokens * (6 * weights + 12 * layers * width * 4096)


def test_a_step_and_its_tokens_are_the_same_claim() -> None:
    """2.812 s on 16 devices (dgxc-benchmarking v25.02) are 5,826.5 tokens a second of each."""
    step, speed = counted("2.812s"), counted("5826.5tok/s")
    for name, row in step.items():
        assert row.share == pytest.approx(speed[name].share, rel=1e-4)
        assert row.causal == pytest.approx(0.525, abs=0.002)
    back = counted(f"{100 * step['causal'].share}%")["causal"]
    assert back.step_seconds == pytest.approx(2.812)


@pytest.mark.parametrize("text", ["", "66", "0%", "fast", "-3s", "1e3s"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"66\.07%"):
        counted(text)
