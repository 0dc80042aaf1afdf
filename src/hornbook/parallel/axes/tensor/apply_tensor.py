"""Tensor and sequence parallelism of a model, from outside: sliced weights, and what crosses ranks hung on layers.

The residual stream is the same on every rank of the axis, or divided by time (`sequence.py`); what `division_tables.py`
names is divided. Random masks are those of one process: heads know their numbers in the layer, parts of rows theirs.
"""

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.attention.attention import FullAttention
from hornbook.model.attention.latent import LatentAttention
from hornbook.model.attention.position import Alibi, RelativeBuckets
from hornbook.model.config.mlp_config import Activation
from hornbook.model.heads.head import Head
from hornbook.model.heads.label_heads import LabelHead
from hornbook.model.layers.embedding import Embedding
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.norm import RMSNorm, widened
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.grouped import GroupedProduct, Weights
from hornbook.model.mlp.mlp import Blend
from hornbook.model.transformer import Stack, Transformer
from hornbook.parallel.axes.tensor.divide import Divider
from hornbook.parallel.axes.tensor.divided_vocabulary import Vocabulary
from hornbook.parallel.axes.tensor.division_tables import BIAS, DIRECT_LATENT, FULL_NORMS, SINKS, TABLES, Table
from hornbook.parallel.axes.tensor.partial import Partial
from hornbook.parallel.axes.tensor.sequence import Timeline, number_parts
from hornbook.parallel.axes.tensor.tensor_collectives import AXIS, copy, reduce, total
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parameter_shard import Divisions
from hornbook.parallel.world import World

BY_HEADS = (FullAttention, LatentAttention)
"""Attention that is divided."""
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
                if bias is not None and name == "attention" and not isinstance(part, BY_HEADS):
                    raise UsageError(
                        f"parallel.tensor: {path} has no table, so it stays whole, and the scores by distance of its "
                        "heads are divided: take other positions, or leave parallel.tensor 1"
                    )
                if self._divide_part(part, path, timeline) and timeline is not None:
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
            self._divider.cut(f"{prefix}bias", TABLES["RelativeBuckets"], {"heads": bias.weight.shape[1]})
        elif bias is not None:
            raise UsageError(
                f"parallel.tensor: scores by distance of {type(bias).__name__} cannot be divided by heads: take other "
                "positions, or leave parallel.tensor 1"
            )

    # ---- Parts

    def _divide_part(self, part: nn.Module, path: str, timeline: Timeline | None) -> bool:
        """Divide a part by its table; returns whether it needs whole rows. One without a table stays whole."""
        name = type(part).__name__
        if name not in TABLES or not type(part).__module__.startswith("hornbook."):
            return True
        table = TABLES[name]
        if isinstance(part, LatentAttention):
            table = DIRECT_LATENT if part.cfg.query_rank is None else table
            self._divide_latent(part, path, table)
        elif isinstance(part, FullAttention):
            self._divide_attention(part, path, table)
        else:
            self._divider.cut(path, table, {})
        if isinstance(part, Experts):
            part.product = functools.partial(_divided_product, self._world, part.product)
            if part.shared is not None:
                self._divide_part(part.shared, f"{path}.shared", None)
        self._hang(part, table, None if table.whole_time else timeline)
        return table.whole_time

    def _hang(self, part: nn.Module, table: Table, timeline: Timeline | None) -> None:
        to_all: Callable[[Tensor], Tensor] = functools.partial(copy, world=self._world)
        summed: Callable[[Tensor], Tensor] = functools.partial(reduce, world=self._world)
        for name in (*table.enters, *table.remembers, *table.leaves):
            layer = part.get_submodule(name)
            assert isinstance(layer, Linear)
            if name in table.leaves:
                layer.leave = summed if timeline is None else timeline.scatter
            else:
                layer.enter = to_all if timeline is None or name in table.remembers else timeline.gather

    def _divide_attention(self, part: FullAttention, path: str, table: Table) -> None:
        heads, kv_heads = (len(layer.weight) // part.head_dim for layer in (part.query, part.key))
        counts = {"heads": heads, "kv_heads": kv_heads}
        part.first_head = self._divider.portion(heads, "heads", path).first
        self._divider.cut(path, table, counts)
        if part.sinks is not None:
            self._divider.cut(path, SINKS, counts)
        if part.cfg.qk_norm == "head":
            self._partial |= {f"{path}.{name}_norm.weight": (0, 1) for name in ("query", "key")}
        elif part.cfg.qk_norm == "full":
            self._divider.cut(path, FULL_NORMS, counts)
            self._divide_norms(part, counts)

    def _divide_norms(self, part: FullAttention, counts: Mapping[str, int]) -> None:
        """Norms over all heads: their mean square is that of all ranks, of which some may hold the same keys."""
        copies = max(self._world.axis_size(AXIS) // counts["kv_heads"], 1)
        for norm, count, shared in ((part.query_norm, "heads", 1), (part.key_norm, "kv_heads", copies)):
            assert isinstance(norm, RMSNorm)
            width = counts[count] * part.head_dim * shared
            norm.forward = functools.partial(_normalised, norm, self._world, width)

    def _divide_latent(self, part: LatentAttention, path: str, table: Table) -> None:
        heads = part.out.weight.shape[1] // part.cfg.value_dim
        part.first_head = self._divider.portion(heads, "heads", path).first
        self._divider.cut(path, table, {"heads": heads})
        # All heads read the latent and the key they share: both go to all ranks.
        compressed = part._compressed
        replace(part, "_compressed", lambda x, rotation: copy(compressed(x, rotation), self._world))

    # ---- Ends

    def _divide_ends(self) -> None:
        embedding, head = self._model.embedding, self._model.head
        vocabulary = None
        if embedding is not None:
            vocabulary = Vocabulary(len(embedding.weight), self._world)
            self._divider.cut("embedding", TABLES["Embedding"], {})
            embedding.forward = functools.partial(_vectors, embedding, vocabulary)
        if head is not None and not isinstance(head, LabelHead):
            self._divide_head(head, vocabulary)

    def _divide_head(self, head: Head, vocabulary: Vocabulary | None) -> None:
        if not head._tied_to:
            vocabulary = Vocabulary(len(head.weight), self._world)
            self._divider.cut("head", TABLES["Head"], {})
        if head.bias is not None:
            self._divider.cut("head", BIAS, {})
        assert vocabulary is not None, "a tied head needs its embedding"
        head.most_rows, head.enter = vocabulary.most, functools.partial(copy, world=self._world)
        replace(head, "loss_and_grad_", vocabulary.loss_and_grad_)
        replace(head, "logits", vocabulary.gathered(head.logits))


def replace(module: nn.Module, name: str, method: Callable[..., object]) -> None:
    """Have calls of a module's method call another instead."""
    object.__setattr__(module, name, method)


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
