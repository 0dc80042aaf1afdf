"""What ranks do in `tests/parallel/test_comparing.py`."""

from typing import Any

from hornbook.data.batch import empty_microbatch, rank_share
from hornbook.data.config.preferences import DPO, KTO, ORPO
from hornbook.model.build_model import build_model
from hornbook.model.init.init import initial_values
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, distributed
from tests.model.heads.test_preference import MODELS, VOCAB, make_batch
from tests.parallel.cases import CPU, parallel

OBJECTIVES = {"dpo": DPO(), "kto": KTO(), "orpo": ORPO()}


def compare(place: RankInfo, kind: str, settings: dict[str, Any]) -> dict[str, float]:
    """Terms of the objective and norm of the gradient of three microbatches, the last of which one rank has alone."""
    config = parallel(place, **settings)
    with distributed(config, CPU, place) as world:
        model = build_model(MODELS["glu"], VOCAB)
        engine = parallelize(model, config, CPU, world)
        engine.load_stream(initial_values(build_model(MODELS["glu"], VOCAB, "meta"), MODELS["glu"], seed=3))
        grid = [make_batch(OBJECTIVES[kind], seed=seed) for seed in range(3)]
        mine = [grid[number] for number in rank_share(3, world.data_rank, world.data_size)]
        while len(mine) < -(-3 // world.data_size):
            mine.append(empty_microbatch(grid[0]))
        engine.zero_gradients()
        losses = engine.forward_backward(mine, 9.0)
        norm = engine.clip_gradients(0.0)
        return {name: float(each) for name, each in losses.items()} | {"norm": float(norm)}
