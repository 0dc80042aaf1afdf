"""Attention on a GPU over documents and masks of blocks, by kernels that keep no scores.

FlexAttention (Dong et al. 2024, arXiv 2412.05496) compiles what becomes of a score into its kernel. Flash attention
(Dao 2023, arXiv 2307.08691) over documents behind one another is the kernel that whole rows get, so that documents cost
no more than rows without them.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.kernels.torch_versions import compile_options, varlen_options
from hornbook.model.attention.key_tables import Documents
from hornbook.model.attention.tiled_attention import Scoring

Heads = Float[Tensor, "batch heads time dim"]
HALVES = (torch.bfloat16, torch.float16)
LEAST_DIM = 16
"""Of a head, for FlexAttention's products."""
MOST_DIM = 256
"""Of a head, for flash attention."""
MOST_SHAPES = 64
"""Shapes, dtypes and kinds of scores that FlexAttention is compiled for in one process."""
FLASH = {"FA3": ("flash_attn_interface", (9,)), "FA4": ("flash_attn.cute", (9, 10))}
"""Implementations that torch can take in place of its own flash attention: their module, and the major compute
capabilities that torch uses them on."""


def takes_documents(query: Heads, key: Heads, value: Heads) -> bool:
    """Whether flash attention has a kernel for heads like these."""
    dims = {query.shape[3], key.shape[3], value.shape[3]}
    return _is_gpu(query) and query.dtype in HALVES and len(dims) == 1 and _fits_flash(dims.pop())


def _is_gpu(x: Tensor) -> bool:
    return x.device.type == "cuda"


def _fits_flash(dim: int) -> bool:
    return dim % 8 == 0 and dim <= MOST_DIM


def takes_blocks(query: Heads, key: Heads, value: Heads) -> bool:
    """Whether FlexAttention has a kernel for heads like these."""
    dims, dtypes = (query.shape[3], key.shape[3], value.shape[3]), (*HALVES, torch.float32)
    return _is_gpu(query) and query.dtype in dtypes and min(dims) >= LEAST_DIM and _compiles()


@functools.cache
def _compiles() -> bool:
    """FlexAttention is a Triton kernel."""
    return importlib.util.find_spec("triton") is not None


def attend_to_documents(query: Heads, key: Heads, value: Heads, documents: Documents, scale: float) -> Heads:
    """Attention confined to documents, by sequences of unequal length."""
    from torch.nn.attention.varlen import varlen_attn

    behind = [each.transpose(1, 2).flatten(0, 1) for each in (query, key, value)]
    # The longest that a document can be: a kernel's work follows its own length, and code for one bound serves all.
    longest = query.shape[2], key.shape[2]
    starts, window = (documents.query_starts, documents.key_starts), documents.window
    grouped = varlen_options(query.shape[1] != key.shape[1])
    attend: Callable[..., Any] = varlen_attn
    out = attend(*behind, *starts, *longest, scale=scale, window_size=window, **grouped)
    assert isinstance(out, Tensor)
    return out.unflatten(0, (query.shape[0], -1)).transpose(1, 2)


def attend_by_blocks(query: Heads, key: Heads, value: Heads, blocks: Any, scoring: Scoring) -> Heads:
    """FlexAttention over a `BlockMask`; all of `Scoring` but dropout."""
    from torch.nn.attention.flex_attention import AuxRequest

    change = score_change(scoring, key.shape[2] - query.shape[2])
    grouped = query.shape[1] != key.shape[1]
    options = {"score_mod": change, "block_mask": blocks, "scale": scoring.scale, "enable_gqa": grouped}
    flex = _flex_attention(_is_gpu(query) and not torch.compiler.is_compiling())
    if scoring.sinks is None:
        return flex(query, key, value, **options)
    out, aux = flex(query, key, value, **options, return_aux=AuxRequest(lse=True))
    # A sink is one more term e^s below the fraction: out e^lse / (e^lse + e^s).
    return (out * torch.sigmoid(aux.lse - scoring.sinks[:, None])[..., None]).to(query.dtype)


@functools.cache
def _flex_attention(compiled: bool) -> Any:
    """Compiled for each shape; within a compiled block it is compiled with the block."""
    from torch.nn.attention.flex_attention import flex_attention

    # An error at the limit, where by default all scores would be computed from then on.
    options = compile_options(recompile_limit=MOST_SHAPES, isolate_recompiles=True)
    return torch.compile(flex_attention, fullgraph=True, dynamic=False, **options) if compiled else flex_attention


def score_change(scoring: Scoring, offset: int) -> Any:
    """What becomes of a score, which has its scale; None: nothing. The first query stands at key `offset`."""
    cap, bias = scoring.softcap, scoring.bias
    if bias is None:
        return None if cap is None else lambda score, _b, _h, _q, _k: cap * torch.tanh(score / cap)
    middle = bias.shape[1] // 2 - offset

    def by_distance(score: Tensor, _b: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        score = score if cap is None else cap * torch.tanh(score / cap)
        return score + bias[head, key - query + middle]

    return by_distance


@functools.cache
def use_installed_flash(device: torch.device) -> str | None:
    """Have torch's attention use the flash attention that is installed for this GPU; its name, or None."""
    from torch.nn.attention import activate_flash_attention_impl

    if device.type != "cuda":
        return None
    major, _ = torch.cuda.get_device_capability(device)
    for name, (module, majors) in FLASH.items():
        if major in majors and _is_installed(module):
            activate_flash_attention_impl(name)
            return name
    return None


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # of the package around it
        return False
