"""Tensor and sequence parallelism of a model, from outside: sliced weights, and what crosses ranks hung on layers.

The residual stream is the same on every rank of the axis, or divided by time (`sequence.py`); parameters are divided as
the parts list them (`hornbook.model.config.part.Cut`). The first product of a pair is divided by outputs, the second by
inputs, so that between them nothing crosses ranks. What has no cut, each rank holds whole: norms, biases that are added
once, routers, the projections down to latents, and parts that list no weights. Random masks are those of one process:
heads know their numbers in the layer, parts of rows theirs.
"""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.attention.latent import LatentAttention
from hornbook.model.attention.position import Alibi, RelativeBuckets
from hornbook.model.block import Block, ParallelBlock
from hornbook.model.config.mlp_config import Activation
from hornbook.model.config.part import Cut, Weight, method
from hornbook.model.heads.head import Head
from hornbook.model.heads.label_heads import LabelHead
from hornbook.model.layers.embedding import Embedding
from hornbook.model.layers.linear import Change, Linear
from hornbook.model.layers.norm import RMSNorm, widened
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.grouped import GroupedProduct, Weights
from hornbook.model.mlp.mlp import Blend
from hornbook.model.surgery.added import Added
from hornbook.model.transformer import Stack, Transformer
from hornbook.parallel.axes.tensor.divide import Divider
from hornbook.parallel.axes.tensor.divided_vocabulary import Vocabulary
from hornbook.parallel.axes.tensor.partial import Partial
from hornbook.parallel.axes.tensor.sequence import Timeline, number_parts
from hornbook.parallel.axes.tensor.tensor_collectives import AXIS, copy, reduce, total
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parameter_shard import Divisions
from hornbook.parallel.world import World

FURTHER = ("joins", "norms")
"""What stands around blocks of multi-token prediction. Their products are whole on each rank."""


