"""What older versions of torch lack: options are translated or left out, private names are found under both names."""

import importlib
import operator
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo
from torch._dynamo.utils import counters
from torch.nn.attention import varlen
from torch.utils._python_dispatch import TorchDispatchMode

from hornbook.kernels import torch_versions
from hornbook.kernels.torch_versions import (
    allocate,
    assume_constant_result,
    compile_options,
    eager_optimizer,
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


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "fused": True},
    "Adagrad": {"fused": True},
    "RMSprop": {"momentum": 0.9},
    "Adam": {"fused": True},
    "AdamW": {"fused": True},
}
FRESH = f"""
import gc
import sys
from hornbook.cli.main import main

for words in (["train", *sys.argv[2:], "--out", sys.argv[1]], ["generate", sys.argv[1], "-p", "a model", "--tokens=2"]):
    assert main([*words, "-q"]) == 0
assert gc.isenabled()

import torch
from hornbook.kernels.torch_versions import eager_optimizer

for name, settings in {OPTIMIZERS!r}.items():
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    eager_optimizer(name, [{{"params": [("weight", weight)]}}], **settings).step()
slow = {{"torch._dynamo", "torch._inductor", "torch.distributed.fsdp", "torch.distributed.tensor", "sympy"}}
print(*sys.modules.keys() & slow, file=sys.stderr)
"""


def test_training_and_generating_import_no_compiler(tiny_settings: tuple[str, ...], tmp_path: Path) -> None:
    """torch._dynamo, DTensor and sympy take as long to import as torch."""
    words = [sys.executable, "-c", FRESH, str(tmp_path / "run"), *tiny_settings]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stderr == "\n"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_eager_optimizer_takes_the_steps_of_torch(name: str) -> None:
    weights = [torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_() for _ in range(2)]
    settings = {"lr": 0.1, "weight_decay": 0.1, **OPTIMIZERS[name]}
    ours = eager_optimizer(name, [{"params": [("weight", weights[0])]}], **settings)
    torchs = getattr(torch.optim, name)([weights[1]], **settings)
    for step in range(1, 4):
        for weight in weights:
            weight.grad = torch.sin(step * weight.detach())
        ours.step()
        torchs.step()
        assert torch.equal(*weights)
    with torch.profiler.profile() as profile:
        ours.step()
    assert isinstance(ours, getattr(torch.optim, name))
    assert any(event.key == f"Optimizer.step#{name}.step" for event in profile.key_averages())


def test_a_mode_sees_the_tensors_that_are_made_for_a_model() -> None:
    """As those of `to_empty`: a trace follows tensors by what they are made from."""

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    names = list[list[str]]()
    for give in (lambda model: allocate(model, "cpu"), lambda model: model.to_empty(device="cpu")):
        model, seen = torch.nn.BatchNorm1d(4, device="meta"), list[str]()
        with Seen():
            give(model)
        names.append(seen)
    assert names[0] == names[1] != []


def test_a_model_on_meta_gets_memory() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4, device="meta"), torch.nn.BatchNorm1d(4, device="meta"))
    before = {name: (each.shape, each.stride(), each.dtype) for name, each in model.state_dict().items()}
    model[0].bias.requires_grad_(False)
    allocate(model, "cpu")
    assert {name: (each.shape, each.stride(), each.dtype) for name, each in model.state_dict().items()} == before
    assert {each.device.type for each in model.state_dict().values()} == {"cpu"}
    assert [each.requires_grad for each in model.parameters()] == [True, False, True, True]


SEEN = {
    "torch._C._distributed_c10d:_resolve_process_group": "2.11.0 2.13.0",
    "torch._compile:_disable_dynamo": "2.11.0 2.13.0",
    "torch._dynamo:maybe_mark_dynamic": "2.11.0 2.13.0",
    "torch._dynamo.config:recompile_limit": "2.11.0 2.13.0",
    "torch._functorch.config:activation_memory_budget": "2.11.0 2.13.0",
    "torch._subclasses.fake_tensor:DataDependentOutputException": "2.11.0 2.13.0",
    "torch._subclasses.fake_tensor:DynamicOutputShapeException": "2.11.0 2.13.0",
    "torch._subclasses.fake_tensor:FakeTensor": "2.11.0 2.13.0",
    "torch._subclasses.fake_tensor:FakeTensorMode": "2.11.0 2.13.0",
    "torch.autograd.graph:_engine_run_backward": "2.11.0 2.13.0",
    "torch.cuda.memory:_dump_snapshot": "2.11.0 2.13.0",
    "torch.cuda.memory:_record_memory_history": "2.11.0 2.13.0",
    "torch.distributed.fsdp._fully_shard._fsdp_api:ReduceScatter": "2.11.0 2.13.0",
    "torch.distributed.fsdp._fully_shard._fsdp_collectives:DefaultAllGather": "2.11.0 2.13.0",
    "torch.distributed.fsdp._fully_shard._fsdp_collectives:DefaultAllocMixin": "2.11.0 2.13.0",
    "torch.ops.aten:_scaled_mm": "2.11.0 2.13.0",
    "torch.ops.mkldnn:_is_mkldnn_bf16_supported": "2.11.0 2.13.0",
    "torch.ops.mkldnn:_is_mkldnn_fp16_supported": "2.13.0",
    "torch.ops.mkldnn:_linear_pointwise": "2.11.0 2.13.0",
    "torch.ops.mkldnn:_reorder_linear_weight": "2.13.0",
    "torch.testing._internal.distributed.fake_pg:FakeStore": "2.11.0 2.13.0",
    "torch.utils._python_dispatch:TorchDispatchMode": "2.11.0 2.13.0",
    "torch.utils._python_dispatch:_disable_current_modes": "2.11.0 2.13.0",
    "torch.utils._pytree:tree_leaves": "2.11.0 2.13.0",
}
"""Private name -> versions of torch in which it was seen: in the Python files of a release, or by this test."""
SOURCE = Path(__file__).parents[2] / "src" / "hornbook"
PRIVATE = re.compile(r"\btorch(\.\w+)*\._[a-zA-Z]\w*")


@pytest.mark.parametrize("path", SEEN)
def test_a_private_name_is_there(path: str) -> None:
    module, _, name = path.partition(":")
    place = (
        operator.attrgetter(module[6:])(torch) if module.startswith("torch.ops") else importlib.import_module(module)
    )
    assert hasattr(place, name)


def test_no_other_module_names_private_parts_of_torch() -> None:
    found = {
        str(path.relative_to(SOURCE)): match.group()
        for path in SOURCE.rglob("*.py")
        if (match := PRIVATE.search(path.read_text(encoding="utf-8")))
    }
    assert set(found) == {"kernels/torch_versions.py"}, found


def test_names_that_take_long_to_import_are_found() -> None:
    assert all(isinstance(getattr(torch_versions, name), type) for name in torch_versions._LATER)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        torch_versions.nothing  # noqa: B018
