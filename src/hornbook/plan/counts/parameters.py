"""Parameters of a model by name, role and shape, without building it: what surgery and `optim.groups` choose from.

Names are those of the built model (the tests compare them). A part from outside has one parameter of all its values.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod
from typing import NamedTuple

from hornbook.model.config.attention_config import DeltaAttentionConfig, FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig, GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig, Parallel
from hornbook.model.config.norm_config import NormConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.model.config.position_config import AddedPositionPart
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import ITEM_BYTES
from hornbook.settings.fields import KEPT, ByIdentity, kept_by_config


class Parameter(NamedTuple):
    """One parameter; experts of a layer are one of three dims."""

    name: str
    role: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Values."""
        return prod(self.shape)

    @property
    def layer(self) -> str:
        """Name of the linear layer whose matrix it is; "" where it is none."""
        linear = self.role == "matrix" and len(self.shape) == 2 and not self.name.endswith("router.weight")
        return self.name.removesuffix(".weight") if linear and self.name.endswith(".weight") else ""


@kept_by_config
def parameters_of(model: ModelConfig, vocab: int) -> list[Parameter]:
    """Of the model with an embedding of `vocab` rows; what a router adds to choose experts is not trained."""
    width = model.embedding.width or model.width
    found = [Parameter("embedding.weight", "embedding", (vocab, width))]
    for stack, prefix in zip(stacks_of(model), ("", "encoder."), strict=False):
        found += _stack(stack, prefix, crossed=model.kind == "encoder_decoder" and not prefix)
    return [*found, *_mtp(model), *_head(model, vocab)]


