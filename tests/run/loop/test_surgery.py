"""Runs over models after surgery: what is trained, what is saved, and going on bit for bit."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from hornbook.errors import Exit, IntegrityError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
from hornbook.run.job.control import Request, write_request
from hornbook.run.job.job import Start
from hornbook.run.job.start.init_from import InitFrom
from hornbook.run.launch.launch import launch
from hornbook.settings.resolve import resolve

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]

STEPS = {
    "lora": 'surgery=[{kind="lora", rank=2}]',
    "dora": 'surgery=[{kind="dora", rank=2, scaling="root_rank"}]',
    "ia3": "surgery=ia3",
    "bottleneck": 'surgery=[{kind="bottleneck", width=4}]',
    "prompt": 'surgery=[{kind="prompt", length=3}]',
    "prefix": 'surgery=[{kind="prefix", length=3, hidden=5}]',
    "llama adapter": 'surgery=[{kind="llama_adapter_v2", length=3, below=1}]',
    "qlora": 'surgery=[{kind="nf4", block=16}, {kind="lora", rank=2}]',
    "freeze": 'surgery=[{kind="freeze", names=["embedding.*"]}]',
    "range": 'surgery=[{kind="fake_quant", group=16}]',
    "learned": 'surgery=[{kind="fake_quant", group=16, scales="learned"}]',
}
ADAPTERS = ("lora", "dora", "ia3", "bottleneck", "prompt", "prefix", "llama adapter", "qlora")


def tensors(folder: Path, step: int = 12) -> dict[str, bytes]:
    checkpoint = RunDir(folder).checkpoints / f"step-{step:08d}"
    return {path.relative_to(checkpoint).as_posix(): path.read_bytes() for path in checkpoint.rglob("*.safetensors")}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...]) -> Path:
    """A trained run. Read only."""
    folder = tmp_path_factory.mktemp("base") / "run"
    resolved = resolve(None, (*tiny_settings, "model.layers=2"), environ={})
    assert launch(resolved, RunDir(folder), Start()) == Exit.DONE
    return folder


@pytest.fixture(scope="module")
def whole_run(
    tmp_path_factory: pytest.TempPathFactory, tiny_settings: tuple[str, ...], base: Path
) -> Callable[[str], Path]:
    """A run over `base` after a step of surgery, by its kind, trained in one piece. Read only."""

    @cache
    def trained(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("whole") / "run"
        resolved = resolve(None, (*tiny_settings, "model.layers=2", STEPS[kind]), environ={})
        start = Start("start", InitFrom("import", checkpoint_path(base)))
        assert launch(resolved, RunDir(folder), start) == Exit.DONE
        return folder

    return trained


@pytest.mark.parametrize("kind", STEPS)
def test_a_stopped_run_goes_on_bit_for_bit(
    tmp_path: Path, launch_run: Launch, branch: Branch, base: Path, whole_run: Callable[[str], Path], kind: str
) -> None:
    words, init_from = (STEPS[kind], "model.layers=2"), InitFrom("import", checkpoint_path(base))
    run = RunDir(tmp_path / "parts").create()
    write_request(run, Request(action="stop", at_step=5))
    assert launch_run(run.path, *words, init_from=init_from) == Exit.RESUMABLE
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert branch(run.path) == branch(whole_run(kind))
    assert tensors(run.path) == tensors(whole_run(kind))
    losses = [step["loss"] for step in branch(run.path)]
    assert losses[-1] != losses[0]


def test_the_bias_of_the_head_may_be_all_that_is_trained(
    tmp_path: Path, launch_run: Launch, branch: Branch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = '["embedding.*", "blocks.*", "norm.*"]'
    words = ("model.head.bias=true", f'surgery=[{{kind="freeze", names={names}}}]')
    assert launch_run(tmp_path / "run", *words) == Exit.DONE
    losses = [step["loss"] for step in branch(tmp_path / "run")]
    assert losses[-1] < losses[0]
    assert re.search(r" 320 of [\d,]+ parameters are trained \(freeze\)", capsys.readouterr().err)
    assert launch_run(tmp_path / "plain") == Exit.DONE
    assert "parameters are trained" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["lora", "prompt", "qlora"])
def test_a_checkpoint_holds_the_adapter_alone(base: Path, whole_run: Callable[[str], Path], kind: str) -> None:
    run = RunDir(whole_run(kind))
    found = tensors(run.path)
    assert sorted(found) == ["adapter_model.safetensors", "trainer/optimizer.safetensors"]
    saved = load_file(run.checkpoints / "step-00000012" / "adapter_model.safetensors")
    moments = load_file(run.checkpoints / "step-00000012" / "trainer" / "optimizer.safetensors")
    trained = sum(tensor.numel() for tensor in saved.values())
    assert sum(tensor.numel() for name, tensor in moments.items() if name.endswith("exp_avg")) == trained
    if kind != "prompt":
        width, hidden, rank = 16, 64, 2
        pairs = [(width, width)] * 4 + [(width, hidden)] * 2 + [(hidden, width)]
        assert trained == 2 * sum(rank * (a + b) for a, b in pairs)
    before = load_file(checkpoint_path(base) / "model.safetensors")
    after = load_file(run.base / "model.safetensors")
    assert all((after[name] == tensor).all() for name, tensor in before.items())


def test_without_a_base_the_initial_values_are_the_base(tmp_path: Path, launch_run: Launch, branch: Branch) -> None:
    launch_run(tmp_path / "whole", STEPS["lora"])
    launch_run(tmp_path / "plain")
    assert branch(tmp_path / "whole")[0]["loss"] == branch(tmp_path / "plain")[0]["loss"]
    run = RunDir(tmp_path / "parts").create()
    write_request(run, Request(action="stop", at_step=5))
    assert launch_run(run.path, STEPS["lora"]) == Exit.RESUMABLE
    assert launch_run(run.path, mode="resume") == Exit.DONE
    assert tensors(run.path) == tensors(tmp_path / "whole")


def test_a_fork_takes_the_base_along(
    tmp_path: Path, launch_run: Launch, branch: Branch, whole_run: Callable[[str], Path]
) -> None:
    fork = InitFrom("fork", checkpoint_path(whole_run("qlora"), 4))
    launch_run(tmp_path / "b", STEPS["qlora"], "model.layers=2", init_from=fork)
    assert branch(tmp_path / "b") == branch(whole_run("qlora"))[4:]


def test_another_base_is_refused(tmp_path: Path, launch_run: Launch, base: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    write_request(run, Request(action="stop", at_step=5))
    launch_run(run.path, STEPS["lora"], "model.layers=2", init_from=InitFrom("import", checkpoint_path(base)))
    weights = run.base / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(IntegrityError, match=r"base with digest \w+, found \w+"):
        launch_run(run.path, mode="resume")


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ('surgery=[{kind="lora", targets=["blocks.*.attention.q_proj"]}]', r"matches no linear layer; near are blocks"),
        ('surgery=[{kind="lora", rank=17}]', r"rank: blocks\.0\.attention\.query is 16 x 16.*at most 16.*found 17"),
        ('surgery=[{kind="fake_quant", group=24}]', r"rows of 16 values, which groups of 24 do not divide: take one"),
        ('surgery=[{kind="nf4", block=64}, {kind="lora"}]', r"nf4 block: .* rows of 16 values"),
        ('surgery=[{kind="freeze", names=["*"]}]', r"nothing is left to train"),
        ('surgery=[{kind="freeze", names=["embeddings.*"]}]', r"matches no parameter; near are embedding.weight"),
        (
            'surgery=["lora", "prompt"]',
            r"one of lora, dora, bottleneck, ia3, prompt, prefix, llama_adapter, llama_adapter_v2 is enough",
        ),
        ("surgery=nf4", r"weights in nf4 are frozen: add one of lora"),
        (
            "surgery=prompt model.kind=encoder data.objective.kind=masked",
            r"before the text of a decoder.*kind is encoder",
        ),
        ('surgery=[{kind="prompt", length=4000}]', r"longer than the positions of model.position.length .*: take"),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(
    tmp_path: Path, launch_run: Launch, word: str, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        launch_run(tmp_path / "run", *(word.split() if "model." in word.split("=")[1] else [word]))
    assert not (tmp_path / "run").exists()


def test_surgery_cannot_change_on_resume(tmp_path: Path, launch_run: Launch) -> None:
    launch_run(tmp_path / "run", STEPS["lora"])
    with pytest.raises(UsageError, match=r"surgery .* cannot change on resume"):
        launch_run(tmp_path / "run", 'surgery=[{kind="lora", rank=4}]', mode="resume")
