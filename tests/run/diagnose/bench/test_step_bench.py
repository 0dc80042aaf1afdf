"""The bill of a step: it adds up, finds injected delays, and counts memory as the model's shape says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.data.loader.loader import Loader
from hornbook.errors import DoesNotFitError, UsageError
from hornbook.model.config.flops import StepOperations
from hornbook.optim.optimizer import Optimizer
from hornbook.run.diagnose.bench import measures
from hornbook.run.diagnose.bench import step_bench as step
from hornbook.run.diagnose.bench.accumulation import compare_accumulation
from hornbook.run.diagnose.bench.measures import utilisation
from hornbook.run.diagnose.bench.step_bench import measure_step, whole_step
from hornbook.run.job.run_inputs import Inputs, open_inputs
from hornbook.run.machine.peak import Peak
from hornbook.settings.resolve import resolve
from tests.clocks import DELAY, delay

AMPLE = 1e6
"""Seconds in which every microbatch is measured, on however busy a machine: what is not needed is not used."""


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path))
    monkeypatch.setattr("hornbook.run.machine.checks.MATMUL_SECONDS", 0.01)


@pytest.fixture
def inputs_of(tiny_settings: tuple[str, ...]) -> Callable[..., Inputs]:
    return lambda *words: open_inputs(resolve(None, [*tiny_settings, *words], environ={}))


def test_the_parts_add_up_to_the_step(inputs_of: Callable[..., Inputs]) -> None:
    found = measure_step(inputs_of(), AMPLE)
    assert sum(found["phases"].values()) == pytest.approx(found["seconds"])
    assert (found["microbatches"], found["step_tokens"], found["positions"]) == (2, 128, [128, 0])
    assert min(found["phases"][name] for name in ("data", "forward", "backward", "optimizer")) > 0
    assert found["phases"]["communication"] == 0
    assert found["collectives"] == []


def test_memory_by_category_is_that_of_the_shape(inputs_of: Callable[..., Inputs]) -> None:
    inputs = inputs_of()
    found = measure_step(inputs, AMPLE)["memory"]
    weights = 4 * inputs.parameters
    assert (found["parameters"], found["gradients"]) == (weights, weights)
    assert 2 * weights <= found["optimizer"] < 2 * weights + 4 * 64  # and a step count for each tensor
    assert 0 < found["activations"] < measure_step(inputs_of("train.micro_batch=4"), AMPLE)["memory"]["activations"]
    parts = ("parameters", "gradients", "optimizer", "activations", "rest")
    assert sum(found[name] for name in parts) + found["before"] <= found["peak"] or found["rest"] == 0


def test_recomputation_keeps_fewer_activations(inputs_of: Callable[..., Inputs]) -> None:
    words = ("model.layers=6",)
    whole, blocks = (
        measure_step(inputs_of(*words, *more), AMPLE)["memory"]["activations"]
        for more in ((), ("parallel.recompute=block",))
    )
    assert blocks < 0.5 * whole


@pytest.mark.parametrize(("owner", "name", "phase"), [(Loader, "take", "data"), (Optimizer, "step", "optimizer")])
def test_a_delay_is_in_its_phase(
    owner: type, name: str, phase: str, inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    delay(owner, name, monkeypatch)
    phases = measure_step(inputs_of(), AMPLE)["phases"]
    assert phases[phase] >= DELAY
    assert phases[phase] > 0.5 * sum(phases.values())


def test_a_long_step_is_reckoned_from_some_of_its_microbatches(inputs_of: Callable[..., Inputs]) -> None:
    found = measure_step(inputs_of("train.batch_tokens=6400"), 1e-6)
    assert (found["measured_microbatches"], found["microbatches"]) == (1, 100)


def test_the_time_decides_how_many_microbatches_are_measured(
    inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of a slow step: there is time for three and a half in each of the measured steps and the one before."""
    delay(Loader, "take", monkeypatch)
    found = measure_step(inputs_of("train.batch_tokens=6400"), 3.5 * DELAY * (step.STEPS + 1))
    assert (found["measured_microbatches"], found["microbatches"]) == (3, 100)
    assert (found["step_tokens"], found["positions"]) == (192, [192, 0])


def test_what_is_paid_once_a_step_is_not_multiplied() -> None:
    phases = {"data": 1.0, "forward": 2.0, "backward": 4.0, "communication": 8.0, "optimizer": 16.0, "host": 32.0}
    bill = {"microbatches": 30, "measured_microbatches": 10, "phases": phases}
    once = {"data": 3.0, "forward": 6.0, "backward": 12.0, "communication": 8.0, "optimizer": 16.0, "host": 96.0}
    assert whole_step(bill, "none") == whole_step(bill, "optimizer") == once
    assert whole_step(bill, "gradients") == whole_step(bill, "everything") == {**once, "communication": 24.0}


def test_mfu_and_hfu_are_shares_of_all_devices() -> None:
    operations = StepOperations(causal=6e12, palm=7e12, matrices=5e12, without_head=4e12, recomputed=8e12)
    found = utilisation(operations, 2.0, Peak(1e12, "test"), 4)
    assert found["mfu"] == {"causal": 0.75, "palm": 0.875}
    assert (found["hfu"], found["peak"]) == (1.0, {"rate": 1e12, "source": "test"})
    assert utilisation(operations, 2.0, None, 4) == {"peak": None, "mfu": None, "hfu": None}


def test_what_cannot_fit_is_refused_before_it_is_built(
    inputs_of: Callable[..., Inputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "free_memory", lambda _: 1000)
    with pytest.raises(DoesNotFitError, match=r"--model\.layers 2"):
        measure_step(inputs_of(), 0.1)


def test_ragged_microbatches_equal_one_big_batch_and_a_mean_of_means_does_not(
    inputs_of: Callable[..., Inputs],
) -> None:
    """METHODS: dividing by the number of microbatches is right only where each has as many targets."""
    found = compare_accumulation(inputs_of("train.micro_batch=6"))
    assert [each["rows"] for each in found["microbatches"]] == [1, 2, 3]
    assert found["right"]["distance"] < 1e-5
    assert found["right"]["loss"] == pytest.approx(found["loss"], rel=1e-6)
    assert found["mean_of_means"]["distance"] > 0.02


OBJECTIVES = {
    "causal": (),
    "masked": ("model.kind=encoder", "data.objective=masked"),
    "span": ("model.kind=encoder_decoder", "data.objective=span", "train.sequence=64"),
}


@pytest.mark.parametrize("words", OBJECTIVES.values(), ids=OBJECTIVES)
def test_random_tokens_serve_every_objective(words: tuple[str, ...], tiny_settings: tuple[str, ...]) -> None:
    settings = [*tiny_settings[1:], "model.vocab=512", *words]
    found = measures.step(resolve(None, settings, environ={}).recipe, seconds=0.05)
    assert found["data"] == "random tokens"
    assert found["mfu"]["causal"] > 0
    assert (found["positions"][1] > 0) == (words[:1] == ("model.kind=encoder_decoder",))
    assert Path(found["file"]).is_file()


def test_labels_need_their_own_data() -> None:
    recipe = resolve("tiny-classify", [], environ={}).recipe
    with pytest.raises(UsageError, match="--data DATA"):
        measures.step(recipe, seconds=0.05)


def test_the_loader_is_measured_alone(tiny_settings: tuple[str, ...]) -> None:
    found = measures.loader(resolve(None, tiny_settings, environ={}).recipe, seconds=0.01)
    assert found["batch_tokens"] == 128
    assert found["loader_tokens_per_second"] == pytest.approx(128 / found["seconds"])
