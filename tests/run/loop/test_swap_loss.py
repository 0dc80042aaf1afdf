"""A run that changes its optimizer learns as well as one that does not: 50 steps later, within three sigma of seeds."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.job.control import Request, write_request

Launch = Callable[..., Exit]
Events = Callable[..., list[dict[str, Any]]]

WORDS = ("train.tokens=12800", "optim.lr=1e-2", "optim.schedule=constant", "checkpoint.every=0")


@pytest.mark.slow
def test_fifty_steps_after_a_swap_the_loss_is_that_of_a_run_without(
    tmp_path: Path, launch_run: Launch, events: Events
) -> None:
    def loss(name: str, *words: str) -> float:
        assert launch_run(tmp_path / name, *WORDS, *words) == Exit.DONE
        return events(tmp_path / name, "evaluation")[-1]["all"]["loss"]

    plain = [loss(f"seed-{seed}", f"seed={seed}") for seed in (1, 2, 3, 4, 5)]
    limit = statistics.mean(plain) + 3 * statistics.stdev(plain)
    found = {}
    for kind in ("adam", "lion", "sgd", "adafactor", "lamb"):
        settings = [f"optim.kind={kind}", *(["optim.lr=3e-2"] if kind == "lamb" else [])]
        request = Request(action="set", settings=settings, at_step=50)
        write_request(RunDir(tmp_path / kind).create(), request)
        found[kind] = loss(kind)
    assert {kind: value for kind, value in found.items() if value > limit} == {}, (plain, found)
