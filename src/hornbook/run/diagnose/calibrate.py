"""Measures the training speed of this machine: steps of a small model on random tokens, in the precision of a run.

Run as a child process (`python -m hornbook.run.diagnose.calibrate VOCAB SEQUENCE BATCH_TOKENS SECONDS
LAYERSxWIDTHxHEADS`), so that the caller need not import torch; prints a JSON object.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from hornbook.data.batch import Batch
from hornbook.kernels.ahead import compile_ahead
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initialize
from hornbook.model.layers.precision import choose_precision
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.device import choose_device
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.run.job.run_inputs import model_jobs
from hornbook.settings.training import TrainConfig


def batch_of(tokens: torch.Tensor) -> Batch:
    """A microbatch of tokens (rows, sequence), one document a row; the target of a row's last token is its first."""
    rows, sequence = tokens.shape
    return Batch(
        tokens=tokens,
        targets=tokens.roll(-1, dims=1),
        weights=torch.ones(rows, sequence),
        positions=torch.arange(sequence).expand(rows, -1),
        document_lengths=[(sequence,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )


def training_step(
    config: ModelConfig,
    vocab: int,
    train: TrainConfig,
    parallel: ParallelConfig | None = None,
    optim: OptimizerConfig | None = None,
    tokens: torch.Tensor | None = None,
) -> tuple[Engine, Callable[..., dict[str, torch.Tensor]]]:
    """(engine, a function that makes one whole training step and returns its losses) of a model with initial values.

    The function takes the learning rate of the step, by default that of `optim`, which is AdamW where it is None, and
    tokens (rows, sequence) in place of `tokens`, which are random ones by default.
    """
    model = build_model(config, vocab, device="meta")
    engine = parallelize(model, parallel or ParallelConfig(), train)
    initialize(model, config, seed=0)
    optimizer = build_optimizer(dict(model.named_parameters()), parameter_roles(model), optim := optim or AdamW())
    if tokens is None:
        tokens = torch.randint(0, vocab, (train.batch_tokens // train.sequence, train.sequence))

    def step(lr: float = optim.lr, tokens: torch.Tensor = tokens) -> dict[str, torch.Tensor]:
        optimizer.set_learning_rate(lr)
        engine.zero_gradients()
        losses = engine.forward_backward([batch_of(tokens)], total_weight=float(tokens.numel()))
        engine.clip_gradients(1.0)
        engine.step(optimizer)
        return losses

    return engine, step


def calibrate(config: ModelConfig, vocab: int, train: TrainConfig, seconds: float) -> dict[str, Any]:
    """Seconds per token of at least two steps over at least `seconds`, their precision, and the seconds of all of it:
    `computing`, with kernels to compile."""
    begun = time.monotonic()
    train = train.model_copy(update={"precision": choose_precision(choose_device(train.device)).precision})
    compile_ahead(model_jobs(config, train, vocab))
    _, step = training_step(config, vocab, train)
    step()  # loads kernels, touches pages
    started, steps = time.monotonic(), 0
    while steps < 2 or time.monotonic() - started < seconds:
        step()
        steps += 1
    ended = time.monotonic()
    rate = (ended - started) / steps / train.batch_tokens
    return {"precision": train.precision, "computing": ended - begun, "seconds_per_token": rate}


def main() -> None:
    """Read the shape from the command line and print the measurements."""
    vocab, sequence, batch_tokens = map(int, sys.argv[1:4])
    layers, width, heads = map(int, sys.argv[5].split("x"))
    train = TrainConfig(batch_tokens=batch_tokens, sequence=sequence)
    print(json.dumps(calibrate(ModelConfig(layers=layers, width=width, heads=heads), vocab, train, float(sys.argv[4]))))


if __name__ == "__main__":
    main()
