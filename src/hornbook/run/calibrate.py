"""How many tokens a second this machine trains: real steps of a small model on random tokens.

Run as a child process (`python -m hornbook.run.calibrate LAYERS WIDTH HEADS VOCAB SEQUENCE BATCH_TOKENS SECONDS`),
so that the caller need not import torch; prints tokens per second.
"""

import sys
import time

import torch

from hornbook.compile_ahead import compile_ahead
from hornbook.data.batch import Batch
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config import ModelConfig
from hornbook.model.init import initialize
from hornbook.optim.build import build_optimizer
from hornbook.optim.config import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import parallelize
from hornbook.run.config import TrainConfig
from hornbook.run.kernels import model_jobs


def random_batch(rows: int, sequence: int, vocab: int) -> Batch:
    """A microbatch of random tokens, one document a row."""
    tokens = torch.randint(0, vocab, (rows, sequence))
    return Batch(
        tokens=tokens,
        targets=tokens.roll(-1, dims=1),
        weights=torch.ones(rows, sequence),
        positions=torch.arange(sequence).expand(rows, -1),
        lengths=[(sequence,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )


def measure(config: ModelConfig, vocab: int, train: TrainConfig, seconds: float) -> float:
    """Tokens per second of whole training steps, over at least `seconds` seconds after one step of warm-up."""
    compile_ahead(model_jobs(config, train, vocab))
    model = build_model(config, vocab, device="meta")
    engine = parallelize(model, ParallelConfig(), train)
    initialize(model, config, seed=0)
    optimizer = build_optimizer(dict(model.named_parameters()), parameter_roles(model), AdamW())
    batch = random_batch(train.batch_tokens // train.sequence, train.sequence, vocab)

    def step() -> None:
        engine.zero_gradients()
        engine.forward_backward([batch], total_weight=float(train.batch_tokens))
        engine.clip_gradients(1.0)
        engine.step(optimizer)

    step()
    started, steps = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        step()
        steps += 1
    return steps * train.batch_tokens / (time.monotonic() - started)


def main() -> None:
    """Read the shape from the command line and print tokens per second."""
    layers, width, heads, vocab, sequence, batch_tokens = map(int, sys.argv[1:7])
    config = ModelConfig(layers=layers, width=width, heads=heads)
    train = TrainConfig(batch_tokens=batch_tokens, sequence=sequence)
    print(measure(config, vocab, train, float(sys.argv[7])))


if __name__ == "__main__":
    main()
