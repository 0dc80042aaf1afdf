"""A job in three parts: the inputs are fixed, rank 0 alone writes the output, every rank has the control."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from hornbook.files.run_directory import RunDir
from hornbook.parallel.world import RankInfo
from hornbook.run.job.control import Control, ControlRequests, Request, write_request
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.job.job import Job, Start
from hornbook.run.job.run_inputs import open_inputs
from hornbook.run.job.signals import StopSignals
from hornbook.run.ledger.ledger import At, Ledger, RunWriter
from hornbook.settings.resolve import resolve


@pytest.fixture
def job(tmp_path: Path, tiny_settings: tuple[str, ...]) -> Iterator[Job]:
    inputs, run = open_inputs(resolve(None, tiny_settings, environ={})), RunDir(tmp_path / "run").create()
    with StopSignals() as signals, Ledger(run) as ledger:
        output = RunWriter(run, ledger)
        yield Job(inputs, Start(), output, Control(output, signals))
    inputs.loader.close()


def write_everything(job: Job) -> set[str]:
    """Write every kind of file; the files that grew or appeared."""
    before = {path: path.stat().st_size for path in job.run.path.rglob("*") if path.is_file()}
    job.write_recipe()
    job.output.write(job.run.env, "{}\n")
    job.output.write_state({"attempt": 1, "step": 1, "tokens": 9, "status": "running", "heartbeat": 0.0})
    job.ledger.note("warning", At(1, 9), text="as the test wishes")
    return {path.name for path in job.run.path.rglob("*") if path.is_file() and path.stat().st_size != before.get(path)}


def test_rank_0_alone_writes(job: Job) -> None:
    first, second = (job.on_rank(RankInfo(rank, 2), Heartbeat(rank=rank)) for rank in range(2))
    assert write_everything(second) == set()
    assert write_everything(first) == {"recipe.toml", "env.json", "state.json", "events.jsonl"}
    assert first.inputs is second.inputs is job.inputs
    assert (first.output.owner, second.output.owner) == (job.output.owner, job.output.owner)


def test_rank_0_alone_takes_requests_and_every_rank_beats(job: Job) -> None:
    first, second = (job.on_rank(RankInfo(rank, 2), Heartbeat(rank=rank)) for rank in range(2))
    path = write_request(job.run, Request(action="save"))
    assert second.control.poll(At()) == ControlRequests()
    assert path.exists()
    assert first.control.poll(At()) == ControlRequests(save=True)
    assert not path.exists()
    for each, step in ((first, 3), (second, 4)):
        each.control.enter("clip", At(step, 0))
    assert [each.control.heartbeat.read().step for each in (first, second)] == [3, 4]


def test_the_length_is_that_of_the_inputs_until_a_resume_finds_cuts(job: Job) -> None:
    assert job.length is job.inputs.length
    resumed = dataclasses.replace(job, start=Start("resume"))
    assert resumed.length == job.inputs.length.cut(job.ledger.past.cuts)
