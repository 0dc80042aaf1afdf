"""`hornbook bench`: tables, JSON, files, sweeps with refusals, and wrong words; measured in real processes once."""

import json
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.bench.sweep import combinations, is_swept
from hornbook.cli.main import main
from hornbook.errors import DoesNotFitError, Exit, UsageError
from hornbook.settings.recipe import Recipe

MACHINE = {
    "device": "Foo 9000, AVX2, 4 threads",
    "products": {"fp32": 160.0, "fp16": 2500.0},
    "widened": ["bf16"],
    "memory_bandwidth": 14.6,
    "disk": {"write": 448.0, "read": 1695.0, "fsync_ms": 0.3},
    "file": "/cache/machine.json",
}


FLOW = {"axis": "replica", "kind": "all-reduce", "calls": 3, "bytes": 17_000_000, "seconds": 0.2, "waited": 0.05}
CROSSED = {"seconds": 0.2, "waited": 0.05, "hidden": 0.75, "flows": [FLOW]}


def bill(recipe: Recipe, **more: Any) -> dict[str, Any]:
    phases = {"data": 0.01, "forward": 0.2, "backward": 0.4, "communication": 0.05, "optimizer": 0.3, "host": 0.04}
    return {
        "recipe": recipe.name,
        "device": "Foo 9000",
        "ranks": recipe.parallel.world,
        "devices": 1,
        "parameters": 4_262_144,
        "precision": "fp32",
        "data": "random tokens",
        "batch_tokens": 8192,
        "microbatches": 2,
        "measured_microbatches": 1,
        "step_tokens": 4096,
        "seconds": 1.0,
        "spread": 0.05,
        "phases": phases,
        "whole_step": phases,
        "tokens_per_second": 8192.0 * recipe.parallel.world,
        "operations": {"causal": 1e11},
        "peak": {"rate": 2e11, "source": "fp32 products measured here"},
        "mfu": {"causal": 0.5, "palm": 0.55},
        "hfu": 0.6,
        "memory": dict.fromkeys(
            ("peak", "parameters", "gradients", "optimizer", "activations", "rest", "before"), 10**9
        ),
        "energy": {"joules": None, "source": "no counter"},
        "collectives": [],
        "communication": CROSSED if recipe.parallel.world > 1 else None,
        "file": "/cache/step.json",
        **more,
    }


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Recipe]]:
    """What was measured; nothing is."""
    calls: list[tuple[str, Recipe]] = []

    def measure(what: str, recipe: Recipe, **_: Any) -> dict[str, Any]:
        calls.append((what, recipe))
        if recipe.train.micro_batch == 3:
            raise DoesNotFitError("weights need 5 TB")
        return MACHINE if what == "machine" else bill(recipe)

    monkeypatch.setattr("hornbook.run.diagnose.bench.worker.measure", measure)
    return calls


def test_the_table_says_where_the_time_goes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "--parallel.data", "2", "--train.micro_batch", "8"]) == Exit.DONE
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "products     fp32 160 GFLOP/s, fp16 2.5 TFLOP/s, bf16 as fp32" in lines
    shares = {line[:19].strip(): float(line[19:].split()[0]) for line in lines if line[19:30].strip().endswith("%")}
    assert shares == {
        "waiting for data": 1.0,
        "forward": 20.0,
        "backward": 40.0,
        "communication": 5.0,
        "clip and optimizer": 30.0,
        "host gap": 4.0,
        "step": 100.0,
    }
    assert "replica: all-reduce  17.0 MB         3      200 ms     50 ms" in lines
    assert "overlap      75.0 % hidden behind computing" in lines
    assert "throughput   16,384 tokens/s" in lines
    assert "MFU          50.0 % (causal: pairs that see each other): 100 GFLOP/s of 200 GFLOP/s" in out
    assert "1 of 2 microbatches" in out


