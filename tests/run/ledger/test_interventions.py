"""Settings that change while a run trains: at one step for all ranks, in the ledger, and after any kill the same."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.hf.hf import read_hf
from hornbook.run.checkpoints.bound import recipe_in_force
from hornbook.run.doctor.check_run import check_run
from hornbook.run.doctor.compare_runs import compare_runs
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.launch.launch import launch
from hornbook.run.ledger.interventions import propose
from hornbook.run.loop import intervene
from hornbook.settings.resolve import ConfigError, Resolved, resolve
from tests.run.launcher import Launcher

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Events = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def own_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The optimizer `lion:Lion` of docs/parts.md."""
    text = (Path(__file__).parents[3] / "docs" / "parts.md").read_text()
    (lion,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "class Lion(" in block)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "lion.py").write_text(lion)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    yield
    sys.modules.pop("lion", None)


def ask(folder: Path, step: int | None, *settings: str, **fields: Any) -> Path:
    """A request to change settings after a step."""
    return write_request(RunDir(folder).create(), Request(action="set", settings=[*settings], at_step=step, **fields))


def weights(folder: Path) -> dict[str, bytes]:
    """Weights and moments of the last checkpoint."""
    last = max(RunDir(folder).checkpoints.glob("step-*"))
    return {f"{last.name}/{path.name}": path.read_bytes() for path in sorted(last.rglob("*.safetensors"))}


def test_a_change_takes_effect_at_its_step(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events
) -> None:
    path = ask(tmp_path / "run", 5, "optim.lr=0.001", reason="spikes")
    assert launch_run(tmp_path / "run") == Exit.DONE
    whole, steps = branch(tiny_run), branch(tmp_path / "run")
    assert steps[:5] == whole[:5]
    assert [step["lr"] for step in steps[5:]] == pytest.approx([step["lr"] / 10 for step in whole[5:]], rel=1e-12)
    assert [step["token_hash"] for step in steps] == [step["token_hash"] for step in whole]
    (entry,) = events(tmp_path / "run", "intervention")
    assert (entry["step"], entry["tokens"], entry["file"]) == (5, 5 * 128, path.name)
    assert entry["changes"] == [{"key": "optim.lr", "old": 0.01, "new": 0.001, "gone": False}]
    assert (entry["reason"], entry["text"]) == ("spikes", "optim.lr 0.01 -> 0.001")
    run = RunDir(tmp_path / "run")
    assert not list(run.control.iterdir())
    assert "lr = 0.001 " in run.recipe.read_text()
    assert "# told at step 5" in run.recipe.read_text()
    rate = f"the learning rate of step 6 is {steps[5]['lr']:.3g}"
    assert f"changed after step 5: optim.lr 0.01 -> 0.001; {rate}" in run.log.read_text()
    assert check_run(run).ok


SEVERAL = {
    2: ("optim.lr=0.02", "optim.clip=0.5"),
    5: ("optim.weight_decay=0", "optim.beta2=0.99"),
    6: ("optim.lr=1e-3",),
}


