"""What ranks do in `test_convert.py`: the state of one optimizer as that of another, however both are divided."""

from typing import Any

import torch
from torch import Tensor

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import LayerConfig, ModelConfig
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.convert import convert_state, update_size
from hornbook.parallel.engine import Engine
from hornbook.parallel.owners import Owners
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.parameter_shard import Shard, state_shards
from hornbook.parallel.world import RankInfo, distributed
from tests.optim.kinds import config_of
from tests.parallel.cases import CPU, parallel

EXPERTS = ExpertsConfig(count=3, active=1, hidden=8)
SIZES = ModelConfig(layers=2, width=16, heads=2, first=[LayerConfig(mlp=EXPERTS)])


def convert_along(rank_info: RankInfo, kinds: list[str], layout: dict[str, Any]) -> dict[str, Any]:
    """State of the first kind, converted to each of the others in turn: this rank's shards of the last one."""
    with distributed(parallel(rank_info, **layout), CPU, rank_info) as world:
        engine = parallelize(build_model(SIZES, 64), parallel(rank_info, **layout), CPU, world)
        optimizer, owners = made(engine, kinds[0])
        fill(state_shards(optimizer, owners.shards))
        size = update_size(optimizer, owners.shards, world)
        for kind in kinds[1:]:
            following, following_owners = made(engine, kind)
            convert_state(optimizer, owners.shards, following, following_owners.shards, world)
            optimizer, owners = following, following_owners
        shards = state_shards(optimizer, owners.shards)
        saved = {name: (each.start, each.tensor.tolist()) for name, each in shards.items() if each.is_primary}
        return {"size": size, "saved": saved, "shapes": {name: each.shape for name, each in shards.items()}}


def made(engine: Engine, kind: str) -> tuple[Optimizer, Owners]:
    shapes = {name: shard.shape for name, shard in engine.shards.items()}
    owners = Owners(engine.shards, engine.world)
    roles = parameter_roles(engine.model)
    return build_optimizer(engine.named_parameters, roles, config_of(kind), None, shapes, owners), owners


def fill(shards: dict[str, Shard]) -> None:
    """Values that depend on the place in the whole tensor alone."""
    for name, shard in sorted(shards.items()):
        count = int(torch.tensor(shard.shape).prod()) if shard.shape else 1
        generator = torch.Generator().manual_seed(len(name))
        whole: Tensor = torch.rand(count, generator=generator).view(shard.shape) + 0.1
        shard.tensor.copy_((whole * 50).round() if name.endswith(".step") else whole[shard.slices])
