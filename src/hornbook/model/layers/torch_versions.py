"""Differences between the versions of torch that hornbook supports: 2.11, 2.12 and 2.13.

Everything that torch 2.11 lacks, or has under another name, is here. `scripts/torches.sh` runs the tests with each.
So are the marks of `torch.compiler` without its import of torch._dynamo, which takes half as long as that of torch.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.autograd.graph import GradientEdge, _engine_run_backward

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