def _stack(stack: ModelConfig, prefix: str, *, crossed: bool) -> Iterator[Parameter]:
    part, entrance = stack.embedding, stack.entrance
    if positions := stack.position.num_parameters(entrance):
        name = "positions" if isinstance(stack.position, AddedPositionPart) else "bias"
        columns = entrance.width if name == "positions" else stack.heads
        yield Parameter(f"{prefix}{name}.weight", "position", (positions // columns, columns))
    if part.width:
        yield from _linear(f"{prefix}entrance.project", part.width, stack.width, bias=part.bias)
    if part.types:
        yield Parameter(f"{prefix}entrance.types.weight", "position", (part.types, entrance.width))
    if part.norm:
        yield from _norm(f"{prefix}entrance.norm", stack.norm, entrance)
    for number in range(stack.layers):
        yield from _block(stack, number, f"{prefix}blocks.{number}", crossed=crossed)
    if stack.final_norm:
        yield from _norm(f"{prefix}norm", stack.norm, stack)


def _block(stack: ModelConfig, number: int, name: str, *, crossed: bool = False) -> Iterator[Parameter]:
    layer, block = stack.layer(number), stack.block
    yield from _attention(layer, f"{name}.attention")
    yield from _mlp(layer, f"{name}.mlp")
    if isinstance(block, Parallel):
        for each in ("norm1", "norm2")[: 1 if block.shared_norm else 2]:
            yield from _norm(f"{name}.{each}", stack.norm, stack)
        return
    if crossed:
        yield from _attention(layer, f"{name}.cross")
    for site in block.norms:
        out = "" if site == "before" else f"{site}_"
        yield from _norm(f"{name}.{out}norm1", stack.attention_norm(number), stack)
        yield from _norm(f"{name}.{out}norm2", stack.norm, stack)
        if crossed:
            yield from _norm(f"{name}.cross_{out}norm", stack.norm, stack)


def _linear(name: str, inputs: int, outputs: int, *, bias: bool = False) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", "matrix", (outputs, inputs))
    if bias:
        yield Parameter(f"{name}.bias", "vector", (outputs,))


def _norm(name: str, norm: NormConfig, model: ModelConfig) -> Iterator[Parameter]:
    values = norm.num_parameters(model)
    for each in ("weight", "bias")[: values // model.width]:
        yield Parameter(f"{name}.{each}", "norm", (model.width,))


def _vectors(name: str, role: str, sizes: dict[str, int]) -> Iterator[Parameter]:
    return (Parameter(f"{name}.{each}", role, (size,)) for each, size in sizes.items() if size)


def _attention(layer: ModelConfig, name: str) -> Iterator[Parameter]:
    part, width, heads = layer.attention, layer.width, layer.heads
    if isinstance(part, FullAttentionConfig):
        queries, keys = heads * layer.head_dim, layer.kv_heads * layer.head_dim
        for each, size in (("query", queries), ("key", keys), ("value", keys)):
            yield from _linear(f"{name}.{each}", width, size, bias=part.bias)
        yield from _linear(f"{name}.out", queries, width, bias=part.out_bias)
        sizes = {"none": (0, 0), "head": (layer.head_dim, layer.head_dim), "full": (queries, keys)}[part.qk_norm]
        yield from _vectors(name, "norm", {"query_norm.weight": sizes[0], "key_norm.weight": sizes[1]})
        yield from _vectors(name, "vector", {"sinks": part.sinks * heads})
    elif isinstance(part, LatentAttentionConfig):
        queries, rank = heads * (part.nope_dim + part.rope_dim), part.query_rank or 0
        if rank:
            yield from _linear(f"{name}.query_down", width, rank, bias=part.bias)
        yield from _linear(f"{name}.query_up" if rank else f"{name}.query", rank or width, queries)
        yield from _linear(f"{name}.kv_down", width, part.kv_rank + part.rope_dim, bias=part.bias)
        yield from _linear(f"{name}.kv_up", part.kv_rank, heads * (part.nope_dim + part.value_dim))
        yield from _linear(f"{name}.out", heads * part.value_dim, width, bias=part.bias)
        yield from _vectors(name, "norm", {"query_norm.weight": rank, "kv_norm.weight": part.kv_rank})
    elif isinstance(part, DeltaAttentionConfig):
        (keys, values), gates = part.widths(layer), part.value_heads or heads
        for each, size in {"query": keys, "key": keys, "value": values, "gate": values}.items():
            yield from _linear(f"{name}.{each}", width, size)
        yield from (each for gate in ("rate", "decay") for each in _linear(f"{name}.{gate}", width, gates))
        yield from _linear(f"{name}.out", values, width)
        yield Parameter(f"{name}.convolution.weight", "vector", (2 * keys + values, part.convolution))
        yield from _vectors(name, "vector", {"log_decay": gates, "decay_bias": gates})
        yield from _vectors(name, "norm", {"norm.weight": values // gates})
    else:
        yield Parameter(f"{name}.weight", "matrix", (part.num_parameters(layer),))


def _mlp(layer: ModelConfig, name: str) -> Iterator[Parameter]:
    part, width, hidden = layer.mlp, layer.width, layer.hidden
    if isinstance(part, PlainMLPConfig | GLUConfig):
        yield from _gated(name, width, hidden, gated=part.projections == 3, bias=part.bias)
    elif isinstance(part, ExpertsConfig):
        for each in ("gate", "up", "down"):
            shape = (width, hidden) if each == "down" else (hidden, width)
            yield Parameter(f"{name}.{each}", "matrix", (part.count, *shape))
        yield Parameter(f"{name}.router.weight", "matrix", (part.count, width))
        if part.shared_hidden is not None:
            yield from _gated(f"{name}.shared", width, part.shared_hidden, gated=True)
    else:
        yield Parameter(f"{name}.weight", "matrix", (part.num_parameters(layer),))


def layers_of(layer: ModelConfig, place: str) -> list[Parameter]:
    """Matrices of the linear layers of `attention` or `mlp` of a block, in order, by their names there."""
    found = _attention(layer, place) if place == "attention" else _mlp(layer, place)
    return [each._replace(name=each.name.removeprefix(f"{place}.")) for each in found if each.layer]


def _gated(name: str, width: int, hidden: int, *, gated: bool, bias: bool = False) -> Iterator[Parameter]:
    for each in ("gate", "up")[0 if gated else 1 :]:
        yield from _linear(f"{name}.{each}", width, hidden, bias=bias)
    yield from _linear(f"{name}.down", hidden, width, bias=bias)


def _mtp(model: ModelConfig) -> Iterator[Parameter]:
    """Blocks of multi-token prediction, and what stands around them."""
    for number in range(model.layers, model.num_blocks):
        yield from _block(model, number, f"mtp.blocks.{number}")
        if model.mtp.kind == "sequential":
            yield from _norm(f"mtp.joins.{number}.state_norm", model.norm, model)
            yield from _norm(f"mtp.joins.{number}.token_norm", model.norm, model)
            yield from _linear(f"mtp.joins.{number}.project", 2 * model.width, model.width)
        if model.final_norm:
            yield from _norm(f"mtp.norms.{number}", model.norm, model)


def _head(model: ModelConfig, vocab: int) -> Iterator[Parameter]:
    """The matrix of outputs, all else before it as one, and the generator of replaced-token detection."""
    head = model.head
    tied, width = getattr(head, "tied", None), model.embedding.width or model.width
    rows = 0 if tied else head.num_outputs(vocab)
    if rows:
        yield Parameter("head.weight", "head", (rows, width))
    if rest := head.num_parameters(model, vocab) - rows * width:
        yield Parameter("head.before.weight", "vector", (rest,))
    if (generator := head.generator_of(model)) is not None:
        for each in parameters_of(generator, vocab)[1:]:
            yield each._replace(name=f"head.generator.{each.name}")


def state_bytes_per_value(model: ModelConfig, vocab: int, optim: OptimizerConfig, item: int) -> float:
    """Bytes of the optimizer's state over values of the whole model, by the rule that each parameter has; item: bytes
    of a weight."""
    return _state_bytes(ByIdentity(model), vocab, ByIdentity(optim), item)


@lru_cache(KEPT)
def _state_bytes(by: ByIdentity[ModelConfig], vocab: int, rules: ByIdentity[OptimizerConfig], item: int) -> float:
    optim, found = rules.config, parameters_of(by.config, vocab)
    sizes = {"parameter": item}
    total = 0
    for each in found:
        group = next((group for group in optim.groups if fnmatchcase(each.name, group.match)), None)
        rule = ((group and group.rule) or optim).rule_for(each.role, each.shape)
        states = [state for state in rule.state_tensors(each.shape) if not state.is_parameter]
        total += sum(prod(state.shape(each.shape)) * (ITEM_BYTES | sizes)[state.dtype] for state in states)
    return total / sum(each.size for each in found)
