"""The axis `expert`: the experts of every layer divided over its ranks, from outside the model."""

from torch import nn

from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.grouped import Weights
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.expert.dispatch import Dispatcher
from hornbook.parallel.axes.expert.exchange import Exchange
from hornbook.parallel.axes.tensor.divide import portion
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.shard import Division, Divisions
from hornbook.parallel.world import World


def apply_experts(model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> None:
    """Leave each layer this rank's experts, on whatever device they are, and send tokens to where theirs are.

    Parts differ by one expert at most. All ranks call it.
    """
    if config.expert == 1:
        return
    exchange = Exchange(world, "expert")
    layers = {name: module for name, module in model.named_modules() if isinstance(module, Experts)}
    for number, (name, module) in enumerate(layers.items()):
        first, end, _ = portion(module.count, exchange.size, exchange.rank)
        for each in Weights._fields:
            whole = getattr(module, each)
            divisions[f"{name}.{each}"] = Division(tuple(whole.shape), (first, 0, 0), ("expert",))
            setattr(module, each, nn.Parameter(whole.detach()[first:end].clone(), whole.requires_grad))
        module.product = Dispatcher(exchange, module.count, number)