@pytest.fixture(scope="module")
def told_several(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """A run that was told `SEVERAL`, and never interrupted."""
    return trained_whole(tmp_path_factory, tiny_settings, "checkpoint.background=false", told=SEVERAL)


def trained_whole(
    folders: pytest.TempPathFactory, settings: tuple[str, ...], *words: str, told: dict[int, Any], **how: Any
) -> Path:
    """A run that was told settings at steps, trained without any interruption."""
    folder = folders.mktemp("told") / "whole"
    for step, changes in told.items():
        ask(folder, step, *changes, **how)
    assert launch(resolve(None, (*settings, *words), environ={}), RunDir(folder), Start()) == Exit.DONE
    return folder


def at(quick: tuple[int, ...], *steps: int) -> list[Any]:
    """Steps as parameters; those that are not among the quick ones are slow."""
    return [pytest.param(step, marks=() if step in quick else pytest.mark.slow) for step in steps]


@pytest.mark.parametrize("die", at((3, 5, 6, 9), 3, 4, 5, 6, 7, 8, 9))
def test_kills_make_no_difference(
    tmp_path: Path,
    launch_run: Launch,
    branch: Branch,
    told_several: Path,
    monkeypatch: pytest.MonkeyPatch,
    die: int,
) -> None:
    """Saves are at 4 and 8: a checkpoint from before a change makes it again at the same step."""
    for step, settings in SEVERAL.items():
        ask(tmp_path / "parts", step, *settings)
    kill_after(monkeypatch, die)
    assert launch_run(tmp_path / "parts", "checkpoint.background=false") == Exit.INTERRUPTED
    monkeypatch.undo()
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    assert branch(tmp_path / "parts") == branch(told_several)
    assert weights(tmp_path / "parts") == weights(told_several)
    assert check_run(RunDir(tmp_path / "parts")).ok
    assert compare_runs(RunDir(tmp_path / "parts"), RunDir(told_several)).equal
    assert recipe_in_force(RunDir(tmp_path / "parts")) == recipe_in_force(RunDir(told_several))


def kill_after(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """End the run without another save once `step` steps are done."""
    from hornbook.run.loop import training_loop as train

    original = train.take_step

    def stepping(job: Any, state: Any, *rest: Any) -> Any:
        taken = original(job, state, *rest)
        if state.step == step:
            raise KeyboardInterrupt
        return taken

    monkeypatch.setattr(train, "take_step", stepping)


@pytest.mark.parametrize("place", ["write", "remove", "_follow"])
def test_a_kill_between_ledger_recipe_and_file_makes_no_difference(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The ledger has the change: then recipe.toml is old, or the request is still there, or nothing followed."""
    from hornbook.run.job.control import Control
    from hornbook.run.ledger.ledger import RunWriter

    for name in ("whole", "parts"):
        ask(tmp_path / name, 5, "optim.lr=0.001")
    launch_run(tmp_path / "whole")
    owner = {"write": RunWriter, "remove": Control, "_follow": intervene.Intervener}[place]
    original = getattr(owner, place)

    def dying(self: Any, *words: Any) -> Any:
        if place != "write" or events(tmp_path / "parts", "intervention"):
            raise KeyboardInterrupt
        return original(self, *words)

    monkeypatch.setattr(owner, place, dying)
    assert launch_run(tmp_path / "parts") == Exit.INTERRUPTED
    monkeypatch.undo()
    assert check_run(RunDir(tmp_path / "parts")).ok
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    assert branch(tmp_path / "parts") == branch(tmp_path / "whole")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert len(events(tmp_path / "parts", "intervention")) == 1
    assert "lr = 0.001 " in RunDir(tmp_path / "parts").recipe.read_text()
    assert not list(RunDir(tmp_path / "parts").control.iterdir())


def test_no_change_changes_no_bit(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events
) -> None:
    ask(tmp_path / "run", 5, "optim.kind=adamw")
    launch_run(tmp_path / "run")
    assert branch(tmp_path / "run") == branch(tiny_run)
    assert weights(tmp_path / "run") == weights(tiny_run)
    assert events(tmp_path / "run", "intervention")[0]["changes"] == []


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("optim.lrr=1", "did you mean optim.lr"),
        ("optim.lr=-1", "must be more than 0"),
        ("model.width=32", "hornbook grow"),
        ("seed=2", "fork RUN"),
        ("train.tokens=4096", "hornbook resume RUN --train.tokens"),
        ("train.batch_tokens=100", "not a multiple of train.sequence"),
        ("optim.kind=nothing", "optim.kind"),
    ],
)
def test_what_cannot_change_is_refused_and_the_run_unharmed(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events, setting: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        propose(Resolved(recipe_in_force(RunDir(tiny_run)), {}), [setting])
    ask(tmp_path / "run", 5, setting)
    assert launch_run(tmp_path / "run") == Exit.DONE
    assert branch(tmp_path / "run") == branch(tiny_run)
    assert weights(tmp_path / "run") == weights(tiny_run)
    (answer,) = events(tmp_path / "run", "request")
    assert (answer["accepted"], answer["step"]) == (False, 5)
    assert problem in answer["reason"]
    assert not events(tmp_path / "run", "intervention")


def test_all_problems_of_a_request_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        propose(resolve(None, (), environ={}), ["optim.lr=-1", "optim.clip=-1"])
    assert len(caught.value.problems) == 2


def test_a_schedule_changes_for_the_rest_of_the_run(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    """Its clock is that of the run: from the change on the rate is that of a run with this schedule from the start."""
    launch_run(tmp_path / "cosine")
    launch_run(tmp_path / "linear", "optim.schedule=linear")
    ask(tmp_path / "run", 6, "optim.schedule=linear", "optim.schedule.warmup=3 steps")
    launch_run(tmp_path / "run")
    rates = {name: [step["lr"] for step in branch(tmp_path / name)] for name in ("cosine", "linear", "run")}
    assert rates["run"] == [*rates["cosine"][:6], *rates["linear"][6:]]


def test_the_rate_rises_again_when_asked(tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch) -> None:
    ask(tmp_path / "run", 6, "optim.beta1=0.8", rewarm="4 steps")
    launch_run(tmp_path / "run")
    whole, steps = ([step["lr"] for step in branch(folder)] for folder in (tiny_run, tmp_path / "run"))
    factors = [there / here for here, there in zip(whole, steps, strict=True)]
    assert factors == pytest.approx([1] * 6 + [0.25, 0.5, 0.75, 1] + [1] * 2)


def test_another_batch_reads_the_same_samples_in_the_same_order(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events
) -> None:
    words = ("train.micro_batch=1",)
    launch_run(tmp_path / "whole", *words)
    ask(tmp_path / "run", 3, "train.batch_tokens=256")
    ask(tmp_path / "run", 5, "train.batch_tokens=64")
    launch_run(tmp_path / "run", *words)
    whole, steps = branch(tmp_path / "whole"), branch(tmp_path / "run")
    assert steps[:3] == whole[:3]
    assert [step["num_samples"] for step in steps] == [4, 4, 4, 8, 8, *[2] * 9]
    ends = [step["first_sample"] + step["num_samples"] for step in steps]
    assert [step["first_sample"] for step in steps] == [0, *ends[:-1]]
    assert steps[-1]["tokens"] == whole[-1]["tokens"]
    kept = {step["first_sample"]: step["token_hash"] for step in steps if step["num_samples"] == 8}
    launch_run(tmp_path / "fork", *words, "train.batch_tokens=64")
    small = {step["first_sample"]: step["token_hash"] for step in branch(tmp_path / "fork")}
    assert kept.keys() == {12, 20}
    assert all(small[step["first_sample"]] == step["token_hash"] for step in steps[5:])
    assert [entry["text"] for entry in events(tmp_path / "run", "intervention")] == [
        "train.batch_tokens 128 -> 256",
        "train.batch_tokens 256 -> 64",
    ]


def test_a_request_during_a_later_attempt_comes_before_those_that_the_ledger_has(
    tmp_path: Path, launch_run: Launch, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = ("optim.lr=0.002", "train.batch_tokens=64")
    ask(tmp_path / "parts", 7, *later, rewarm="3 steps")
    kill_after(monkeypatch, 8)
    launch_run(tmp_path / "parts", "checkpoint.every=5", "guard.mode=observe")
    monkeypatch.undo()
    ask(tmp_path / "parts", 6, "optim.clip=0.1", "train.batch_tokens=256")
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    assert check_run(RunDir(tmp_path / "parts")).ok
    ask(tmp_path / "whole", 6, "optim.clip=0.1", "train.batch_tokens=256")
    ask(tmp_path / "whole", 7, *later, rewarm="3 steps")
    launch_run(tmp_path / "whole", "checkpoint.every=5", "guard.mode=observe")
    assert branch(tmp_path / "parts") == branch(tmp_path / "whole")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


def test_settings_of_a_resume_leave_other_changes_and_end_those_of_the_same_section(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events
) -> None:
    run = RunDir(tmp_path / "run")
    ask(run.path, 3, "optim.lr=0.002")
    write_request(run, Request(action="stop", at_step=6))
    launch_run(run.path)
    write_request(run, Request(action="stop", at_step=8))
    assert launch_run(run.path, "log.every=7", mode="resume") == Exit.RESUMABLE
    assert recipe_in_force(run).optim.lr == 0.002
    assert "ends_interventions" not in events(run.path, "resume")[0]
    assert launch_run(run.path, "optim.lr=0.004", mode="resume") == Exit.DONE
    assert events(run.path, "resume")[1]["ends_interventions"]
    assert recipe_in_force(run).optim.lr == 0.004
    assert recipe_in_force(run).log.every == 7
    assert check_run(run).ok
    factors = [a["lr"] / b["lr"] for a, b in zip(branch(run.path), branch(tiny_run), strict=True)]
    assert factors == pytest.approx([1] * 3 + [0.2] * 5 + [0.4] * 4)


def test_settings_of_a_resume_are_those_that_a_run_is_told_at_this_step(
    tmp_path: Path, launch_run: Launch, branch: Branch
) -> None:
    for name in ("resumed", "told"):
        ask(tmp_path / name, 3, "optim.kind=lion", "optim.lr=1e-3")
    write_request(RunDir(tmp_path / "resumed"), Request(action="stop", at_step=8))
    launch_run(tmp_path / "resumed")
    launch_run(tmp_path / "resumed", "optim.weight_decay=2", "optim.beta1=0.5", mode="resume")
    ask(tmp_path / "told", 8, "optim.weight_decay=2", "optim.beta1=0.5")
    launch_run(tmp_path / "told")
    assert branch(tmp_path / "resumed") == branch(tmp_path / "told")
    assert weights(tmp_path / "resumed") == weights(tmp_path / "told")


def test_ranks_change_at_the_same_step_and_restart_with_it(
    tmp_path: Path, launcher: Launcher, tiny_settings: tuple[str, ...], branch: Branch, events: Events
) -> None:
    exact = ("model.width=64", "parallel.exact=true", "checkpoint.every=4")
    for ranks in (1, 2):
        folder, output = tmp_path / f"{ranks}", tmp_path / f"{ranks}.log"
        ask(folder, 5, "optim.lr=0.001", "train.batch_tokens=256")
        ask(folder, 6, "optim.nonsense=1")
        words = ["train", "--out", str(folder), *tiny_settings, *exact, f"parallel.data={ranks}"]
        kill = {"rank": 1, "phase": "clip", "step": 6, "generation": 0, "do": "SIGKILL"}
        started = launcher.start(words, output, faults=[kill] if ranks > 1 else [])
        assert started.wait() == Exit.DONE, started.text
    assert branch(tmp_path / "2") == branch(tmp_path / "1")
    assert weights(tmp_path / "2") == weights(tmp_path / "1")
    assert events(tmp_path / "2", "restart")
    assert len(events(tmp_path / "2", "intervention")) == 1
    assert not events(tmp_path / "2", "request")[-1]["accepted"]


def test_a_request_left_behind_is_not_met_twice(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    run = RunDir(tmp_path / "run")
    path = ask(run.path, 2, "optim.lr=0.001")
    text = path.read_text()
    write_request(run, Request(action="stop", at_step=6))
    launch_run(run.path)
    path.write_text(text)
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert len(events(run.path, "intervention")) == 1
    assert "met before" in events(run.path, "request")[-1]["reason"]


def test_a_request_needs_settings_and_only_one_to_change_has_some() -> None:
    for tree in ({"action": "set"}, {"action": "save", "settings": ["optim.lr=1"]}):
        with pytest.raises(ValueError, match="settings belong to the action"):
            Request.model_validate_json(json.dumps(tree))


def test_another_activation_takes_effect_at_once_and_its_jump_is_measured(
    tmp_path: Path, launch_run: Launch, tiny_run: Path, branch: Branch, events: Events
) -> None:
    ask(tmp_path / "run", 5, "model.mlp.activation=relu")
    assert launch_run(tmp_path / "run") == Exit.DONE
    whole, steps = branch(tiny_run), branch(tmp_path / "run")
    assert steps[:5] == whole[:5]
    assert steps[5]["loss"] != whole[5]["loss"]
    (jump,) = events(tmp_path / "run", "activation")
    assert jump["rows"] == 2
    assert jump["loss_before"] != jump["loss_after"]
    assert abs(jump["loss_before"] - whole[5]["loss"]) < 0.2


def test_the_jump_of_an_activation_is_of_tokens_that_count(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events
) -> None:
    words = ("train.micro_batch=4", "data.objective.kind=prefix")
    launch_run(tmp_path / "whole", *words)
    ask(tmp_path / "run", 5, "model.mlp.activation=relu")
    assert launch_run(tmp_path / "run", *words) == Exit.DONE
    (jump,) = events(tmp_path / "run", "activation")
    assert jump["loss_before"] == pytest.approx(branch(tmp_path / "whole")[5]["loss"], abs=1e-5)
    names = {step: activation_of(tmp_path / "run", step) for step in (4, 8, 12)}
    assert names == {4: "silu", 8: "relu", 12: "relu"}
    assert check_run(RunDir(tmp_path / "run")).ok


def activation_of(folder: Path, step: int) -> str:
    """The activation that the configuration in a checkpoint names."""
    return read_hf(RunDir(folder).checkpoints / f"step-{step:08d}")[0].mlp.activation  # pyright: ignore


BLENDED = ("checkpoint.every=2", "checkpoint.background=false", "model.mlp=mlp")
BLEND = "model.mlp.activation=relu"


@pytest.fixture(scope="module")
def blended(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """A run whose activation changes from step 5 on over 4 steps, never interrupted."""
    return trained_whole(tmp_path_factory, tiny_settings, *BLENDED, told={5: (BLEND,)}, blend="4 steps")


def test_a_blend_begins_with_the_activation_of_before(
    tmp_path: Path, launch_run: Launch, branch: Branch, blended: Path
) -> None:
    launch_run(tmp_path / "plain", *BLENDED)
    whole, plain = branch(blended), branch(tmp_path / "plain")
    assert whole[:6] == plain[:6]  # the first step of a blend has none of the new activation
    assert whole[6] != plain[6]


@pytest.mark.parametrize("die", at((5, 7, 10), 5, 6, 7, 9, 10))
def test_a_blend_goes_on_after_a_kill_bit_for_bit(
    tmp_path: Path, launch_run: Launch, branch: Branch, blended: Path, monkeypatch: pytest.MonkeyPatch, die: int
) -> None:
    """From step 5 on over 4 steps; saves are at 4, 6 (inside), 8 (inside), 10 and 12."""
    ask(tmp_path / "parts", 5, BLEND, blend="4 steps")
    kill_after(monkeypatch, die)
    assert launch_run(tmp_path / "parts", *BLENDED) == Exit.INTERRUPTED
    monkeypatch.undo()
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    assert branch(tmp_path / "parts") == branch(blended)
    assert weights(tmp_path / "parts") == weights(blended)
    names = [activation_of(tmp_path / "parts", step) for step in (4, 6, 8, 10, 12)]
    assert names == ["gelu_tanh", "gelu_tanh", "gelu_tanh", "relu", "relu"]


def test_a_second_activation_waits_for_the_end_of_a_blend(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    ask(tmp_path / "run", 3, "model.mlp.activation=relu", blend="4 steps")
    ask(tmp_path / "run", 5, "model.mlp.activation=gelu")
    ask(tmp_path / "run", 6, "optim.lr=1e-3", blend="4 steps")
    ask(tmp_path / "run", 8, "model.mlp.activation=gelu")
    assert launch_run(tmp_path / "run") == Exit.DONE
    assert [entry["step"] for entry in events(tmp_path / "run", "intervention")] == [3, 8]
    reasons = [entry["reason"] for entry in events(tmp_path / "run", "request")]
    assert "is not over" in reasons[0]
    assert "belongs to a change of model.mlp.activation" in reasons[1]


@pytest.mark.usefixtures("own_optimizer")
def test_another_optimizer_has_new_state_and_the_rate_rises_again(
    tmp_path: Path, launch_run: Launch, branch: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("checkpoint.background=false",)
    launch_run(tmp_path / "plain", *words)
    for name in ("whole", "parts"):
        ask(tmp_path / name, 5, "optim.kind=lion:Lion", "optim.lr=1e-3", rewarm="2 steps")
        ask(tmp_path / name, 9, "optim.kind=adamw", "optim.weight_decay=0.1", rewarm="1 steps")
    launch_run(tmp_path / "whole", *words)
    whole, plain = branch(tmp_path / "whole"), branch(tmp_path / "plain")
    assert whole[:5] == plain[:5]
    rates = [there["lr"] / here["lr"] for here, there in zip(plain, whole, strict=True)]
    assert rates == pytest.approx([1] * 5 + [0.05] + [0.1] * 3 + [0.03] * 3)
    kill_after(monkeypatch, 10)
    launch_run(tmp_path / "parts", *words)
    monkeypatch.undo()
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    assert branch(tmp_path / "parts") == whole
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")


OTHERS = ("adam", "lion", "rmsprop", "adagrad", "lamb", "soap")
"""Optimizers that swap as one of the quick ones does."""


@pytest.mark.parametrize(
    "kind",
    [
        *("sgd", "adafactor", "muon", "schedule_free", "adamw8bit"),
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("adam", "lion", "rmsprop", "adagrad", "lamb", "soap")
        ),
    ],
)
def test_every_optimizer_takes_over_and_hands_back_after_any_kill(
    tmp_path: Path, launch_run: Launch, branch: Branch, events: Events, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name in ("whole", "parts"):
        ask(tmp_path / name, 5, f"optim.kind={kind}")
        ask(tmp_path / name, 9, "optim.kind=adamw")
    words = ("checkpoint.background=false", "optim.weight_decay=0")
    assert launch_run(tmp_path / "whole", *words) == Exit.DONE
    kill_after(monkeypatch, 7)
    launch_run(tmp_path / "parts", *words)
    monkeypatch.undo()
    assert launch_run(tmp_path / "parts", mode="resume") == Exit.DONE
    assert branch(tmp_path / "parts") == branch(tmp_path / "whole")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert [entry["step"] for entry in events(tmp_path / "whole", "intervention")] == [5, 9]
    assert check_run(RunDir(tmp_path / "parts")).ok


def test_adam_and_adamw_without_decay_are_one_optimizer(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    """There and back again nothing is lost: every bit is that of a run that was told nothing."""
    words = ("optim.weight_decay=0",)
    launch_run(tmp_path / "whole", *words)
    ask(tmp_path / "run", 4, "optim.kind=adam", "optim.weight_decay=0")
    ask(tmp_path / "run", 8, "optim.kind=adamw", "optim.weight_decay=0")
    launch_run(tmp_path / "run", *words)
    whole, steps = branch(tmp_path / "whole"), branch(tmp_path / "run")
    assert steps[:5] == whole[:5]
    assert [step["lr"] for step in steps] == [step["lr"] for step in whole]
    assert [step["loss"] for step in steps] == pytest.approx([step["loss"] for step in whole], rel=1e-6)


def test_the_rate_of_sgd_is_chosen_so_that_updates_keep_their_size(
    tmp_path: Path, launch_run: Launch, events: Events
) -> None:
    ask(tmp_path / "run", 8, "optim.kind=sgd", rewarm="0 steps")
    assert launch_run(tmp_path / "run") == Exit.DONE
    (entry,) = events(tmp_path / "run", "intervention")
    rate = next(change["new"] for change in entry["changes"] if change["key"] == "optim.lr")
    before, after = (moved(tmp_path / "run", step) for step in (4, 8))
    assert rate > 0.01
    assert 0.2 <= after / before <= 5


def moved(folder: Path, step: int) -> float:
    """Distance between the weights of a checkpoint and those 4 steps later."""
    from safetensors.torch import load_file

    one, other = (
        load_file(RunDir(folder).checkpoints / f"step-{each:08d}" / "model.safetensors") for each in (step, step + 4)
    )
    return sum(float((one[name] - other[name]).square().sum()) for name in one) ** 0.5
