"""Runs on an emulated GPU train as on a CPU, and a step waits for the device once."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.loop import training_loop as train
from tests.helpers.emulated_tensor import Waits
from tests.optim.kinds import KINDS

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
Steps = list[Counter[str]]

ON_GPU = ("train.device=cuda", "train.precision=bf16", "train.tokens=640", "checkpoint.every=0")
"""5 steps of two microbatches."""
LLAMA = ("model.position.kind=rope", "model.norm.kind=rms", "model.mlp.kind=glu", "model.attention.kv_heads=1")
CASES: dict[str, tuple[str, ...]] = {
    "fp32": ("train.precision=fp32",),
    "fp16": ("train.precision=fp16",),
    "bf16-pure": ("train.precision=bf16-pure", 'optim={kind="adamw", state="bf16"}'),
    "llama": LLAMA,
    "llama, fp32": (*LLAMA, "train.precision=fp32"),
    "experts": ('model.mlp={kind="experts", count=4, active=2}',),
    "soft cap, window": ('model.attention={kind="full", softcap=20.0, window=9}', "model.width=32"),
    "window": ('model.attention={kind="full", window=9}',),
    "sinks": ('model.attention={kind="full", sinks=true}', "model.width=32"),
    "alibi": ("model.position.kind=alibi", "model.width=32"),
    "latent": (*LLAMA[:3], 'model.attention={kind="latent", query_rank=12, kv_rank=8, nope_dim=8}'),
    "delta rule": ("model.attention.kind=delta", "model.position.kind=none"),
    "dropout": ("model.dropout=0.1", "model.attention.dropout=0.1"),
    "average": ("train.average=ema", "train.average.evaluate=true"),
    "neftune": ("train.neftune=5",),
    "recompute": ("parallel.recompute=block",),
    "recompute, selective": ("parallel.recompute=selective",),
    "offload of activations": ("parallel.offload=cpu",),
    "clip by z-score": ("optim.clip.kind=zscore",),
    "clip by parameter": ("optim.clip.kind=adaptive",),
    "clip values": ("optim.clip.kind=value",),
    "z-loss": ("train.loss.z_loss=1e-4", "train.loss.smoothing=0.1"),
    "micro batch": ("train.micro_batch=auto",),
    "one micro batch": ("train.micro_batch=4",),
    "multi-token prediction": ("model.mtp=sequential",),
    "prefix": ("data.objective=prefix",),
    "masked": ("model.kind=encoder", "model.head.kind=masked", "data.objective=masked"),
    "spans": ("model.kind=encoder_decoder", "model.position.kind=relative", "data.objective=span"),
    "lora": ('surgery=[{kind="lora", rank=2}]',),
    "qlora": ('surgery=[{kind="nf4", block=16}, {kind="lora", rank=2}]',),
}
CASES["optimizer adamw8bit, small"] = ('optim={kind="adamw8bit", min_values=1}',)
CASES |= {f"optimizer {kind}": (f"optim.kind={kind}",) for kind in KINDS if kind != "adamw"}
MARKED = ("prefix", "masked", "spans")
"""Cases whose tokenizer needs masks and sentinels."""
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def steps(emulated_cuda: Waits, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Waits of the main thread from the begin of each step to that of the next."""
    found: Steps = []
    take_step = train.take_step

    def noted(*arguments: Any) -> Any:
        if found:
            found[-1] += emulated_cuda.places()
        found.append(Counter())
        emulated_cuda.clear()
        taken = take_step(*arguments)
        if taken.final:  # what comes then is no part of a step
            found[-1] += emulated_cuda.places()
            emulated_cuda.clear()
        return taken

    monkeypatch.setattr(train, "take_step", noted)
    return found


def losses(run: Path) -> list[float]:
    records = map(json.loads, RunDir(run).metrics.read_text().splitlines())
    return [each["loss"] for each in records if "step_tokens" in each]


def one_wait(steps: Steps) -> None:
    """Every step but the first, which may look at a new state, waits at the one place."""
    for number, waits in enumerate(steps):
        assert sum(waits.values()) == 1 or number == 0, f"step {number + 1} waits at {dict(waits)}"
        assert any(place.startswith("tolist @ model/layers/transfer.py:") for place in waits)


@pytest.mark.parametrize("name", CASES)
def test_a_step_waits_once(
    name: str, tmp_path: Path, launch_run: Launch, marked_corpus: Path, steps: Steps, emulated_cuda: Waits
) -> None:
    words = (f"data.path={marked_corpus}",) if name in MARKED else ()
    assert launch_run(tmp_path / "run", *ON_GPU, *words, *CASES[name]) == Exit.DONE
    found = losses(tmp_path / "run")
    assert len(found) == len(steps) == 5
    assert found[-1] < found[0]
    one_wait(steps)
    assert not [each for each in emulated_cuda.found if "pageable" in each.kind]


LOOKS = ("log.statistics_every=2", "log.memory_every=2", "log.memory_snapshot=3", "log.noise_scale=2")


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (("parallel.exact=true",), [2] * 5),
        (('parallel.offload={kind="cpu", optimizer=true}',), [2] * 5),
        (LOOKS, [1, 4, 1, 4, 1]),
        (("guard.audit_every=2", "guard.hash_every=2"), [1, 4, 1, 4, 1]),
    ],
    ids=["exact", "offload of the optimizer", "statistics", "audit"],
)
def test_what_waits_more(
    words: tuple[str, ...], counts: list[int], tmp_path: Path, launch_run: Launch, steps: Steps
) -> None:
    """Sums on the host, an optimizer on the host, and what is looked at every few steps."""
    assert launch_run(tmp_path / "run", *ON_GPU, *words) == Exit.DONE
    assert [sum(each.values()) for each in steps] == counts, steps


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_gpu_trains_resumes_and_replays_as_a_cpu(
    precision: str, tmp_path: Path, launch_run: Launch, branch: Branch, emulated_cuda: Waits
) -> None:
    words = (
        "train.tokens=640",
        f"train.precision={precision}",
        "checkpoint.every=2",
        "eval.every=3",
        "eval.prompt=the",
    )
    here, there = tmp_path / "cpu", tmp_path / "gpu"
    assert launch_run(here, *words) == launch_run(there, *words, "train.device=cuda") == Exit.DONE
    assert losses(there) == pytest.approx(losses(here), rel=1e-3)
    first, before = losses(there), branch(there)
    for step in (4, 5):
        shutil.rmtree(RunDir(there).checkpoints / f"step-{step:08d}")
    assert launch_run(there, mode="resume") == Exit.DONE
    assert branch(there) == before
    assert main(["replay", str(there), "--out", str(tmp_path / "again")]) == Exit.DONE
    assert losses(tmp_path / "again") == first
    writers = {each.thread for each in emulated_cuda.found if each.place.startswith("run/checkpoints/snapshot.py")}
    assert writers == {"checkpoint"}, "the loop waits for no copy of a checkpoint"


def test_a_model_trained_elsewhere_is_adapted(tmp_path: Path, launch_run: Launch, steps: Steps) -> None:
    assert launch_run(tmp_path / "base", *ON_GPU) == Exit.DONE
    steps.clear()
    start = InitFrom("import", checkpoint_path(tmp_path / "base"))
    assert launch_run(tmp_path / "run", *ON_GPU, 'surgery=[{kind="lora", rank=2}]', init_from=start) == Exit.DONE
    assert losses(tmp_path / "run")[0] < losses(tmp_path / "base")[0]
    one_wait(steps)
