"""Work of the optimizer in a step: bytes of what it reads and writes, products of rules that treat matrices as such."""

from collections import Counter
from typing import NamedTuple

from hornbook.model.config.model import ModelConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.model.config.part import method
from hornbook.optim.config.optimizer import OptimizerConfig
from hornbook.plan.memo import kept_by_model


class ParameterShape(NamedTuple):
    """Parameters of one shape and role."""

    role: str
    rows: int
    columns: int

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

    item: bytes of a weight, and of its gradient. Of projections whose weights lie side by side the joint matrix counts.
    """
    state = operations = narrow = 0.0
    matrices = _matrices(model, vocab)
    for each, count in matrices.items():
        shape = each.rows, each.columns
        rule = optim.rule_for(each.role, shape)
        state += count * rule.state_bytes(each.size, item)
        done = count * rule.update_operations(shape)
        operations, narrow = (operations, narrow + done) if rule.narrow_products else (operations + done, narrow)
    values = max(sum(count * each.size for each, count in matrices.items()), 1)
    return Update(3.0 * item + 2 * state / values, operations, narrow)


@kept_by_model
def _matrices(model: ModelConfig, vocab: int) -> Counter[ParameterShape]:
    """How many there are of each; of an encoder-decoder the attention between the stacks is as that within one."""
    found = Counter[ParameterShape]()
    decoder, *encoder = stacks_of(model)
    generator = model.head.generator_of(model)
    for stack in (decoder, *encoder, *([] if generator is None else [generator])):
        crossed = bool(encoder) and stack is decoder
        for number in range(stack.num_blocks):
            layer = stack.layer(number)
            for part, times in ((layer.attention, 1 + crossed), (layer.mlp, 1)):
                for each in method(part, "products")(layer):
                    found[ParameterShape("matrix", each.columns, each.inner)] += times * max(each.experts, 1)
    for each in model.mtp.products(model):
        found[ParameterShape("matrix", each.columns, each.inner)] += 1
    width = model.embedding.width or model.width
    found[ParameterShape("embedding", vocab, width)] += 1
    if getattr(model.head, "tied", True) is False:
        found[ParameterShape("head", vocab, width)] += 1
    return found
