"""Work of the optimizer in a step: bytes of what it reads and writes, products of rules that treat matrices as such."""

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import groupby
from math import prod
from typing import NamedTuple

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import parameters_of, stacks_of
from hornbook.model.config.part import Product, method
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import ITEM_BYTES
from hornbook.settings.fields import KEPT, ByIdentity, kept_by_config


class ParameterShape(NamedTuple):
    """Parameters of one shape and role."""

    role: str
    rows: int
    columns: int
    group: int | None = None
    """Number of the first of `optim.groups` that they are in."""

    @property
    def size(self) -> int:
        """Values."""
        return self.rows * self.columns


class Update(NamedTuple):
    """Of all parameters of a model."""

    bytes_per_value: float
    """Read and written: gradient once, weights and state twice."""
    operations: float
    """Of products in float32."""
    narrow_operations: float
    """Of products in bfloat16, where a device has them."""


def update_of(model: ModelConfig, vocab: int, optim: OptimizerConfig, item: int) -> Update:
    """What an update takes with the rule that each matrix has; vectors count as the other values of the model.

    item: bytes of a weight, and of its gradient. Of projections whose weights lie side by side the joint matrix counts
    where `optim.groups` have them in common.
    """
    return _update(ByIdentity(model), vocab, ByIdentity(optim), item)


@lru_cache(KEPT)
def _update(by: ByIdentity[ModelConfig], vocab: int, rules: ByIdentity[OptimizerConfig], item: int) -> Update:
    model, optim = by.config, rules.config
    state = operations = narrow = 0.0
    matrices = _matrices(model, vocab, tuple(group.match for group in optim.groups))
    for each, count in matrices.items():
        shape, own = (each.rows, each.columns), None if each.group is None else optim.groups[each.group].rule
        rule = (own or optim).rule_for(each.role, shape)
        state += count * rule.state_bytes(each.size, item)
        done = count * rule.update_operations(shape)
        operations, narrow = (operations, narrow + done) if rule.narrow_products else (operations + done, narrow)
    values = max(sum(count * each.size for each, count in matrices.items()), 1)
    return Update(3.0 * item + 2 * state / values, operations, narrow)


@kept_by_config
def _matrices(model: ModelConfig, vocab: int, patterns: tuple[str, ...] = ()) -> Counter[ParameterShape]:
    """How many there are of each; of an encoder-decoder the attention between the stacks is as that within one.

    patterns: globs of `optim.groups`, which parameters are told apart by.
    """
    found = Counter[ParameterShape]()
    decoder, *encoder = stacks_of(model)
    generator = model.head.generator_of(model)
    for stack in (decoder, *encoder, *([] if generator is None else [generator])):
        crossed = bool(encoder) and stack is decoder
        for number in range(stack.num_blocks):
            layer = stack.layer(number)
            block = f"{'' if stack is decoder else 'encoder.'}blocks.{number}"
            for place, times in (("attention", 1 + crossed), ("mlp", 1)):
                for each in method(getattr(layer, place), "products")(layer):
                    for columns, group in _parts(each, f"{block}.{place}", patterns):
                        shape = ParameterShape("matrix", columns, each.inner, group)
                        found[shape] += times * max(each.experts, 1)
    for each in model.mtp.products(model):
        found[ParameterShape("matrix", each.columns, each.inner, _group("mtp.weight", patterns))] += 1
    width = model.embedding.width or model.width
    found[ParameterShape("embedding", vocab, width, _group("embedding.weight", patterns))] += 1
    if getattr(model.head, "tied", True) is False:
        found[ParameterShape("head", vocab, width, _group("head.weight", patterns))] += 1
    return found


def _parts(product: Product, place: str, patterns: tuple[str, ...]) -> Iterator[tuple[int, int | None]]:
    """(columns, group) of a product's weights: of those that lie side by side, what one group has of them."""
    names = product.names or (("weight", product.columns),)
    grouped = [(_group(f"{place}.{name}", patterns), columns) for name, columns in names]
    for group, some in groupby(grouped, key=lambda each: each[0]):
        yield sum(columns for _, columns in some), group


def _group(name: str, patterns: tuple[str, ...]) -> int | None:
    """Number of the first pattern that a name matches, as `hornbook.optim.build_optimizer` assigns rules."""
    return next((number for number, each in enumerate(patterns) if fnmatchcase(name, each)), None)


def state_bytes_per_value(model: ModelConfig, vocab: int, optim: OptimizerConfig, item: int) -> float:
    """Bytes of the optimizer's state over values of the whole model, by the rule that each parameter has; item: bytes
    of a weight."""
    return _state_bytes(ByIdentity(model), vocab, ByIdentity(optim), item)


@lru_cache(KEPT)
def _state_bytes(by: ByIdentity[ModelConfig], vocab: int, rules: ByIdentity[OptimizerConfig], item: int) -> float:
    optim, found = rules.config, parameters_of(by.config, vocab)
    patterns = tuple(group.match for group in optim.groups)
    alike = Counter((_group(each.name, patterns), each.role, each.shape) for each in found)
    sizes = ITEM_BYTES | {"parameter": item}
    total = 0
    for (group, role, shape), count in alike.items():
        own = None if group is None else optim.groups[group].rule
        states = [
            state for state in (own or optim).rule_for(role, shape).state_tensors(shape) if not state.is_parameter
        ]
        total += count * sum(prod(state.shape(shape)) * sizes[state.dtype] for state in states)
    return total / sum(each.size for each in found)
