"""Each common training issue is found where it is injected, in synthetic series and real runs, and nowhere else."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.doctor.curve_rules import RULES, Text, judge, table, texts
from hornbook.run.doctor.curves import Curves, Evaluated, Facts
from hornbook.run.doctor.loss_rules import high_rate
from hornbook.run.doctor.run_history import read_history, unigram_loss
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve
from hornbook.settings.schema import leaves
from hornbook.settings.toml import dotted
from tests.run.doctor.series import BATCH, STEPS, healthy, layers

Launch = Callable[..., Exit]
step = np.arange(1, STEPS + 1)
noise = np.random.default_rng(5).normal(0, 1, STEPS)
evaluated = np.arange(50, STEPS + 1, 50)
flat = np.where(step < 200, 8 - step / 50, 4.0) + 0.02 * noise


def blocks_shrink(_: np.ndarray) -> np.ndarray:
    return np.array([0.3, 1e-6, 1e-3, 0.3, 0.3])


INJECTED: dict[str, dict[str, Any]] = {
    "vanishing_gradients": {"layers": layers(gradient_norm=blocks_shrink)},
    "exploding_gradients": {"gradient_norm": np.where(step < 500, 0.5, 0.5 * 1.05 ** (step - 500.0))},
    "plateau": {"loss": flat},
    "saddle": {"loss": flat, "gradient_norm": np.where(step < 200, 1.0, 0.01)},
    "oscillation": {"loss": 4 + 0.2 * (-1.0) ** step + 0.01 * noise - step / 1000},
    "high_rate": {"loss": np.where(step < 40, 8 + 6 * (step > 2), 2.0 + 6.0 * step**-0.3)},
    "overfitting": {"evaluated": Evaluated(evaluated, evaluated * BATCH, 3 + np.abs(evaluated - 300) / 1000)},
    "dead_units": {"layers": layers(dead_units=lambda at: np.minimum(at / 400, 0.9))},
    "dead_experts": {"layers": layers(idle_experts=lambda at: np.minimum(at / 400, 0.75))},
    "attention_logits": {"layers": layers(max_logit=lambda at: at**1.35)},
    "output_logits": {"layers": layers(log_z=lambda at: 2.0 * at**0.6)},
    "large_updates": {"layers": layers(update_ratio=lambda _: np.array([0.001, 0.001, 0.4, 0.001, 0.001]))},
    "noisy_gradients": {"gradient_norm": 0.5 * np.exp(np.where(step < 400, 0.05, 0.4) * noise)},
    "fp16_scale": {
        "layers": layers(loss_scale=lambda at: 2.0 ** (16 - at / 50)),
        "facts": Facts(peak_rate=1e-3, planned_tokens=STEPS * BATCH, is_fp16=True),
    },
    "nonfinite_steps": {"skipped": step % 40 == 0, "gradient_norm": np.where(step % 40 == 0, np.nan, 0.6)},
    "stalled_data": {"data_seconds": np.full(STEPS, 0.02)},
    "floor_rate": {"lr": 1e-3 * np.clip(1 - (step - 20) / 400, 0.0, 1.0) + 1e-9},
    "above_unigram": {"facts": Facts(peak_rate=1e-3, unigram_loss=2.1)},
}


@pytest.mark.parametrize(("factor", "loss"), [(50, 4.6), (50, 2.95), (1, 4.6)])
def test_a_rate_that_was_raised_is_named_where_the_loss_rose_with_it(factor: float, loss: float) -> None:
    base = healthy()
    raised = replace(
        base, lr=np.where(step < 300, base.lr, factor * base.lr), loss=np.where(step < 300, base.loss, loss)
    )
    found = high_rate(raised)
    assert (found is not None) == ((factor, loss) == (50, 4.6))
    if found is not None:
        assert re.match(r"the rate rose from 0.001 to 0.05 behind step 299, and the loss from 3.0\d\d to 4.600", found)


def names(curves: Curves) -> set[str]:
    return {each.name for each in judge(curves)}


def test_a_healthy_series_triggers_none() -> None:
    assert judge(healthy()) == []


def test_every_rule_is_injected() -> None:
    assert INJECTED.keys() == RULES.keys() == texts().keys()


@pytest.mark.parametrize("name", INJECTED)
def test_an_injected_issue_is_found_with_evidence_and_remedy(name: str) -> None:
    found = {each.name: each for each in judge(healthy(**INJECTED[name]))}
    assert found.keys() == {name}
    assert re.search(r"\d", found[name].evidence)
    assert (found[name].explanation, found[name].remedy) == (texts()[name].explanation, texts()[name].remedy)


@pytest.mark.parametrize("name", INJECTED)
def test_an_issue_in_a_run_that_has_just_begun_raises_nothing(name: str) -> None:
    whole = healthy(**INJECTED[name])
    few = {
        each: getattr(whole, each)[:20]
        for each in ("step", "tokens", "loss", "gradient_norm", "lr", "seconds", "data_seconds", "skipped")
    }
    begun = replace(whole, **few, layers=layers_up_to(whole, 2), evaluated=Evaluated(*[np.empty(0)] * 3))
    assert names(begun) <= set()


def layers_up_to(curves: Curves, count: int) -> Any:
    found = curves.layers
    cut = {each: getattr(found, each)[:count] for each in ("step", "tokens", "lr", "log_z", "loss_scale")}
    return replace(found, **cut, columns={each: column[:count] for each, column in found.columns.items()})


def test_steps_that_the_guard_skips_are_not_counted_as_not_finite() -> None:
    assert names(healthy(skipped=step % 40 == 0)) == set()


def test_a_lowered_rate_is_no_plateau_and_qk_norm_bounds_logits() -> None:
    decayed = 1e-3 * np.where(step < 300, 1.0, 0.2)
    assert names(healthy(loss=flat, lr=decayed)) == set()
    facts = Facts(peak_rate=1e-3, planned_tokens=STEPS * BATCH, has_qk_norm=True)
    assert names(healthy(**INJECTED["attention_logits"], facts=facts)) == set()


def test_the_time_at_which_logits_reach_the_limit_is_that_of_their_law() -> None:
    (found,) = judge(healthy(**INJECTED["attention_logits"]))
    end = 10_000 ** (1 / 1.35)  # step at which step^1.35 is 10,000
    steps = re.search(r"tokens\^1\.35 and reaches 10000 in about ([\d,]+) steps", found.evidence)
    assert steps is not None
    assert int(steps[1].replace(",", "")) == pytest.approx(end - STEPS, rel=0.02)


def test_updates_that_will_be_too_large_are_told_before_and_those_of_a_warm_up_are_not() -> None:
    growing = {"layers": layers(update_ratio=lambda at: 1e-4 * at**1.1)}
    (found,) = judge(healthy(**growing))
    assert found.name == "large_updates"
    assert re.search(
        r"of the weights of blocks.0 is 0.114, grows as .* and reaches 0.2 in about 4\d\d steps", found.evidence
    )
    warming = layers(update_ratio=lambda at: 1e-4 * at**1.1, lr=lambda at: 1e-3 * at / STEPS)
    assert names(healthy(layers=warming)) == set()
    unknown = layers(update_ratio=lambda at: 1e-4 * at**1.1, lr=lambda at: np.nan * at)
    assert names(healthy(layers=unknown)) == set()
    newest = {key: value[-100:] for key, value in vars(healthy()).items() if isinstance(value, np.ndarray)}
    assert names(healthy(**newest, **growing)) == {"large_updates"}, "those before the newest steps count too"


@pytest.mark.parametrize(("name", "text"), texts().items())
def test_remedies_name_settings_that_exist(name: str, text: Text) -> None:
    known = {dotted(path) for path, _ in leaves(Recipe())} | {"eval.stop", "optim.schedule"}
    known |= {"optim.clip", "model.attention.qk_norm", "optim.schedule.warmup"}
    known |= {dotted(path) for path, _ in leaves(resolve("tiny-mixtral", environ={}).recipe)}
    named = re.findall(
        r"(?<![\w/.])((?:optim|train|model|eval|checkpoint|guard|log)\.[a-z_.0-9]*[a-z0-9])", text.remedy
    )
    assert {each for each in named if each not in known} == set(), name


# ---- real runs

LONG = ("train.tokens=38400", "model.layers=2", "checkpoint.every=0", "log.statistics_every=20")


def diagnosed(folder: Path) -> set[str]:
    return names(read_history(RunDir(folder)).curves) - {"stalled_data"}  # other tests run beside it


def test_a_healthy_run_of_300_steps_triggers_none(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", *LONG, "optim.lr=0.003", "optim.schedule.warmup=20 steps", "eval.every=50")
    history = read_history(RunDir(tmp_path / "run"))
    assert len(history.curves) == 300
    assert len(history.curves.layers) == 15
    assert history.unreadable == {}
    assert diagnosed(tmp_path / "run") == set()
    assert unigram_loss(history.recipe or Recipe()) == pytest.approx(2.6, abs=0.1)


@pytest.mark.slow
def test_a_run_without_a_learning_rate_learns_nothing(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", *LONG, "train.tokens=27k", "optim.lr=1e-8", "optim.schedule.kind=constant")
    assert diagnosed(tmp_path / "run") == {"plateau", "above_unigram"}


@pytest.mark.slow
def test_a_run_with_a_far_too_high_rate_kills_its_units(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", *LONG, "train.tokens=15k", "optim.lr=1.0", "optim.clip=0")
    assert "dead_units" in diagnosed(tmp_path / "run")


def test_the_table_of_issues_in_the_docs_is_that_of_the_rules() -> None:
    page = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
    assert table() in page.read_text(encoding="utf-8")
