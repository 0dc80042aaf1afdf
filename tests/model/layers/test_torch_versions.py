"""What older versions of torch lack: options are translated or left out, private names are found under both names."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
from torch._dynamo.utils import counters
from torch.nn.attention import varlen

from hornbook.model.layers.torch_versions import (
    assume_constant_result,
    compile_options,
    fsdp_groups,
    uncompiled,
    varlen_options,
)


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


def test_an_uncompiled_function_is_called_by_compiled_code_as_it_is() -> None:
    @uncompiled
    def is_compiling(x: torch.Tensor) -> torch.Tensor:
        return x.new_tensor(float(torch.compiler.is_compiling()))

    def outer(x: torch.Tensor) -> torch.Tensor:
        return is_compiling(x + 1) + 2

    torch._dynamo.reset()
    counters.clear()
    assert torch.compile(outer, backend="eager")(torch.ones(2)).item() == 2
    assert counters["stats"]["unique_graphs"] == 2  # before and after the call
    torch._dynamo.reset()


def test_a_constant_result_is_asked_for_once() -> None:
    calls = list[int]()

    @assume_constant_result
    def factor() -> int:
        calls.append(1)
        return 3

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * factor(), backend="eager", fullgraph=True)
    assert [compiled(torch.tensor(2)).item() for _ in range(3)] == [6, 6, 6]
    assert len(calls) == 1
    torch._dynamo.reset()


def test_imports_need_no_compiler() -> None:
    """torch._dynamo, DTensor and sympy take as long to import as torch."""
    slow = {"torch._dynamo", "torch.distributed.tensor", "sympy"}
    code = f"import hornbook.run.loop.train, sys; print(sys.modules.keys() & {slow})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
