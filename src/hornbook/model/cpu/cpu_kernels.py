"""Which CPU kernels a model will launch in training, so that they can be compiled before its first step.

What is missing here is compiled when it is first launched: that costs time at that moment and changes no bit.
"""

from collections.abc import Iterator

from torch import nn

from hornbook.kernels.team import Kernel
from hornbook.model.attention.attention import CrossAttention, FullAttention
from hornbook.model.attention.position import Alibi, RelativeBuckets
from hornbook.model.cpu import cpu_dropout as dropout
from hornbook.model.cpu import cpu_experts as experts
from hornbook.model.cpu import cpu_loss as loss
from hornbook.model.cpu import cpu_norm as norm
from hornbook.model.cpu import four_bits, gate, heads, softmax
from hornbook.model.heads.label_heads import LabelHead
from hornbook.model.layers.dropout import Dropout, RowDropout
from hornbook.model.layers.norm import RMSNorm
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.mlp import GLU
from hornbook.model.surgery.quantization.nf4 import Nf4Code
from hornbook.model.transformer import Transformer


def kernels_of(model: Transformer, loss_has_terms: bool = False) -> list[Kernel]:
    """The kernels of a built model (on any device, meta included), each once.

    loss_has_terms: training adds label smoothing or z-loss, evaluation does not.
    """
    found = [] if isinstance(model.head, LabelHead) else _kernels_of_loss(model, loss_has_terms)
    biased = any(isinstance(module, Alibi | RelativeBuckets) for module in model.modules())
    for module in model.modules():
        found += _kernels_of_module(module, biased)
    return list(dict.fromkeys(found))


def _kernels_of_loss(model: Transformer, has_terms: bool) -> list[Kernel]:
    if model.head is not None and model.head.softcap is not None:
        return [loss._terms_kernel]
    return [softmax._cross_entropy_kernel, *([loss._terms_kernel] if has_terms else [])]


def _kernels_of_module(module: nn.Module, biased: bool) -> Iterator[Kernel]:
    match module:
        case RMSNorm():
            yield from (norm._forward_kernel, norm._backward_kernel)
        case GLU(activation="silu"):
            yield from (gate._forward_kernel, gate._backward_kernel)
        case Experts(activation="silu"):
            yield from (experts._gate_kernel, experts._gate_backward_kernel, experts._sum_kernel)
        case Dropout(rate=rate) if rate and not isinstance(module, RowDropout):
            yield dropout._kernel
        case FullAttention():
            yield from _kernels_of_attention(module, biased)
        case Nf4Code():
            yield four_bits._kernel
        case RelativeBuckets():
            yield softmax._diagonal_kernel


def _kernels_of_attention(module: FullAttention, biased: bool) -> Iterator[Kernel]:
    yield from (heads._kernel, softmax._backward_kernel)
    plain = module.sinks is None and (not biased or isinstance(module, CrossAttention))
    yield softmax._softmax_kernel if plain else softmax._biased_kernel
    if module.cfg.dropout:
        yield dropout._kernel
