"""Memory and time of the loss over a large vocabulary, and of what backward computes again.

The loss: one projection of hidden states to 128k tokens with cross-entropy, forward and backward, by chunks as in
training and by full logits, without and with z-loss and a soft cap. Recomputation: whole steps without an update. Forms
take turns in one process (A B C A B C ...); what is shown is the median over rounds of the ratio within a round. Peak
memory is that of a process of its own for each form, above what it held before the first pass. Predicted bytes are
those of the closed form (`hornbook.model.config.saved_bytes`).

    python -m benchmarks.training.memory [--quick]
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.peers.worker import peak_bytes
from benchmarks.report import table, write
from hornbook.data.batch import Batch
from hornbook.kernels.team import keep_freed_memory
from hornbook.model.build import build_model
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import saved_bytes
from hornbook.model.heads.head import Head
from hornbook.model.init.init import initial_values
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig

MIB = 2**20
VOCAB, WIDTH, TOKENS = 128 * 1024, 256, 1024
Z_LOSS, SOFTCAP = 1e-4, 30.0
TERMS = {"plain": (0.0, None), "z-loss and soft cap": (Z_LOSS, SOFTCAP)}
LLAMA = {"layers": 6, "width": 384, "heads": 6, "vocab": 8192}
GPT2 = LLAMA | {
    "attention": {"kind": "full", "bias": True, "out_bias": True},
    "mlp": {"kind": "mlp"},
    "norm": {"kind": "layer"},
    "position": {"kind": "learned", "length": 2048},
}
MODELS = {"llama, 4 x 512": (LLAMA, 4, 512), "llama, 1 x 2048": (LLAMA, 1, 2048), "gpt2, 4 x 512": (GPT2, 4, 512)}
RECOMPUTE: dict[str, Any] = {
    "none": "none",
    "selective": "selective",
    "every second block": {"kind": "block", "every": 2},
    "block": "block",
}


# ---- The loss


def by_chunks(hidden: Tensor, head: Head, targets: Tensor, z_loss: float) -> Tensor:
    """Ours."""
    found = head.losses(hidden[None], targets[None], torch.ones(1, len(targets)), z_loss=z_loss)
    return torch.stack(list(found.values())).sum()


def by_full_logits(hidden: Tensor, head: Head, targets: Tensor, z_loss: float) -> Tensor:
    """All logits at once, as torch's functions write it."""
    logits = F.linear(hidden, head.matrix)
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    loss = F.cross_entropy(logits, targets, reduction="sum")
    return loss + z_loss * logits.logsumexp(1).square().sum() if z_loss else loss


def by_torch_chunks(hidden: Tensor, head: Head, targets: Tensor, z_loss: float) -> Tensor:
    """torch's own chunks; it has neither z-loss nor soft cap."""
    assert not z_loss
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=128)
    return F.linear_cross_entropy(hidden, head.matrix, targets, reduction="sum", options=options)


LOSSES: dict[str, Callable[[Tensor, Head, Tensor, float], Tensor]] = {
    "hornbook": by_chunks,
    "full logits": by_full_logits,
    "torch's chunks": by_torch_chunks,
}


def loss_pass(form: str, terms: str) -> Callable[[], float]:
    """A forward and backward pass; returns its loss."""
    torch.manual_seed(1)
    z_loss, softcap = TERMS[terms]
    head = Head(VOCAB, WIDTH, None, None, False, softcap)
    with torch.no_grad():
        head.weight.normal_(0, WIDTH**-0.5)
    hidden, targets = torch.randn(TOKENS, WIDTH), torch.randint(0, VOCAB, (TOKENS,))

    def run() -> float:
        head.zero_grad()
        hidden.grad = None
        loss = LOSSES[form](hidden.requires_grad_(), head, targets, z_loss)
        loss.backward()
        return float(loss.detach())

    return run


def forms_of(terms: str) -> list[str]:
    """Contenders that have the terms."""
    return [name for name in LOSSES if terms == "plain" or name != "torch's chunks"]


def losses(rounds: int) -> dict[str, Any]:
    """Time and peak of every form of the loss."""
    found = {}
    for terms in TERMS:
        passes = {name: loss_pass(name, terms) for name in forms_of(terms)}
        values = {name: run() for name, run in passes.items()}
        found[terms] = {
            **ratios(passes, rounds, "hornbook"),
            "loss": {name: value / TOKENS for name, value in values.items()},
            "peak_bytes": {name: alone(partial(loss_pass, name, terms)) for name in passes},
        }
    return found


# ---- Recomputation