def test_without_a_recipe_it_is_the_machine(
    asked: list[tuple[str, Recipe]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["bench", "--json", "--out", str(tmp_path / "m.json")]) == Exit.DONE
    assert [what for what, _ in asked] == ["machine"]
    assert json.loads(capsys.readouterr().out) == {"machine": MACHINE}
    assert json.loads((tmp_path / "m.json").read_text()) == {"format": 1, "machine": MACHINE}


def test_a_sweep_names_what_was_refused_and_why(
    asked: list[tuple[str, Recipe]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sweep", "parallel.data=1,2", "train.micro_batch=2,3", "parallel.shard=none,foo"]
    assert main(["bench", "tiny", *words, "--json"]) == Exit.DONE
    rows = json.loads(capsys.readouterr().out)["sweep"]
    assert len(rows) == 8
    measured = [row["settings"] for row in rows if row["refused"] is None]
    assert measured == [
        {"parallel.data": data, "train.micro_batch": "2", "parallel.shard": "none"} for data in ("1", "2")
    ]
    assert len(asked) == 4  # settings that are wrong are not measured
    reasons = [row["refused"] for row in rows if row["refused"]]
    assert sum("weights need 5 TB" in reason for reason in reasons) == 2
    assert sum("parallel.shard" in reason for reason in reasons) == 4
    assert main(["bench", "tiny", *words]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["parallel.data", "train.micro_batch", "parallel.shard", "tokens/s"]
    assert [line.split()[3:6] for line in lines[1:9] if "refused" not in line] == [
        ["8,192", "50.0", "%"],
        ["16,384", "100.0", "%"],
    ]


def test_a_sweep_in_which_all_is_refused_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "--sweep", "train.micro_batch=3"]) == Exit.USAGE
    assert "weights need 5 TB" in capsys.readouterr().err


def test_combinations() -> None:
    assert combinations(["a=1,2", "--b=x,y"]) == [{"a": a, "b": b} for a in "12" for b in "xy"]
    assert combinations(["a=1,1"]) == [{"a": "1"}]
    assert is_swept("a=1,2")
    assert not any(map(is_swept, ("a=1", "a=[1,2]", "a={b=1,c=2}", 'a="x,y"', "tiny", "--data")))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["a"], "write key=value,value"),
        (["a="], "write key=value,value"),
        (["a=1,,2"], "write key=value,value"),
        (["=1,2"], "write key=value,value"),
        (["a=1,2", "a=3"], "names a twice"),
        (["a=" + ",".join(map(str, range(65)))], "65 combinations, 64 at most"),
    ],
)
def test_wrong_sweeps(words: list[str], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        combinations(words)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["bench", "tiny", "--seconds", "0"], "--seconds 0"),
        (["bench", "tiny", "--folder", "/nowhere"], "--folder /nowhere is no folder"),
        (["bench", "tiny", "--loader", "--accumulation"], "give one of them"),
        (["bench", "--loader"], "name the recipe"),
        (["bench", "--sweep", "parallel.data=1,2"], "name the recipe"),
        (["bench", "tinny"], "tiny"),
        (["bench", "tiny", "--model.width", "x"], "model.width"),
    ],
)
def test_wrong_words(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == Exit.USAGE
    assert text in capsys.readouterr().err


def test_a_dry_run_measures_nothing(asked: list[tuple[str, Recipe]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "tiny", "-n"]) == Exit.DONE
    assert capsys.readouterr().out == "would measure tiny: machine, step\n"
    assert main(["bench", "tiny", "-n", "--sweep", "train.micro_batch=1,2"]) == Exit.DONE
    assert capsys.readouterr().out.splitlines() == [f"would measure tiny train.micro_batch={rows}" for rows in (1, 2)]
    words = ["parallel.data=-1", "train.micro_batch=2", "--world", "2", "--sweep", "parallel.tensor=1,3"]
    assert main(["bench", "tiny", "-n", *words]) == Exit.DONE
    first, filled, refused = capsys.readouterr().out.splitlines()
    assert first == "would measure tiny parallel.data=-1 train.micro_batch=2 parallel.tensor=1"
    assert "2 ranks, parallel.data filled: --world" in filled
    assert refused.startswith("refused  parallel.tensor=3: ")
    assert asked == []


@pytest.mark.parametrize(
    ("words", "ranks", "why"),
    [
        (["--parallel.data=-1"], 1, "parallel.data filled: the devices of this machine"),
        (["--parallel.data=-1", "--parallel.tensor=2"], 2, "parallel.data filled: the fewest that the other axes"),
        (["--parallel.data=-1", "--train.micro_batch=2", "--world", "4"], 4, "parallel.data filled: --world"),
    ],
)
def test_an_axis_of_minus_1_is_filled_and_a_line_says_how(
    words: list[str], ranks: int, why: str, asked: list[tuple[str, Recipe]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "tiny", "--train.device", "cpu", *words]) == Exit.DONE
    assert {recipe.parallel.world for _, recipe in asked} == {ranks}
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"world        {ranks} rank")
    assert why in first


def test_a_world_that_the_axes_do_not_make_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "tiny", "--train.device", "cpu", "--parallel.data=-1", "--parallel.tensor=2", "--world", "3"]
    assert main(words) == Exit.USAGE
    assert "3 ranks, as --world asks" in capsys.readouterr().err
