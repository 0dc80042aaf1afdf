"""The benchmarks beside peers: verdicts from data, kill points in strace's words, damage, the trace."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.reliability import sides_page
from benchmarks.reliability.peers import damage, kills, verdict
from benchmarks.reliability.peers.__main__ import points
from benchmarks.reliability.peers.sides import STEPS, Facts, Side
from benchmarks.reliability.trace import faults
from benchmarks.reliability.trace.sides import newest_record


def facts(begins: int, **other: str) -> Facts:
    """Of a run whose last process made its steps from `begins` on; `other`: what that step began from."""
    steps: dict[int, dict[str, Any]] = {
        step: {"loss": f"{step}", "data": f"d{step}", "moments": f"m{step}"} for step in range(1, STEPS + 1)
    }
    steps[begins] |= other
    return Facts(steps, begins, {"weights": "w", "moments": "m"})


@pytest.mark.parametrize(
    ("found", "code", "said", "kind", "words"),
    [
        (facts(9), 0, "", "equal", "from step 8"),
        (facts(5), 0, "", "older", "from step 4"),
        (facts(1), 0, "", "anew", "from step 0"),
        (facts(9, moments="new", loss="other"), 0, "", "wrong", "from step 8: other moments"),
        (facts(9, data="none"), 0, "", "wrong", "from step 8: other data"),
        (Facts(), 0, "", "wrong", "ends without a step"),
        (
            Facts(),
            1,
            "ValueError: no weights at /a/b/checkpoint-8",
            "refuses",
            "ValueError: no weights at checkpoint-8",
        ),
        (Facts(), 1, "a\nEOFError\nlater", "crashes", "EOFError"),
    ],
)
def test_a_verdict_follows_from_what_the_steps_began_from(
    found: Facts, code: int, said: str, kind: str, words: str
) -> None:
    judged = verdict.judge(facts(1), found, code, said, 8, ["checkpoint-8"])
    assert (judged.kind, judged.words) == (kind, words)


def test_another_end_is_not_equal() -> None:
    found = facts(9)
    found.final = {"weights": "w", "moments": "other"}
    assert verdict.judge(facts(1), found, 0, "", 8, []).kind == "wrong"


def test_calls_count_when_they_have_changed_the_disk() -> None:
    log = """\
7  openat(AT_FDCWD, "/d/run/a", O_RDONLY) = 3</d/run/a>
7  openat(AT_FDCWD, "/d/run/a", O_WRONLY|O_CREAT, 0666) = 3</d/run/a>
8  write(3</d/run/a>, ""..., 5 <unfinished ...>
7  write(1</dev/null>, ""..., 5) = 5
7  unlink("/d/run/b") = -1 ENOENT (No such file or directory)
8  <... write resumed>) = 5 (DELAYED)
9  rename("/d/tmp/a", "/d/run/c") = 0 (DELAYED)
"""
    found = list(kills.changes(iter(log.splitlines(keepends=True)), Path("/d")))
    assert [(root, call.words) for root, call in found] == [
        (7, "openat run/a"),
        (7, "write run/a"),
        (7, "rename run/c"),
    ]


def test_kill_points_are_spread_from_the_first_call_to_the_last() -> None:
    assert points(10, 141) == [1, 17, 32, 48, 63, 79, 94, 110, 125, 141]
    assert points(10, 8) == list(range(1, 9))


@pytest.mark.parametrize("role", ["weights", "moments"])
@pytest.mark.parametrize("act", [damage.flip, damage.zero_tail])
def test_damage_strikes_the_numbers_it_names(tmp_path: Path, role: str, act: Any) -> None:
    torch.manual_seed(0)
    tensors = {"weights": torch.randn(300, 64), "moments": torch.randn(300, 64), "small": torch.randn(8)}
    torch.save(tensors, tmp_path / "last")
    side = Side("a", lambda *_: [], lambda _: Facts(), "last", "{}", {"weights": "", "moments": ""}, "part")
    act(role)(side, tmp_path)
    found = torch.load(tmp_path / "last")
    changed = {name: int((found[name] != tensors[name]).sum()) for name in tensors}
    assert changed == {"weights": 0, "moments": 0, "small": 0} | {role: 1 if act is damage.flip else 300 * 32}
    with pytest.raises(damage.NotThere):
        damage.remove(role)(side, tmp_path)


def test_a_trace_is_drawn_by_its_seed() -> None:
    made = faults.trace(1000, 1)
    assert made == faults.trace(1000, 1) != faults.trace(1000, 2)
    assert sorted(each.kind for each in made) == sorted(faults.KINDS)
    gaps = [b.step - a.step for a, b in itertools.pairwise(made)]
    assert min(gaps) > 10
    assert 50 < made[0].step < made[-1].step < 950


def test_the_last_whole_record_says_how_far_a_job_is(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    assert newest_record(path) == 0
    path.write_text("".join(f'{{"step": {step}, "words": "{"x" * 100}"}}\n' for step in range(50)) + '{"step": 50')
    assert newest_record(path) == 49


def test_the_page_tells_loss_and_end_of_each_side() -> None:
    def side(plain: float, struck: float, weights: str) -> dict[str, Any]:
        end = {"seconds": struck, "weights": weights, "starts": 1, "steps_again": 0, "step": 100, "faults": []}
        return {"version": "", "undisturbed": {"seconds": plain, "weights": "a"}, "faults": end}

    sides = {"torchrun": side(100, 300, "b"), "hornbook": side(50, 100, "a"), "torchft": {"missing": "not here"}}
    sides["Lightning"] = side(100, 540, "")
    found = {"sides": sides, "trace": [], "steps": 100, "every": 5, "seed": 1, "timeout": 60, "limit": 540.0}
    lines = sides_page.trace(found)
    assert "| hornbook | 50 | 100 | 50 | 50% |  |  | 1 | 0 | those without faults |" in lines
    assert "| torchrun | 100 | 300 | 200 | 33% | 0.33 | 0.25 | 1 | 0 | others |" in lines
    late = (
        "| Lightning | 100 | > 540 | > 440 | < 19% | < 0.19 | < 0.11 | 1 | 0 | none: at step 100 when time was over |"
    )
    assert late in lines
    assert "torchft: not here." in lines
