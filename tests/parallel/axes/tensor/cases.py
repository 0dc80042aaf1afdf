"""What ranks of the axis `tensor` do in the tests of this folder, called by `run_ranks`."""

from itertools import product
from typing import Any

import torch

from hornbook.data.batch import Batch
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads.losses import LossTerms, loss_and_grad_
from hornbook.model.init.init import initial_values
from hornbook.parallel.axes.tensor.divide import portion
from hornbook.parallel.axes.tensor.divided_vocabulary import Vocabulary
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, distributed
from tests.parallel.axes.tensor.variants import VOCAB, variant
from tests.parallel.cases import CPU
from tests.parallel.trajectory import microbatches


def losses(rank_info: RankInfo, tokens: int) -> list[float]:
    """Largest differences of losses and gradients from those of all logits, over all terms of the loss."""
    config = ParallelConfig(tensor=rank_info.size)
    generator = torch.Generator().manual_seed(3)
    logits = 8 * torch.randn(6, tokens, generator=generator, dtype=torch.float64)
    targets, weights = torch.tensor([0, 5, tokens - 1, 7, 2, 1]), torch.tensor([1.0, 0.5, 2.0, 0.0, 1.0, 1.0])
    logits[3, 4], logits[4, tokens - 1] = 1e4, -torch.inf
    found = []
    with distributed(config, CPU, rank_info) as world:
        own = portion(tokens, world.size, world.rank)
        for smoothing, z_loss, softcap, real in product((0.0, 0.1), (0.0, 1e-2), (None, 4.0), (None, 8, tokens - 2)):
            whole, terms = logits.clone(), LossTerms(smoothing, z_loss, softcap, real)
            if smoothing or softcap:
                whole[4, tokens - 1] = -3.0
            mine = whole[:, own.first : own.last].clone()
            expected = loss_and_grad_(whole, targets, weights, True, terms)
            answer = Vocabulary(tokens, world).loss_and_grad_(mine, targets, weights, True, terms)
            found.append(float((mine - whole[:, own.first : own.last]).abs().max()))
            found += [float((a - b).abs().max()) for a, b in zip(answer, expected, strict=True) if a is not None]
            assert (answer[1] is None) == (expected[1] is None)
    return found


def answers(rank_info: RankInfo, name: str, settings: dict[str, Any], time: int) -> list[Any]:
    """Logits of a prompt, and token losses of a batch, of a model that is divided."""
    config = ParallelConfig.model_validate({"tensor": rank_info.size, **settings})
    sizes = ModelConfig.model_validate({"layers": 2, "width": 64, **variant(name)})
    with distributed(config, CPU, rank_info) as world:
        engine = parallelize(build_model(sizes, VOCAB), config, CPU, world)
        engine.load_stream(initial_values(build_model(sizes, VOCAB), sizes, seed=3))
        batch: Batch = microbatches(0, 2, 19)[0]
        logits = engine.logits(batch.tokens[:, :time])
        return [logits.tolist(), engine.evaluate(batch).tolist()]
