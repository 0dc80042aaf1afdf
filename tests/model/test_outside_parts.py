"""A part from outside the package: a file of a user's own, named in the recipe by its import path."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.flops import operations_per_token
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

ATTENTION = """
from typing import Literal

import torch
from torch import nn

from hornbook.model.config.part import LayerPart
from hornbook.model.layers.linear import Linear


class Mean(LayerPart):
    kind: Literal["mean_attention:Mean"] = "mean_attention:Mean"
    inner: int = 8
    gated: bool = True

    def build(self, model, layer):
        return MeanAttention(model.width, self.inner, self.gated)

    def num_parameters(self, model):
        return self.num_matmul_weights(model) + self.gated * self.inner

    def num_matmul_weights(self, model):
        return 2 * model.width * self.inner

    def attention_flops(self, model, sequence):
        return 4 * self.inner * (sequence + 1) / 2, 4 * self.inner * sequence

    def problems(self, model):
        if self.inner > model.width:
            yield "attention.inner", f"{self.inner} is more than the width"


class MeanAttention(nn.Module):
    role = "vector"

    def __init__(self, width, inner, gated):
        super().__init__()
        self.value, self.out = Linear(width, inner, False), Linear(inner, width, False)
        self.gate = nn.Parameter(torch.empty(inner)) if gated else None

    def forward(self, x, context):
        assert context.mask.kind == "causal"
        seen = torch.ones(x.shape[1], x.shape[1]).tril()
        mean = (seen / seen.sum(1, keepdim=True)).expand(len(x), -1, -1) @ self.value(x)
        return self.out(mean if self.gate is None else mean * self.gate)
"""

INHERITED = """
from typing import Literal

from hornbook.model.config.mlp_config import GLUConfig


class Wide(GLUConfig):
    kind: Literal["wide_glu:Wide"] = "wide_glu:Wide"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules `maxout`, as docs/parts.md prints it, and those above, in the path."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "parts.md").read_text(), re.DOTALL)
    (printed,) = [block for block in blocks if "class Maxout(" in block]
    (tmp_path / "maxout.py").write_text(printed)
    (tmp_path / "scale_norm.py").write_text(NORM)
    (tmp_path / "mean_attention.py").write_text(ATTENTION)
    (tmp_path / "wide_glu.py").write_text(INHERITED)
    (tmp_path / "not_python.py").write_text("class Part(")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("maxout", "scale_norm", "mean_attention", "wide_glu"):
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
    model.head.losses(hidden, tokens, torch.ones(2, 12))["loss"].backward()
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


@pytest.mark.parametrize("text", ['[model]\nmlp = "nowhere:Part"\n', '[model.mlp]\nkind = "nowhere:Part"\n'])
def test_the_line_of_the_recipe_that_names_it_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(UsageError, match=r"nowhere:Part cannot be imported .*recipe\.toml:2\)"):
        resolve(str(tmp_path), [], {})


@pytest.mark.usefixtures("own")
def test_its_settings_are_checked_as_all_others_are() -> None:
    with pytest.raises(UsageError, match="piecse"):
        resolve(None, ["model.mlp=maxout:Maxout", "model.mlp.piecse=3"], {})


OUTSIDE = {
    "attention": ["model.attention=mean_attention:Mean", "model.attention.inner=12"],
    "mlp": ["model.mlp=maxout:Maxout"],
    "both, in some layers": [
        "model.layers=4",
        "model.first=[{attention={kind='mean_attention:Mean',gated=false}}]",
        "model.pattern=[{},{mlp={kind='maxout:Maxout',pieces=3}},{}]",
    ],
    "an inside part with a name of its own": ["model.mlp=wide_glu:Wide", "model.mlp.bias=true"],
}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("words", OUTSIDE.values(), ids=OUTSIDE)
def test_its_parameters_and_operations_are_those_of_the_module(words: list[str]) -> None:
    config = resolve(None, ["model.layers=2", "model.width=16", "model.heads=2", *words], {}).recipe.model
    model = build_model(config, 64, "cpu")
    assert count_parameters(config, 64) == sum(each.numel() for each in model.parameters())
    tokens = torch.arange(24).view(2, 12)
    with FlopCounterMode(display=False) as counter:
        hidden, _ = model(tokens, torch.arange(12).expand(2, 12))
        hidden.sum().backward()
    counted = {str(name): flops for name, flops in counter.get_flop_counts()["Global"].items()}
    (operations,) = operations_per_token(config, 64, 12).values()
    products = 6 * (operations.weights - config.head.num_matmul_weights(config, 64))
    assert sum(flops for name, flops in counted.items() if name in ("aten.mm", "aten.addmm")) == products * 24
    if "model.attention=mean_attention:Mean" in words:
        assert counted["aten.bmm"] == operations.all_pairs * 24


@pytest.mark.usefixtures("own")
def test_its_own_conditions_are_checked() -> None:
    with pytest.raises(UsageError, match=r"model\.attention\.inner +99 is more than the width"):
        resolve(None, ["model.width=16", "model.attention=mean_attention:Mean", "model.attention.inner=99"], {})


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("missing", ["build", "num_parameters"])
def test_a_method_that_every_part_must_have_is_named_where_it_is_missing(tmp_path: Path, missing: str) -> None:
    (tmp_path / "mean_attention.py").write_text(ATTENTION.replace(f"def {missing}(", f"def other_{missing}("))
    with pytest.raises(UsageError, match=f"the part Mean has no method `{missing}`"):
        build_model(resolve(None, ["model.attention=mean_attention:Mean"], {}).recipe.model, 64)
