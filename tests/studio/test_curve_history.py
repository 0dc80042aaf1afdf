"""What is read of a run: the history that counts, figures by source, events by name."""

import json

import numpy as np
import pytest

from hornbook.errors import IntegrityError, UsageError
from hornbook.studio.curve_history import SPIKE, Curve, History, read_history
from tests.studio.conftest import MakeRun, score


def curves(history: History, metric: str) -> dict[str, Curve]:
    return {f"{curve.name}|{curve.kind}": curve for curve in history.curves if curve.metric == metric}


def test_training_figures_against_steps_and_tokens(make_run: MakeRun) -> None:
    run = make_run("a", [4.0, None, 3.0])
    history = read_history(run, "step")
    loss = curves(history, "loss")["every step|steps"]
    assert loss.x.tolist() == [1, 2, 3]
    assert loss.y.tolist()[::2] == [4.0, 3.0]
    assert np.isnan(loss.y[1])
    assert {curve.metric for curve in history.curves} == {"loss", "gradient norm", "learning rate", "tokens/s"}
    assert read_history(run, "tokens").curves[0].x.tolist() == [100, 200, 300]
    assert history.name == "a"


def test_long_runs_have_a_median(make_run: MakeRun) -> None:
    history = read_history(make_run("a", [5.0] * 500), "step")
    for figure in ("loss", "gradient norm", "tokens/s"):
        assert curves(history, figure)["median of 11 steps|median"].x[-1] == 500
    assert len(curves(history, "learning rate")) == 1
    assert len(curves(read_history(make_run("b", [5.0] * 199), "step"), "loss")) == 1


def test_held_out_figures_stand_by_source_and_by_rows(make_run: MakeRun) -> None:
    whole = {"whole": score(1.5) | {"rows": "every"}}
    history = read_history(make_run("a", [4.0] * 4, scores={2: score(2.0), 4: score(1.0, **whole)}), "step")
    bits = curves(history, "bits per byte")
    assert set(bits) == {
        f"{name}|{kind}" for name in ("code", "prose", "all sources") for kind in ("held out", "whole")
    }
    assert bits["code|held out"].x.tolist() == [2, 4]
    assert bits["code|held out"].y.tolist() == [2.0, 1.0]
    assert bits["code|whole"].y.tolist() == [1.5]
    loss = curves(history, "loss")
    assert loss["held out, 9 of 20 tokens|held out"].y.tolist() == [4.0, 2.0]


def test_figures_of_other_rows_are_another_curve(make_run: MakeRun) -> None:
    run = make_run("a", [4.0] * 4, scores={2: score(2.0), 4: score(1.0) | {"rows": "others"}})
    found = [curve for curve in read_history(run, "step").curves if curve.name == "code"]
    assert [curve.x.tolist() for curve in found] == [[2], [4]]


def test_labels_have_figures_of_their_own(make_run: MakeRun) -> None:
    each = {"loss": 0.5, "accuracy": 0.75, "macro_f1": 0.7, "labels": 40, "read": 9, "of": 9}
    run = make_run("a", [1.0] * 3, scores={3: {"rows": "r", "sources": {"dev": each}, "all": each}})
    history = read_history(run, "step")
    assert curves(history, "accuracy")["dev|held out"].y.tolist() == [0.75]
    assert curves(history, "macro f1")["dev|held out"].y.tolist() == [0.7]
    assert "all sources" not in {curve.name for curve in history.curves}


def test_what_was_rolled_back_does_not_count(make_run: MakeRun) -> None:
    run = make_run("a", [4.0, 3.0, 2.0], scores={1: score(3.0), 3: score(2.0), 4: score(1.0)})
    again = {"attempt": 2, "step": 2, "tokens": 200, "loss": 9.0}
    run.metrics.write_text(run.metrics.read_text() + "".join(f"{json.dumps(again | {'step': n})}\n" for n in (2, 3)))
    history = read_history(run, "step")
    assert curves(history, "loss")["every step|steps"].y.tolist() == [4.0, 9.0, 9.0]
    assert curves(history, "bits per byte")["code|held out"].x.tolist() == [1]


def test_what_a_run_started_from_is_drawn_at_step_0(make_run: MakeRun) -> None:
    run = make_run("a", [4.0, 3.0], scores={0: score(3.0), 2: score(2.0)})
    assert curves(read_history(run, "step"), "bits per byte")["code|held out"].x.tolist() == [0, 2]


def test_a_loss_that_is_no_number_is_not_drawn(make_run: MakeRun) -> None:
    lost = score(1.0)
    lost["all"] = lost["all"] | {"loss": float("nan")}
    history = read_history(make_run("a", [None, None], scores={2: lost}), "step")
    assert "loss" not in {curve.metric for curve in history.curves}


def test_events_are_named(make_run: MakeRun) -> None:
    events = [
        {"kind": "start", "step": 0},
        {"kind": "save", "step": 2, "checkpoint": "step-00000002"},
        {"kind": "skip", "step": 3},
        {"kind": "restart", "step": 3, "attempt": 2},
        {"kind": "resume", "step": 2, "attempt": 2},
        {"kind": "stop", "step": 4, "reason": "SIGTERM"},
    ]
    found = read_history(make_run("a", [4.0] * 4, events=events), "step").events
    names = [event.name for event in found]
    assert sorted(names) == ["ranks restarted", "resumed", "saved", "step refused: not finite", "stopped"]
    assert next(event for event in found if event.name == "saved").text == "step 2, attempt 1: saved, step-00000002"
    assert next(event for event in found if event.name == "resumed").x == 2


def test_a_spike_is_an_event(make_run: MakeRun) -> None:
    losses = [4.0 - 0.001 * number + 0.01 * (-1) ** number for number in range(200)]
    losses[150] = 7.5
    (spike,) = read_history(make_run("a", losses), "tokens").events
    assert (spike.x, spike.name) == (15_100, SPIKE)
    assert spike.text.startswith("step 151: loss 3.8")
    assert spike.text.endswith("to 7.500")


@pytest.mark.parametrize("line", ["{", "[]", '{"attempt": 1}', '{"attempt": 1, "step": 1, "tokens": "x", "loss": {}}'])
def test_damaged_records_are_an_error_that_says_so(make_run: MakeRun, line: str) -> None:
    run = make_run("a", [])
    run.metrics.write_text(line + "\n")
    with pytest.raises(IntegrityError, match="damaged"):
        read_history(run, "step")


def test_a_run_without_steps_has_nothing_to_draw(make_run: MakeRun) -> None:
    with pytest.raises(UsageError, match="no step is recorded yet"):
        read_history(make_run("a", []), "step")


def test_tasks_have_panels_of_their_own(make_run: MakeRun) -> None:
    task = {"accuracy": 0.5, "accuracy_se": 0.1, "loss": 3.0, "items": 40, "digest": "0f"}
    scores = {step: score(2.0, tasks={"copy": {**task, "accuracy": 0.1 * step}}) for step in (2, 4)}
    history = read_history(make_run("a", [4.0] * 4, scores=scores), "step")
    (curve,) = curves(history, "task accuracy").values()
    assert curve.name == "copy"
    assert curve.y.tolist() == pytest.approx([0.2, 0.4])
    assert {each.metric for each in history.curves if "task" in each.metric} == {"task accuracy", "task loss"}
