"""Private names of torch, and differences between the versions that hornbook supports: 2.11, 2.12 and 2.13.

No other module of hornbook names what begins with an underscore in torch, attributes of tensors aside.
`tests/kernels/test_torch_versions.py` has the versions in which each name was seen; `scripts/torches.sh` runs the tests
with 2.11 and 2.13. What takes long to import (torch's compiler, FSDP, its tests' process groups) is imported where it
is used.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group as process_group_of_name
from torch._compile import _disable_dynamo
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd.graph import GradientEdge, _engine_run_backward
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter
    from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultAllocMixin
    from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode"]
__all__ += ["TorchDispatchMode", "process_group_of_name", "tree_leaves", "without_modes"]
__all__ += ["DefaultAllGather", "DefaultAllocMixin", "FakeStore", "ReduceScatter"]
_FSDP = "torch.distributed.fsdp._fully_shard"
_LATER = {
    "ReduceScatter": f"{_FSDP}._fsdp_api",
    "DefaultAllGather": f"{_FSDP}._fsdp_collectives",
    "DefaultAllocMixin": f"{_FSDP}._fsdp_collectives",
    "FakeStore": "torch.testing._internal.distributed.fake_pg",
}
"""Name -> its module, which is imported when the name is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def has_bf16() -> bool:
    """Whether this CPU multiplies bfloat16: oneDNN's own answer, which heeds ONEDNN_MAX_CPU_ISA as its products do."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def has_fp16() -> bool:
    """Whether this CPU multiplies float16, in the same way."""
    return torch.ops.mkldnn._is_mkldnn_fp16_supported()


def packed_weight(weight: Tensor, rows: int) -> Tensor:
    """Return a copy of a weight [outputs, inputs] in the order of oneDNN for products of so many rows."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b by oneDNN; the weight [outputs, inputs] may be packed."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def scaled_product(left: Tensor, right: Tensor, left_scale: Tensor, right_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """left @ right of float8 matrices, each multiplied by its scale."""
    return torch.ops.aten._scaled_mm(left, right, left_scale, right_scale, out_dtype=dtype)


class EagerOptimizer(torch.optim.Optimizer):
    """An optimizer whose construction imports no compiler. Torch's own does, only to keep the compiler out of it."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's method, without the decorator that imports the compiler."""
        inspect.unwrap(super().add_param_group.__func__)(self, param_group)


class _EagerStep(EagerOptimizer):
    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        inspect.unwrap(super().step.__func__)(self)


def eager_optimizer(name: str, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    """Build one of torch's optimizers, of a class with the same steps that import no compiler either."""
    return _eager_class(getattr(torch.optim, name))(groups, **settings)


@functools.cache
def _eager_class(kind: type[torch.optim.Optimizer]) -> Any:
    return type(kind.__name__, (_EagerStep, kind), {})


def allocate(model: torch.nn.Module, device: torch.device | str) -> None:
    """Give a model on meta memory without values. As `to_empty`, whose kernel for tensors on meta imports sympy.

    Under a dispatch mode, such as that of a trace, it is `to_empty`: the mode follows the tensors that are given.
    """
    is_traced = torch._C._len_torch_dispatch_stack() > 0

    def allocated(tensor: Tensor) -> Tensor:
        if is_traced or type(tensor) not in (Tensor, torch.nn.Parameter):
            return torch.empty_like(tensor, device=device)
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    model._apply(allocated)


def mark_dynamic(tensor: Tensor) -> None:
    """Let torch.compile take the first dim of a tensor to be of any size."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)


def load_compiler() -> None:
    """Import torch's compiler, as torch.optim does at its first step."""
    importlib.import_module("torch._dynamo")


def limit_kept_memory(budget: float) -> None:
    """Let compiled graphs keep this share of what they would keep for backward."""
    functorch: Any = importlib.import_module("torch._functorch.config")
    functorch.activation_memory_budget = budget


def record_memory(on: bool) -> None:
    """Begin or end to record the allocations of a GPU."""
    torch.cuda.memory._record_memory_history(enabled="all" if on else None)


def write_memory_record(path: str) -> None:
    """Write what was recorded, for https://pytorch.org/memory_viz."""
    torch.cuda.memory._dump_snapshot(path)


Function = TypeVar("Function", bound=Callable[..., Any])

all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Fill the first tensor with the second tensors of all ranks, in the order of ranks."""
reduce_scatter_single: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Fill the first tensor with this rank's part of the sum of the second tensors of all ranks."""

uncompiled = _disable_dynamo
"""Decorate a function that torch.compile calls and does not compile: `torch.compiler.disable`, seen in 2.11 to 2.13."""


def assume_constant_result(function: Function) -> Function:
    """Mark a function that torch.compile calls once and does not trace: `torch.compiler.assume_constant_result`."""
    vars(function)["_dynamo_marked_constant"] = True
    return function


def compile_options(**options: Any) -> dict[str, Any]:
    """Return the options that torch.compile knows.

    Before 2.13 it has no `recompile_limit` of a single function. There the limit of all functions is raised instead,
    because FlexAttention, which must not fall back, meets the default of 8 at its ninth shape.
    """
    known = inspect.signature(torch.compile).parameters
    if "recompile_limit" in options and "recompile_limit" not in known:
        import torch._dynamo.config as dynamo

        dynamo.recompile_limit = max(dynamo.recompile_limit, options["recompile_limit"])
    return {name: value for name, value in options.items() if name in known}


def varlen_options(is_grouped: bool) -> dict[str, Any]:
    """Return what `varlen_attn` must be told of heads: before 2.12 its kernel takes grouped heads without a flag."""
    from torch.nn.attention.varlen import varlen_attn

    return {"enable_gqa": True} if is_grouped and "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def fsdp_groups(state: Any) -> list[Any]:
    """Return the parameter groups of FSDP's state of a module; before 2.13 a module has at most one."""
    if hasattr(state, "_fsdp_param_groups"):
        return state._fsdp_param_groups
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def gradients_of_edges(
    edges: Sequence[GradientEdge], inputs: Sequence[GradientEdge], gradients: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients at `inputs` that follow from those at `edges`; without inputs add them to `grad` of leaves.

    As `torch.autograd.grad` and `backward`, which before 2.13 refuse edges of nodes that are written in Python.
    """
    options = {"accumulate_grad": not inputs}
    return _engine_run_backward(tuple(edges), tuple(gradients), False, False, tuple(inputs), True, **options)
