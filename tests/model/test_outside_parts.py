"""A part from outside the package: a file of a user's own, named in the recipe by its import path."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.hf.hf import read_hf, write_hf
from hornbook.model.init.init import initialize
from hornbook.settings.resolve import resolve

ROOT = Path(__file__).resolve().parents[2]

NORM = """
from typing import Literal

import torch
from torch import nn

from hornbook.settings.fields import Config


class Scale(Config):
    kind: Literal["scale_norm:Scale"] = "scale_norm:Scale"

    def build(self, width):
        return ScaleNorm()

    def num_parameters(self, model):
        return 1


class ScaleNorm(nn.Module):
    role = "norm"

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(1))

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-5) * self.gain
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules `maxout`, as docs/parts.md prints it, and `scale_norm`, in the path."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parts.md").read_text(), re.DOTALL)
    (printed,) = [block for block in blocks if "class Maxout(" in block]
    (tmp_path / "maxout.py").write_text(printed)
    (tmp_path / "scale_norm.py").write_text(NORM)
    (tmp_path / "not_python.py").write_text("class Part(")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("maxout", "scale_norm"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own")
def test_a_part_from_outside_is_configured_counted_trained_and_saved(tmp_path: Path) -> None:
    words = ["model.layers=2", "model.width=16", "model.heads=2", "model.mlp=maxout:Maxout", "model.mlp.pieces=3"]
    config = resolve(None, [*words, "model.norm=scale_norm:Scale"], {}).recipe.model
    assert (config.mlp.kind, config.mlp.pieces) == ("maxout:Maxout", 3)
    model = build_model(config, 64, "cpu")
    assert count_parameters(config, 64) == sum(each.numel() for each in model.parameters())
    assert parameter_roles(model)["blocks.0.mlp.up.weight"] == "matrix"
    assert parameter_roles(model)["blocks.0.norm1.gain"] == "norm"
    initialize(model, config, seed=1)
    tokens = torch.arange(24).view(2, 12)
    hidden, _ = model(tokens)
    assert model.head is not None
    model.head.loss(hidden, tokens, torch.ones(2, 12)).backward()
    assert all(float(each.grad.abs().max()) > 0 for each in model.parameters() if each.grad is not None)
    assert all(each.grad is not None for each in model.parameters())
    write_hf(tmp_path / "saved", model, config, 64, None)
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["architectures"] == ["HornbookForCausalLM"]
    again, vocab, tensors = read_hf(tmp_path / "saved")
    assert (again, vocab) == (config, 64)
    assert all(torch.equal(tensor, model.get_parameter(name)) for name, tensor in tensors)


@pytest.mark.usefixtures("own")
def test_a_checkpoint_imports_only_what_a_person_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = resolve(None, ["model.layers=1", "model.width=16", "model.heads=2", "model.mlp=maxout:Maxout"], {})
    write_hf(tmp_path / "saved", build_model(config.recipe.model, 64, "cpu"), config.recipe.model, 64, None)
    del sys.modules["maxout"]
    with pytest.raises(UsageError, match=r"maxout:Maxout.*HORNBOOK_TRUST_PARTS=1"):
        read_hf(tmp_path / "saved")
    assert "maxout" not in sys.modules
    monkeypatch.setenv("HORNBOOK_TRUST_PARTS", "1")
    assert read_hf(tmp_path / "saved")[0].mlp.kind == "maxout:Maxout"


@pytest.mark.usefixtures("own")
def test_norms_of_heads_need_no_eps_of_a_norm_from_outside() -> None:
    config = resolve(None, ["model.norm=scale_norm:Scale", "model.attention.qk_norm=head"], {}).recipe.model
    assert build_model(config, 64).blocks["0"].attention.query_norm.eps == 1e-6


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("nowhere_at_all:Part", "cannot be imported"),
        ("json:nothing", "cannot be imported"),
        ("json:loads", "is no part"),
        (".json:loads", "cannot be imported"),
        ("not_python:Part", "cannot be imported"),
    ],
)
def test_what_is_no_part_is_refused_by_name(kind: str, text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        resolve(None, [f"model.mlp={kind}"], {})
    assert kind in str(caught.value)


@pytest.mark.usefixtures("own")
def test_its_settings_are_checked_as_all_others_are() -> None:
    with pytest.raises(UsageError, match="piecse"):
        resolve(None, ["model.mlp=maxout:Maxout", "model.mlp.piecse=3"], {})
