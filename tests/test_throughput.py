"""The CPU throughput benchmark: how rounds are taken, which contenders take part, and that they learn the same."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contenders import peers_here, processes, shapes
from benchmarks.contenders.processes import Contender
from benchmarks.figures import throughput as section
from benchmarks.peers.worker import EndOfRequests, Rounds
from benchmarks.training import throughput

TINY = {"gated": 1, "width": 32, "layers": 2, "heads": 2, "hidden": 64, "vocab": 4096, "rows": 2, "sequence": 64}
GPT2 = shapes.SHAPES["124M"] | {"rows": 1, "sequence": 64}


def requests(monkeypatch: pytest.MonkeyPatch, *found: dict[str, int]) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(each) + "\n" for each in found)))


def test_a_round_is_answered_when_the_step_after_it_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    requests(monkeypatch, {"seed": 1, "steps": 0}, {"seed": 1, "steps": 2})
    rounds = Rounds(TINY, parameters=7)
    for loss in (3.0, 2.0):
        assert rounds.take().shape == (2, 65)
        rounds.lost(loss)
    with pytest.raises(EndOfRequests):
        rounds.take()
    ready, idle, answer = map(json.loads, capsys.readouterr().out.splitlines())
    assert ready == {"ready": True, "parameters": 7}
    assert idle["losses"] == []
    assert answer["losses"] == [3.0, 2.0]
    assert answer["peak_bytes"] > 0


def test_peers_that_are_not_here_are_told_apart(tmp_path: Path) -> None:
    assert peers_here.find("nanoGPT", {}).missing == "not here: BENCH_NANOGPT names no folder"
    empty = peers_here.find("nanoGPT", {"BENCH_NANOGPT": str(tmp_path)})
    assert empty.missing == "not here: the folder of BENCH_NANOGPT has no model.py"
    (tmp_path / "model.py").touch()
    assert peers_here.find("nanoGPT", {"BENCH_NANOGPT": str(tmp_path)}).home == str(tmp_path)
    other = peers_here.find("litgpt", {"BENCH_LITGPT_PYTHON": str(tmp_path / "none")})
    assert other.missing == "not here: the interpreter of BENCH_LITGPT_PYTHON has no litgpt or lightning"
    environ = {"BENCH_TORCHTITAN": str(tmp_path)}
    assert (
        peers_here.find("torchtitan", environ).missing == "not here: the folder of BENCH_TORCHTITAN has no torchtitan"
    )
    for name, text in (("torchtitan/__init__.py", ""), ("torchtitan-1.2.dist-info/METADATA", "Version: 1.2\n")):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert peers_here.find("torchtitan", environ) == peers_here.Found(sys.executable, str(tmp_path), "1.2")


def test_hornbook_is_in_every_group() -> None:
    contenders = [Contender(str(number), []) for number in range(9)]
    parted = throughput.groups(contenders, 10**9, shapes.SHAPES["124M"])
    assert len(parted) > 1
    assert all(group[0] is contenders[0] for group in parted)
    assert [each for group in parted for each in group[1:]] == contenders[1:]


def test_a_contender_that_fails_is_left_out_and_one_that_is_needed_is_not() -> None:
    broken = Contender("broken", [sys.executable, "-c", "raise ValueError('no such part')"])
    answers, facts, problems = processes.run_beside([broken], {"precision": "fp32"}, 1, 0.0, [])
    assert not answers
    assert not facts
    assert problems == {"broken": "broken ended early: ValueError: no such part"}
    with pytest.raises(RuntimeError, match="no such part"):
        processes.run_beside([broken], {"precision": "fp32"}, 1, 0.0, ["broken"])


def test_groups_are_merged_with_the_first_ones_hornbook() -> None:
    parts = [{"rate": {"hornbook": 1.0, "a": 2.0}}, {"rate": {"hornbook": 3.0, "b": 4.0}}]
    assert processes.merge(parts, "hornbook".__eq__) == {"rate": {"hornbook": 1.0, "a": 2.0, "b": 4.0}}


def test_the_page_names_the_best_peer_and_what_was_left_out() -> None:
    rates = {"hornbook": 6.0, throughput.BOUND: 8.0, "a": 4.0, "b": 3.0}
    case: dict[str, Any] = {"tokens_per_second": rates, "ours_over": {n: 6.0 / rate for n, rate in rates.items()}}
    case |= {key: dict.fromkeys(rates, 9.0) for key in ("first_loss", "last_loss")}
    case |= {key: {"hornbook": 1 << 20, "a": 4 << 20, "b": 2 << 20} for key in ("peak_bytes", "above_states_bytes")}
    case |= {"parameters": {"hornbook": 13e6}, "versions": {"a": "1.0"}, "left_out": {"c": "not here: no folder"}}
    text = "\n".join(section({"cases": {"13M": {"fp32": case}}}))
    summary = (
        "13M, fp32: 1.50 x the best peer (a), 0.75 of the products' rate, 0.50 of the least peer's peak memory (b)."
    )
    assert summary in text
    assert "Left out: c (not here: no folder)." in text
    assert text.index("| matrix products alone |") < text.index("| hornbook |") < text.index("| a |")


@pytest.mark.slow
@pytest.mark.parametrize("shape", [TINY, GPT2], ids=["llama", "gpt2"])
def test_hornbooks_run_and_transformers_learn_the_same(shape: dict[str, int], tmp_path: Path) -> None:
    spec = {"shape": shape, "precision": "fp32", "folder": str(tmp_path), "data": shapes.make_data(tmp_path)}
    spec |= shapes.make_weights(tmp_path, shape)
    here = [each for each in throughput.lineup("13M", "fp32")[0] if each.name in SAME]
    answers, facts, problems = processes.run_beside(here, spec, 2, 0.0, SAME)
    assert not problems
    assert len({each["parameters"] for each in facts.values()}) == 1
    losses = {name: [each["losses"] for each in found] for name, found in answers.items()}
    for found in losses.values():
        for step, (loss,) in enumerate(found):
            assert loss == pytest.approx(losses["hornbook"][step][0], abs=2e-5)


SAME = ("hornbook", "transformers", "transformers Trainer")
