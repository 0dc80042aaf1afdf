"""Contender: hornbook's Engine on an encoder or encoder-decoder. Usage: -m benchmarks.peers.ours_family '{...}'."""

import json
import sys
from pathlib import Path

import torch

from benchmarks.peers import family_data
from benchmarks.peers.batches import batch_of, positions, train_step
from benchmarks.peers.worker import serve
from hornbook.data.batch import Batch, Source
from hornbook.kernels.team import keep_freed_memory
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.hf.hf import read_hf
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig


def make_batch(rows: family_data.Rows) -> Batch:
    """The step as the data room hands it on."""
    counted = rows.labels != family_data.IGNORED
    source = None
    if rows.source is not None:
        whole = [(rows.source.shape[1],)] * len(rows.source)
        source = Source(rows.source, positions(whole), whole)
    return batch_of(rows.tokens, torch.where(counted, rows.labels, 0), counted.float(), rows.lengths, source)


def main() -> None:
    spec = json.loads(sys.argv[1])
    keep_freed_memory()
    config, vocab, stream = read_hf(Path(spec["folder"]))
    attention = config.attention.model_copy(update={"dropout": spec["dropout"]})
    model = build_model(config.model_copy(update={"dropout": spec["dropout"], "attention": attention}), vocab)
    engine = parallelize(model, ParallelConfig(), TrainConfig(precision=spec["precision"], device="cpu"))
    engine.load_stream(stream)
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(model), AdamW(weight_decay=0.0))
    number = 0

    def step(tokens: torch.Tensor) -> float:
        nonlocal number
        number += 1
        batch = make_batch(family_data.make(spec["family"], tokens, spec["documents"]))
        return train_step(engine, optimizer, [batch], float(batch.weights.sum()), key=(1, number))

    serve(step, spec["shape"])


main()
