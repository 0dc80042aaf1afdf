"""`train.precision = "bf16-pure"`: weights, gradients and moments in bfloat16, in a run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.settings.resolve import ConfigError, resolve
from tests.run.launcher import Launcher
from tests.run.loop.test_outside_optimizer import last_bytes, stop_at

Branch = Callable[[Path], list[dict[str, Any]]]
Launch = Callable[..., Exit]
WORDS = ("train.precision=bf16-pure", "optim.lr=3e-3", "model.width=64", "checkpoint.every=4")


@pytest.mark.parametrize("kind", ["adamw", "adamw8bit"])
def test_a_run_goes_on_bit_for_bit_from_bfloat16_files(
    kind: str, tmp_path: Path, launch_run: Launch, branch: Branch
) -> None:
    words = (*WORDS, f"optim.kind={kind}")
    assert launch_run(tmp_path / "whole", *words) == Exit.DONE
    losses = [step["loss"] for step in branch(tmp_path / "whole")]
    assert losses[-1] < losses[0] - 0.5
    folder = RunDir(tmp_path / "whole").checkpoints / "step-00000012"
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    moments = load_file(folder / "trainer" / "optimizer.safetensors")
    assert torch.bfloat16 in {tensor.dtype for name, tensor in moments.items() if name.endswith("exp_avg")}

    stop_at(tmp_path / "run", 5)
    assert launch_run(tmp_path / "run", *words) == Exit.RESUMABLE
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE
    assert branch(tmp_path / "run") == branch(tmp_path / "whole")
    assert last_bytes(tmp_path / "run") == last_bytes(tmp_path / "whole")


def test_it_learns_about_as_fast_as_with_float32_weights(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    last = []
    for precision in ("bf16-pure", "bf16"):
        words = (f"train.precision={precision}", *WORDS[1:])
        assert launch_run(tmp_path / precision, *words) == Exit.DONE
        last.append(branch(tmp_path / precision)[-1]["loss"])
    assert last[0] == pytest.approx(last[1], rel=0.02)


@pytest.mark.parametrize("shard", ["none", "everything"])
def test_ranks_add_gradients_in_float32(
    shard: str, tmp_path: Path, launch_run: Launch, launcher: Launcher, branch: Branch
) -> None:
    assert launch_run(tmp_path / "one", *WORDS) == Exit.DONE
    words = ["train", *WORDS, f"parallel.shard={shard}", "parallel.data=2"]
    run = tmp_path / "two"
    stop_at(run, 1)
    assert launch_run(run, *WORDS) == Exit.RESUMABLE
    del words
    started = launcher.start(
        ["resume", str(run), "parallel.data=2", f"parallel.shard={shard}"], tmp_path / "log", environ={}
    )
    assert started.wait() == Exit.DONE, started.text
    pairs = zip(branch(run), branch(tmp_path / "one"), strict=True)
    assert all(two["loss"] == pytest.approx(one["loss"], rel=0.02) for two, one in pairs)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["optim.kind=lion"], "lion loses small updates of bf16 weights: take adamw or adamw8bit"),
        (["parallel.exact=true"], "not in a fixed tree"),
        (["surgery=[{ kind = 'lora' }]"], "added parts and frozen weights are float32"),
        (["model.mlp=experts"], "routers of experts need float32 weights"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_the_remedy(words: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as refused:
        resolve(None, ["train.precision=bf16-pure", *words], {})
    assert 'train.precision = "bf16"' in str(refused.value)
