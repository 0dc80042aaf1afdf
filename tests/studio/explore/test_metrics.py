"""Recorded runs with one fault each: the detectors name the fault, and nothing in the healthy run."""

import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from hornbook.errors import UsageError
from hornbook.files.run_directory import RunDir
from hornbook.studio.explore.explorer import controls, load_explorer
from hornbook.studio.explore.tools.metrics import RECORDED, metrics
from hornbook.studio.live.app import Dashboard, build_app
from hornbook.studio.live.run_view import Runs
from tests.studio.conftest import MakeRun

NAMED = {
    "healthy": {"ok: nothing is wrong"},
    "rate-too-high": {"warn: learning rate too high", "fail: loss above the unigram entropy"},
    "no-warm-up": {"warn: dead units", "warn: vanishing gradients"},
    "bad-batch": {"guard D1c: spike", "guard D1b: far out"},
    "fp16-overflow": {"warn: fp16 scale sinking", "warn: steps refused as not finite"},
    "repeated-data": {"warn: overfitting"},
    "dead-experts": {"warn: dead experts"},
    "slow-loader": {"warn: stalled data"},
}
"""Fault -> findings that name it."""


def names(**question: str) -> list[str]:
    return [each.name for each in metrics(**question).findings.passages]


def test_every_fault_has_a_test() -> None:
    (fault,) = (each for each in controls(load_explorer("metrics")) if each.name == "fault")
    assert set(fault.choices) == set(NAMED)
    assert RECORDED.stat().st_size < 60_000


@pytest.mark.parametrize("fault", NAMED)
def test_the_detectors_name_the_fault(fault: str) -> None:
    assert NAMED[fault] <= set(names(fault=fault))


def test_nothing_is_found_in_the_healthy_run() -> None:
    assert names(fault="healthy") == ["The run: healthy", "ok: nothing is wrong"]


def test_a_bad_batch_is_marked_where_it_is() -> None:
    found = metrics(fault="bad-batch")
    assert found.loss is not None
    assert {mark.x for mark in found.loss.marks} <= {151, 152, 153}
    assert found.loss.marks


def test_remedies_are_the_doctors_words() -> None:
    (text,) = (each.text for each in metrics(fault="repeated-data").findings.passages if "overfitting" in each.name)
    assert "Take the checkpoint `best`, stop earlier (eval.stop)" in text


def test_a_slider_is_answered_at_once() -> None:
    metrics()
    seconds = list[float]()
    for fault in (*NAMED, *NAMED):
        began = time.process_time()
        metrics(fault=fault)
        seconds.append(time.process_time() - began)
    assert sorted(seconds)[len(seconds) // 2] < 0.05


def test_a_run_of_yours_goes_through_the_same_detectors(make_run: MakeRun) -> None:
    run = make_run("mine", [8.0 if 151 <= step <= 152 else 5.0 - step / 100 for step in range(1, 224)])
    found = metrics(run=str(run.path))
    assert "guard D1c: spike" not in names(run=str(run.path))  # its gradients are as before
    assert any(each.startswith("guard D1b: far out") for each in names(run=str(run.path)))
    assert found.loss is not None
    assert [each.name for each in found.loss.curves] == ["mine"]


def test_the_page_loads_a_run_by_its_name(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("mine", [5.0, 4.0])
    client = TestClient(build_app(Dashboard(Runs([tmp_path]), read_only=True), "token"), base_url="http://127.0.0.1:1")
    client.get("/?token=token")
    found = client.get("/api/explore/metrics/load?run=mine").json()["question"]
    assert found == {"run": str(run.path)}
    assert (
        client.get("/api/explore/metrics/answer", params=found).json()["answer"]["loss"]["curves"][0]["name"] == "mine"
    )


def damaged(run: RunDir) -> list[str]:
    """What is said of metrics.jsonl."""
    passages = metrics(run=str(run.path)).findings.passages
    return [each.text for each in passages if each.name == "fail: damaged records" and "metrics.jsonl" in each.text]


def test_runs_that_cannot_be_read_are_explained(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run"):
        metrics(run=str(tmp_path / "none"))
    empty = make_run("empty", [])
    assert metrics(run=str(empty.path)).loss is None
    cut = make_run("cut", [5.0] * 100)
    text = cut.metrics.read_text()
    cut.metrics.write_text(text[:-40])  # the newest line is being written
    assert not damaged(cut)
    lines = text.splitlines(keepends=True)
    cut.metrics.write_text("".join([*lines[:50], lines[50][:30] + "\n", *lines[51:]]))
    assert len(damaged(cut)) == 1
