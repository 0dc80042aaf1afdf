"""What older versions of torch lack: options are translated or left out, private names are found under both names."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
from torch.nn.attention import varlen

from hornbook.model.layers.torch_versions import compile_options, fsdp_groups, varlen_options


def compile_of_2_11(
    model: Any = None, *, fullgraph: bool = False, dynamic: bool | None = None, backend: str = ""
) -> Any:
    """The signature of torch 2.11's `torch.compile`, as far as it matters here."""


def test_a_limit_of_one_function_becomes_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", compile_of_2_11)
    with dynamo.patch(recompile_limit=8):
        assert compile_options(dynamic=False, recompile_limit=64, isolate_recompiles=True) == {"dynamic": False}
        assert dynamo.recompile_limit == 64
        assert compile_options(recompile_limit=32) == {}
        assert dynamo.recompile_limit == 64  # a smaller limit of another function lowers nothing


def test_options_that_torch_knows_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_of_2_13(model: Any = None, *, dynamic: bool | None = None, recompile_limit: int = 8) -> Any: ...

    monkeypatch.setattr(torch, "compile", compile_of_2_13)
    with dynamo.patch(recompile_limit=8):
        assert compile_options(dynamic=False, recompile_limit=64) == {"dynamic": False, "recompile_limit": 64}
        assert dynamo.recompile_limit == 8


def test_grouped_heads_are_named_where_the_kernel_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(query: Any, *, enable_gqa: bool = False) -> Any: ...
    def older(query: Any) -> Any: ...

    monkeypatch.setattr(varlen, "varlen_attn", newer)
    assert varlen_options(True) == {"enable_gqa": True}
    assert varlen_options(False) == {}
    monkeypatch.setattr(varlen, "varlen_attn", older)
    assert varlen_options(True) == {}


def test_parameter_groups_of_both_forms_of_fsdp() -> None:
    assert fsdp_groups(SimpleNamespace(_fsdp_param_groups=[1, 2])) == [1, 2]
    assert fsdp_groups(SimpleNamespace(_fsdp_param_group=1)) == [1]
    assert fsdp_groups(SimpleNamespace(_fsdp_param_group=None)) == []