def make_step(name: str, kind: str) -> Callable[[], float]:
    """A step without an update; returns its loss."""
    settings, rows, sequence = MODELS[name]
    config = ModelConfig.model_validate(settings)
    model = build_model(config, LLAMA["vocab"])
    parallel = ParallelConfig.model_validate({"recompute": RECOMPUTE[kind]})
    engine = parallelize(model, parallel, TrainConfig.model_validate({"precision": "fp32", "device": "cpu"}))
    engine.load_stream(initial_values(build_model(config, LLAMA["vocab"], "meta"), config, 1))
    return partial(take_step, engine, make_batch(rows, sequence))


def make_batch(rows: int, sequence: int) -> Batch:
    """Rows of random tokens, each one document."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, LLAMA["vocab"], (rows, sequence + 1), generator=generator)
    return Batch(
        tokens=tokens[:, :-1].contiguous(),
        targets=tokens[:, 1:].contiguous(),
        weights=torch.ones(rows, sequence),
        positions=torch.arange(sequence).repeat(rows, 1),
        document_lengths=[(sequence,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )


def take_step(engine: Engine, batch: Batch) -> float:
    """Forward and backward."""
    engine.zero_gradients()
    return float(engine.forward_backward([batch], batch.weights.sum().item(), (1, 1))["loss"])


def recomputation(name: str, rounds: int) -> dict[str, Any]:
    """Time and peak of every kind of recomputation, and the bytes that the closed form predicts."""
    settings, rows, sequence = MODELS[name]
    config, steps = ModelConfig.model_validate(settings), {kind: make_step(name, kind) for kind in RECOMPUTE}
    values = {kind: step() for kind, step in steps.items()}
    assert len({*values.values()}) == 1, values
    predicted = {
        kind: saved_bytes(
            config,
            LLAMA["vocab"],
            Rows(rows, sequence, 4),
            ParallelConfig.model_validate({"recompute": each}).recompute,
        )
        for kind, each in RECOMPUTE.items()
    }
    return {
        **ratios(steps, rounds, "none"),
        "kept_bytes": {kind: each.total for kind, each in predicted.items()},
        "predicted_bytes": {kind: each.total + each.recomputed for kind, each in predicted.items()},
        "peak_bytes": {kind: alone(partial(make_step, name, kind)) for kind in RECOMPUTE},
    }


# ---- Measuring


def ratios(passes: dict[str, Callable[[], float]], rounds: int, base: str) -> dict[str, Any]:
    """Seconds of each, and the median over rounds of its time over that of `base`."""
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(rounds):
        for name, run in passes.items():
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    over = {
        name: statistics.median(a / b for a, b in zip(found, times[base], strict=True)) for name, found in times.items()
    }
    return {
        "seconds": {name: statistics.median(found) for name, found in times.items()},
        "time_ratio": over,
        "rounds": rounds,
    }


def alone(build: Callable[[], Callable[[], float]]) -> int:
    """Peak bytes of two passes in a process of its own, above what it held before."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(_peak, build).result()


def _peak(build: Callable[[], Callable[[], float]]) -> int:
    run = build()
    torch.mm(torch.ones(512, 512), torch.ones(512, 512))  # buffers of the library of products
    before = peak_bytes()
    run()
    run()
    return peak_bytes() - before


def run(quick: bool = False) -> dict[str, Any]:
    """All figures, printed and written to benchmarks/results/memory.json; quick takes fewer rounds and writes none."""
    keep_freed_memory()
    rounds = 1 if quick else 3
    names = list(MODELS)[: 1 if quick else None]
    figures = {
        "loss": {"vocab": VOCAB, "width": WIDTH, "tokens": TOKENS, "terms": losses(rounds)},
        "recompute": {name: recomputation(name, rounds) for name in names},
    }
    show(figures)
    if not quick:
        write("memory", figures)
    return figures


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    for terms, found in figures["loss"]["terms"].items():
        rows = [
            (name, found["seconds"][name], found["time_ratio"][name], found["peak_bytes"][name] / MIB, loss)
            for name, loss in found["loss"].items()
        ]
        print(table([f"loss, {terms}", "seconds", "time, hornbook = 1", "peak MiB", "loss"], rows), "\n")
    for name, found in figures["recompute"].items():
        rows = [
            (
                kind,
                found["time_ratio"][kind],
                found["kept_bytes"][kind] / MIB,
                found["predicted_bytes"][kind] / MIB,
                found["peak_bytes"][kind] / MIB,
            )
            for kind in RECOMPUTE
        ]
        print(table([name, "time", "kept MiB", "with a block again", "measured peak MiB"], rows), "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.memory")
    parser.add_argument("--quick", action="store_true")
    run(**vars(parser.parse_args()))
