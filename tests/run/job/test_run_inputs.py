"""A run compiles its kernels before its first step, once on a machine, whoever else starts at the same time."""

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import torch

from hornbook.files.durable import TEMPORARY
from hornbook.kernels.folder import folders
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import Lora, Nf4
from hornbook.model.cpu import cpu_dropout as dropout
from hornbook.model.cpu import cpu_loss as loss
from hornbook.model.cpu import cpu_norm as norm
from hornbook.model.cpu import four_bits, gate, heads, softmax
from hornbook.model.cpu.cpu_kernels import kernels_of
from hornbook.model.surgery.operate import build_operated
from hornbook.settings.resolve import resolve


def start(folder: Path, name: str, words: tuple[str, ...]) -> "subprocess.Popen[str]":
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kernels")}
    command = [sys.executable, "-m", "hornbook.cli.main", "train", "--out", str(folder / name), *words]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(started: "subprocess.Popen[str]") -> str:
    told = started.communicate(timeout=250)[1]
    assert started.returncode == 0, told
    return told


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def kernels(folder: Path) -> dict[str, int]:
    """Paths of the kernels on disk, and the number of the file of each: a kernel that is compiled again has another."""
    files = (path for path in (folder / "kernels").rglob("*") if path.is_file())
    return {str(path): path.stat().st_ino for path in files}


@pytest.mark.usefixtures("tiny_run")
def test_cold_together_then_damaged(tmp_path: Path, tiny_settings: tuple[str, ...]):
    """Two of the kernels are cold: those that are warm were compiled by `tiny_run`, or before."""
    stored = tmp_path / "kernels" / "hornbook"
    cold = ("*norm._backward_kernel*", "*softmax._cross_entropy_kernel*")
    copytree(next(folders()), stored, ignore=ignore_patterns(*cold, f"{TEMPORARY}*"))
    before = kernels(tmp_path)
    together = [start(tmp_path, name, tiny_settings) for name in ("one", "two")]
    told = [end(each) for each in together]
    assert any("compiling kernels (once): 2," in each for each in told)  # one that comes late may find all there
    made = kernels(tmp_path)
    changed = [name for name in made if made[name] != before.get(name)]
    assert ["norm._backward" in name for name in sorted(changed)] == [True, False]
    damaged = next(path for path in stored.rglob("*softmax._cross_entropy_kernel*"))
    damaged.write_bytes(damaged.read_bytes()[:-100])
    end(start(tmp_path, "mended", tiny_settings))
    mended = kernels(tmp_path)
    assert {name for name in mended if mended[name] != made.get(name)} == {str(damaged)}
    assert losses(tmp_path / "one") == losses(tmp_path / "two") == losses(tmp_path / "mended")


def test_which_kernels_a_model_needs():
    model = build_model(resolve("tiny").recipe.model, 256, device="meta")
    wanted = {softmax._cross_entropy_kernel, heads._kernel, softmax._softmax_kernel, softmax._backward_kernel}
    wanted |= {gate._forward_kernel, gate._backward_kernel, norm._forward_kernel, norm._backward_kernel}
    assert set(kernels_of(model)) == wanted
    dropping = build_model(ModelConfig(layers=1, width=64, heads=2, dropout=0.1), 256, device="meta")
    assert set(kernels_of(dropping)) == wanted | {dropout._kernel}
    assert set(kernels_of(model, loss_has_terms=True)) == wanted | {loss._terms_kernel}
    with torch.device("meta"):
        rounded = build_operated(resolve("tiny").recipe.model, 256, [Nf4(), Lora()])
    assert set(kernels_of(rounded)) == wanted | {four_bits._kernel}
    capped = build_model(ModelConfig(layers=1, width=64, heads=2, head=LMHead(softcap=30.0)), 256, device="meta")
    assert set(kernels_of(capped)) == wanted - {softmax._cross_entropy_kernel} | {loss._terms_kernel}
    with torch.device("meta"):
        assert set(kernels_of(build_model(resolve("tiny-t5").recipe.model, 256))) >= {softmax._diagonal_kernel}