def apply_tensor(model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> Partial:
    """Divide a model; returns which gradients ranks have parts of (`partial.py`). It may be on meta."""
    if config.tensor == 1:
        return {}
    return _Application(model, world, config, divisions).run()


class _Application:
    def __init__(self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> None:
        self._model, self._world, self._sequence = model, world, config.sequence
        self._divider = Divider(model, world.axis_size(AXIS), world.axis_rank(AXIS), divisions)
        self._partial: Partial = {}

    def run(self) -> Partial:
        if self._model.encoder is not None:
            self._divide_stack(self._model.encoder, "encoder.")
        self._divide_stack(self._model, "")
        if self._model.mtp is not None:
            timeline = self._divide_blocks(self._model.mtp.blocks, "mtp.", self._model.bias)
            if timeline is not None:
                timeline.attach_further(self._model.mtp)
        self._divide_ends()
        return self._partial | self._divider.copies

    # ---- Stacks

    def _divide_stack(self, stack: Stack, prefix: str) -> None:
        self._divide_bias(stack, prefix)
        timeline = self._divide_blocks(stack.blocks, prefix, stack.bias)
        if timeline is not None:
            timeline.attach(stack)

    def _divide_blocks(self, blocks: nn.ModuleDict, prefix: str, bias: nn.Module | None) -> Timeline | None:
        """Divide the blocks below `prefix`, which read a stack's scores by distance; returns who divides their time."""
        timeline = Timeline(self._world) if self._sequence else None
        wholes = list[str]()
        for number, block in blocks.items():
            for name in ("attention", "cross", "mlp"):
                part, path = getattr(block, name, None), f"{prefix}blocks.{number}.{name}"
                if part is None:
                    continue
                weights = _listed(block, name)
                if bias is not None and name == "attention" and not _heads(weights):
                    raise UsageError(
                        f"parallel.tensor: {path} does not divide its heads, so it stays whole, and their scores by "
                        "distance are divided: take other positions, or leave parallel.tensor 1"
                    )
                if self._divide_part(part, path, weights, timeline) and timeline is not None:
                    timeline.wrap(part)
                    wholes.append(path)
        if timeline is not None:
            self._divide_time(prefix, wholes)
        return timeline

    def _divide_time(self, prefix: str, wholes: list[str]) -> None:
        """Everything between divided products sees a part of each row, but for parts that need whole ones."""
        inside = tuple(f"{path}." for path in wholes)
        begins = tuple(f"{prefix}{part}." for part in ("blocks", "norm", *FURTHER))
        for name, _ in self._model.named_parameters():
            if name.startswith(begins) and not name.startswith(inside) and name not in self._divider.cut_names:
                self._partial[name] = 0, 1
        modules: list[nn.Module] = [
            module
            for name, module in self._model.named_modules()
            if name.startswith(begins[0]) and not f"{name}.".startswith(inside)
        ]
        number_parts(modules, self._world)

    def _divide_bias(self, stack: Stack, prefix: str) -> None:
        """Scores by distance of this rank's heads."""
        bias = stack.bias
        if isinstance(bias, Alibi):
            mine = self._divider.portion(len(bias.slopes), "heads", f"{prefix}bias")
            bias.slopes = bias.slopes[mine.first : mine.last]
        elif isinstance(bias, RelativeBuckets):
            self._divider.cut(f"{prefix}bias.weight", Cut(1, "heads", bias.weight.shape[1]))
        elif bias is not None:
            raise UsageError(
                f"parallel.tensor: scores by distance of {type(bias).__name__} cannot be divided by heads: take other "
                "positions, or leave parallel.tensor 1"
            )

    # ---- Parts

    def _divide_part(self, part: nn.Module, path: str, weights: Sequence[Weight], timeline: Timeline | None) -> bool:
        """Divide a part; returns whether it needs whole rows, as one does of which some matrices stay whole."""
        matrices = [each for each in weights if each.role == "matrix"]
        needs_rows = not matrices or any(each.cut is None or not each.layer for each in matrices)
        if heads := _heads(weights):
            replace(part, "first_head", self._divider.portion(heads, "heads", path).first)
        for each in weights:
            if each.cut is not None:
                self._divider.cut(f"{path}.{each.name}", each.cut)
                self._hang(part, path, each, each.cut, None if needs_rows else timeline)
            elif each.is_per_head:
                self._partial[f"{path}.{each.name}"] = 0, 1
        if isinstance(part, Experts):
            part.product = functools.partial(_divided_product, self._world, part.product)
        elif isinstance(part, LatentAttention):
            part.share = functools.partial(copy, world=self._world)
        return needs_rows

    def _hang(self, part: nn.Module, path: str, weight: Weight, cut: Cut, timeline: Timeline | None) -> None:
        """What crosses ranks: inputs of products, their sums, and mean squares of norms over all heads."""
        if weight.role == "norm":  # some ranks may have the same keys
            norm = part.get_submodule(weight.name.removesuffix(".weight"))
            copies = self._world.axis_size(AXIS) // cut.units
            assert isinstance(norm, RMSNorm)
            norm.forward = functools.partial(_normalised, norm, self._world, weight.size * max(copies, 1))
        if not weight.layer:
            return
        layer = part.get_submodule(weight.layer)
        assert isinstance(layer, Linear)
        if isinstance(layer.adapter, Added):
            self._divide_added(layer.adapter, f"{path}.{weight.layer}.adapter", cut)
        if cut.is_input_shared:
            return
        if cut.dim == 1:
            layer.leave = functools.partial(reduce, world=self._world) if timeline is None else timeline.scatter
        elif timeline is None or (path.endswith(".cross") and cut.unit == "kv_heads"):  # an encoder's whole output
            layer.enter = chained(functools.partial(copy, world=self._world), layer.enter)
        else:
            layer.enter = chained(timeline.gather, layer.enter)

    def _divide_added(self, adapter: Added, path: str, cut: Cut) -> None:
        """Divide what surgery hung on a layer whose matrix is divided by `cut`."""
        if cut.dim not in adapter.cuts:
            side = "inputs" if cut.dim else "outputs"
            raise UsageError(f"surgery: {path} cannot be divided by the {side} of its layer: leave parallel.tensor 1")
        for name, dim in adapter.cuts[cut.dim].items():
            if dim is not None:
                self._divider.cut(f"{path}.{name}", cut._replace(dim=dim))
            elif cut.dim == 0 or adapter.sums:  # ranks use it for different outputs, or different inputs
                self._partial[f"{path}.{name}"] = 0, 1
        if cut.dim == 1:
            adapter.total = functools.partial(reduce, world=self._world)

    # ---- Ends

    def _divide_ends(self) -> None:
        embedding, head = self._model.embedding, self._model.head
        vocabulary = None
        if embedding is not None:
            vocabulary = Vocabulary(len(embedding.weight), self._world)
            self._divider.cut("embedding.weight", Cut(0, "vocabulary", len(embedding.weight)))
            embedding.forward = functools.partial(_vectors, embedding, vocabulary)
        if head is not None and not isinstance(head, LabelHead):
            self._divide_head(head, vocabulary)

    def _divide_head(self, head: Head, vocabulary: Vocabulary | None) -> None:
        if not head._tied_to:
            vocabulary = Vocabulary(len(head.weight), self._world)
            self._divider.cut("head.weight", Cut(0, "vocabulary", len(head.weight)))
        if head.bias is not None:
            self._divider.cut("head.bias", Cut(0, "vocabulary", len(head.bias)))
        assert vocabulary is not None, "a tied head needs its embedding"
        head.most_rows, head.enter = vocabulary.most, functools.partial(copy, world=self._world)
        replace(head, "loss_and_grad_", vocabulary.loss_and_grad_)
        replace(head, "logits", vocabulary.gathered(head.logits))


def _listed(block: nn.Module, name: str) -> list[Weight]:
    """Parameters of a part of a block; none of a part from outside that only inherits a list of ours."""
    assert isinstance(block, Block | ParallelBlock)
    listed = method(block.config.mlp if name == "mlp" else block.config.attention, "weights")
    packages = {each.__module__.partition(".")[0] for each in (listed, type(getattr(block, name)))}
    return listed(block.config) if len(packages) == 1 else []


def _heads(weights: Sequence[Weight]) -> int:
    """Heads that ranks divide; 0: none."""
    return next((each.cut.units for each in weights if each.cut is not None and each.cut.unit == "heads"), 0)


def replace(module: nn.Module, name: str, method: object) -> None:
    """Have calls of a module's method call another instead."""
    object.__setattr__(module, name, method)


def chained(first: Change, then: Change | None) -> Change:
    """Both changes, one after the other."""
    return first if then is None else lambda x: then(first(x))


def _vectors(embedding: Embedding, vocabulary: Vocabulary, tokens: Tensor) -> Tensor:
    return vocabulary.vectors(embedding.weight, tokens)


def _normalised(norm: RMSNorm, world: World, width: int, x: Tensor) -> Tensor:
    """RMSNorm over `width` values, of which this rank has some."""
    wide = widened(x)
    squares = total(wide.square().sum(-1, keepdim=True), world)
    return (wide * torch.rsqrt(squares / width + norm.eps) * norm.weight).to(x.dtype)


def _divided_product(
    world: World,
    product: GroupedProduct,
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    matrices: Weights,
    activation: Activation | Blend = "silu",
) -> Tensor:
    """What experts answer of which each rank has a part of the inner width."""
    return reduce(product(copy(x, world), experts, copy(weights, world), matrices, activation), world)
