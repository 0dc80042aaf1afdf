"""The bill of a run's steps: its shares add up, and injected delays are found where they were injected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.data.loader.loader import Loader
from hornbook.errors import Exit
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.model.config.flops import step_operations
from hornbook.optim.optimizer import Optimizer
from hornbook.run.machine.saved import device_name, machine_file, write
from hornbook.run.observe import step_bill
from hornbook.settings.resolve import resolve
from tests.clocks import delay

Launch = Callable[..., Exit]
Events = Callable[..., list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def _nothing_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HORNBOOK_HOME", str(tmp_path))


def bills(folder: Path) -> dict[int, dict[str, Any]]:
    return {each["step"]: each["bill"] for each in read_records(RunDir(folder).metrics) if "bill" in each}


def test_at_each_interval_the_shares_add_up(launch_run: Launch, tmp_path: Path) -> None:
    assert launch_run(tmp_path / "run", "log.every=4") == Exit.DONE
    found = bills(tmp_path / "run")
    assert list(found) == [4, 8, 12]
    for bill in found.values():
        assert bill["steps"] == 4
        assert sum(bill["shares"].values()) == pytest.approx(1, abs=1e-3)
        assert set(bill["shares"]) == {"data", "forward", "backward", "communication", "optimizer", "host"}
        assert bill["shares"]["communication"] == 0
        assert min(bill["shares"][name] for name in ("forward", "backward", "optimizer")) > 0
        assert 0 <= bill["between"] <= 1
        assert "mfu" not in bill


def test_mfu_is_of_the_peak_that_bench_saved(
    launch_run: Launch, tmp_path: Path, tiny_settings: tuple[str, ...]
) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    file = machine_file(device_name(torch.device("cpu")))
    torch.set_num_threads(threads)
    write(file, {"products": {"fp32": 2.0}, "widened": []})
    assert launch_run(tmp_path / "run", "log.every=4") == Exit.DONE
    recipe = resolve(None, tiny_settings, environ={}).recipe
    steps = {each["step"]: each for each in read_records(RunDir(tmp_path / "run").metrics)}
    operations = step_operations(recipe.model, 320, 32, (4 * 128, 0))
    seconds = sum(steps[number]["seconds"] for number in range(1, 5))
    bill = bills(tmp_path / "run")[4]
    assert bill["flops_per_second"] == pytest.approx(operations.causal / seconds, rel=1e-3)
    assert bill["mfu"]["causal"] == pytest.approx(operations.causal / seconds / 2e9, rel=2e-2, abs=1e-4)
    assert bill["mfu"]["palm"] == pytest.approx(operations.palm / seconds / 2e9, rel=2e-2, abs=1e-4)
    assert bill["peak"] == "fp32 products measured here"
    lines = [line for line in (tmp_path / "run" / "log.txt").read_text().splitlines() if line.startswith("step=")]
    assert "mfu=" not in lines[0]  # of step 1, before the first interval ends
    assert f" mfu={100 * bill['mfu']['causal']:.1f}% tokens=" in lines[1]


@pytest.mark.parametrize(
    ("owner", "name", "cause"), [(Loader, "take", "data"), (Optimizer, "step", "optimizer")], ids=["data", "optimizer"]
)
def test_an_injected_delay_is_named(
    owner: type,
    name: str,
    cause: str,
    launch_run: Launch,
    events: Events,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_bill, "MIN_SECONDS", 0.0)
    delay(owner, name, monkeypatch, first=7)
    # A factor that no program next to the test reaches, and a delay of 1,000 s does.
    assert launch_run(tmp_path / "run", "log.every=1", "log.slowdown=1000") == Exit.DONE
    (note,) = events(tmp_path / "run", "throughput")
    assert (note["cause"], note["since"], note["step"], note["ended"]) == (cause, 7, 9, False)
    assert note["before_share"] < 0.5 < note["share"]
    assert "since step 7" in note["text"]
    assert note["text"] in (tmp_path / "run" / "log.txt").read_text()


def test_none_says_nothing(launch_run: Launch, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_bill, "MIN_SECONDS", 0.0)
    delay(Loader, "take", monkeypatch, first=7)
    assert launch_run(tmp_path / "run", "log.every=1", "log.slowdown=none") == Exit.DONE
    assert events(tmp_path / "run", "throughput") == []


@pytest.mark.parametrize(
    ("layout", "section"), [({}, "data"), ({"shard": "everything"}, "optimizer")], ids=["ddp", "fsdp"]
)
def test_a_slow_rank_is_named_with_its_section_and_the_others_wait_in_communication(
    layout: dict[str, Any], section: str, run_ranks: Callable[..., list[Any]]
) -> None:
    first, second = run_ranks("tests/run/observe/billing.py:late", 2, layout, section, 1, 9, 14)
    assert second == {"bills": [{}] * 14, "found": []}
    fall, straggler = first["found"]
    # A program beside the test may slow the step before, in which the fall then begins.
    assert int(fall.partition("since step ")[2].partition(",")[0]) in (8, 9)
    assert straggler.startswith("straggler: rank 1 is slow since step 9: it works")
    assert f"others; {section} " in straggler
    after = first["bills"][12]["bill"]
    assert after["slow_rank"].startswith("rank 1 works")
    assert after["shares"]["communication"] > 0.3  # of two ranks one waits 0.3 s of about 0.35
    crossed = after["communication"]
    assert {each["axis"] for each in crossed["flows"]} == {"shard" if layout else "replica"}
    assert crossed["waited"] > 0.2
    assert 0 <= crossed["hidden"] <= 1
