"""Every optimizer of the package in a run: trained, saved, resumed and resharded, with what clipping remembers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.optim.config.clipping_config import NormClip
from hornbook.settings.resolve import ConfigError, resolve
from tests.optim.kinds import KINDS, config_of
from tests.run.launcher import Launcher
from tests.run.loop.test_outside_optimizer import last_bytes, stop_at

Branch = Callable[[Path], list[dict[str, Any]]]
Launch = Callable[..., Exit]
WORDS = ("model.width=64", "parallel.exact=true", "checkpoint.every=4", "train.loss.l2=1e-4")
CLIP = ("optim.clip=zscore", "optim.clip.warmup=4", "optim.clip.window=6", "optim.clip.z=0.5")
FAST = ("sgd", "adafactor")
"""Kinds whose shards, and whose whole parameters, are brought to other ranks in the quick tests."""


def last_counters(folder: Path) -> dict[str, Any]:
    """The clock of the last checkpoint, and what clipping remembers."""
    return json.loads((RunDir(folder).checkpoints / "step-00000012" / "trainer" / "state.json").read_text())


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_goes_on_bit_for_bit(kind: str, tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    """Stopped and resumed in one process; the checkpoint holds the state that is declared."""
    words = (f"optim={kind}", *CLIP, *WORDS)
    assert launch_run(tmp_path / "whole", *words) == Exit.DONE
    losses = [step["loss"] for step in branch(tmp_path / "whole")]
    assert losses[-1] < losses[0]
    moments = load_file(RunDir(tmp_path / "whole").checkpoints / "step-00000012" / "trainer" / "optimizer.safetensors")
    declared = set[str]()
    for role, shape in (("vector", (4,)), ("matrix", (64, 64)), ("embedding", (8, 4))):
        declared |= {each.name for each in config_of(kind).rule_for(role, shape).state_tensors(shape)}
    assert {name.rpartition(".")[2] for name in moments} == declared

    run = tmp_path / "run"
    stop_at(run, 5)
    assert launch_run(run, *words) == Exit.RESUMABLE
    assert launch_run(run, mode="resume") == Exit.DONE
    assert branch(run) == branch(tmp_path / "whole")
    assert last_bytes(run) == last_bytes(tmp_path / "whole")
    assert len(last_counters(run)["norms"]) == 6
    assert last_counters(run) == last_counters(tmp_path / "whole")


@pytest.mark.parametrize(
    "kind", [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in KINDS]
)
def test_other_ranks_go_on_bit_for_bit(
    kind: str, tmp_path: Path, launch_run: Launch, launcher: Launcher, branch: Branch
) -> None:
    """From one process to two ranks that share the model, then to one again."""
    words = (f"optim={kind}", *CLIP, *WORDS)
    assert launch_run(tmp_path / "whole", *words) == Exit.DONE
    run = tmp_path / "run"
    stop_at(run, 4)
    assert launch_run(run, *words) == Exit.RESUMABLE
    stop_at(run, 8)
    resumed = ["resume", str(run), "parallel.data=2", "parallel.shard=everything"]
    started = launcher.start(resumed, tmp_path / "log")
    assert started.wait() == Exit.RESUMABLE, started.text
    assert launch_run(run, "parallel.data=1", "parallel.shard=none", mode="resume") == Exit.DONE
    assert branch(run) == branch(tmp_path / "whole")
    assert last_bytes(run) == last_bytes(tmp_path / "whole")
    assert last_counters(run) == last_counters(tmp_path / "whole")


def test_terms_of_the_objective_are_in_the_metrics(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    stop_at(tmp_path / "run", 2)
    launch_run(tmp_path / "run", "train.loss.l1=1e-5", "train.loss.l2=1e-4", "train.loss.z_loss=1e-4")
    for step in branch(tmp_path / "run"):
        assert step["terms"].keys() == {"z_loss", "l1", "l2"}
        assert all(value > 0 for value in step["terms"].values())
    stop_at(tmp_path / "plain", 2)
    launch_run(tmp_path / "plain")
    assert not any("terms" in step for step in branch(tmp_path / "plain"))


def test_clipping_is_chosen_by_name_and_a_number_is_a_norm() -> None:
    assert resolve(None, ["optim.clip=0.5"], {}).recipe.optim.clip == config_of("adamw", clip=0.5).clip
    recipe = resolve(None, ["optim.clip=adaptive", "optim.clip.limit=0.02"], {}).recipe
    assert (recipe.optim.clip.kind, recipe.optim.clip.limit) == ("adaptive", 0.02)
    assert resolve(None, ["optim.clip=value", "optim.clip=2"], {}).recipe.optim.clip.kind == "norm"
    assert resolve(None, ["optim.clip=value", "optim.clip=none"], {}).recipe.optim.clip == NormClip(limit=0)
    assert config_of("adamw", clip="none").clip == NormClip(limit=0)
    with pytest.raises(ConfigError, match=r'optim\.clip\.kind  must be "norm", "value", "adaptive" or "zscore"'):
        resolve(None, ["optim.clip=norms"], {})


MUP = ("model.init=mup", "model.init.base_width=64")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("optim=lamb",), "optim.kind"),
        (("optim=adafactor",), "optim.kind"),
        (("optim=adam", "optim.weight_decay=0.1"), "optim.kind"),
        (('optim.groups=[{ match = "*", rule = { kind = "lamb" } }]',), "optim.groups.0.rule.kind"),
    ],
)
def test_rules_without_factors_of_mup_are_refused_before_the_run(words: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, [*MUP, *words], {})
    assert key in [problem.key for problem in caught.value.problems]
    resolve(None, list(words), {})


def test_rules_with_factors_of_mup_are_taken() -> None:
    for kind in ("sgd", "adagrad", "rmsprop", "adam", "adamw", "lion"):
        resolve(None, [*MUP, f"optim={kind}"], {})
