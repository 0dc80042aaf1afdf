"""Which optimizer learns best: a small GPT on bytes of text, at equal tokens and at equal time.

    python -m benchmarks.training.optimizers_learn [--quick] [FILE.jsonl.gz ...]     by default ../shared/data/git-doc

Each optimizer is tried with a small grid of learning rates on one seed; if the best lies at an edge, the grid grows
there. The best rate is then trained with two more seeds. At equal time an optimizer gets as many steps as it makes
while AdamW makes its own, by the times of steps measured in turns (A B C A B C ...), with the same rate and a schedule
of that length. What counts is bits per byte of held-out text after the last step: mean and 95 % interval (Student's t)
over the seeds, which set initial values and the order of the text.
"""

import argparse
import gzip
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from benchmarks.report import table, write
from hornbook.data.batch import Batch
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.model import ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.optim.average import held_weights
from hornbook.optim.build import build_optimizer
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World
from hornbook.run.config import TrainConfig

DATA = Path(__file__).parents[3] / "shared" / "data"
SHAPE = ModelConfig(layers=4, width=128, heads=4)
VOCAB, SEQUENCE, ROWS = 256, 128, 8
STEPS, WARMUP, FLOOR = 300, 15, 0.1
HELD_OUT = 64
"""Rows of held-out text, from the end of it."""
SEEDS = (0, 1, 2)
STUDENT = 4.303
"""Quantile 0.975 of Student's t with two degrees of freedom."""
ROUNDS = 8
WIDEST = 2
"""Rates by which a grid may grow."""
STEP_FACTOR = math.sqrt(10)
"""Between neighbours of the grid."""
GRIDS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "adamw": ({}, [1e-3, 3e-3, 1e-2]),
    "muon": ({}, [3e-3, 1e-2, 3e-2]),
    "soap": ({}, [1e-3, 3e-3, 1e-2]),
    "lion": ({}, [1e-4, 3e-4, 1e-3]),
    "schedule_free": ({}, [3e-3, 1e-2, 3e-2]),
}
"""Settings besides the rate, and rates to begin with. `rest` of Muon has the rate that was best for AdamW."""


class Text:
    """Bytes of documents, as rows of a batch that a seed and a step choose."""

    def __init__(self, paths: list[Path]) -> None:
        whole = bytearray()
        for path in paths:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    whole += json.loads(line)["text"].encode() + b"\n\n"
        tokens = torch.frombuffer(whole, dtype=torch.uint8).long()
        end = len(tokens) - HELD_OUT * SEQUENCE - 1
        self.train, self.held_out = tokens[:end], tokens[end:]

    def batch(self, seed: int, step: int) -> Batch:
        """The rows of a step."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        starts = torch.randint(0, len(self.train) - SEQUENCE - 1, (ROWS,), generator=generator)
        return make_batch(torch.stack([self.train[first : first + SEQUENCE + 1] for first in starts.tolist()]))


def make_batch(rows: Tensor) -> Batch:
    """A batch of plain causal rows; `rows` have one token more."""
    count = len(rows)
    return Batch(
        tokens=rows[:, :-1].contiguous(),
        targets=rows[:, 1:].contiguous(),
        weights=torch.ones(count, SEQUENCE),
        positions=torch.arange(SEQUENCE).expand(count, -1),
        document_lengths=[(SEQUENCE,)] * count,
        samples=torch.arange(count),
        sources=torch.zeros(count, dtype=torch.int64),
    )


class Training:
    """One model and one optimizer."""

    def __init__(self, kind: str, rate: float, seed: int, steps: int, text: Text, more: dict[str, Any]) -> None:
        config = TypeAdapter(AnyOptimizer).validate_python({"kind": kind, "lr": rate, **GRIDS[kind][0], **more})
        train = TrainConfig.model_validate({"device": "cpu", "precision": "fp32"})
        model = build_model(SHAPE, VOCAB)
        self.engine: Engine = parallelize(model, ParallelConfig(), train, World(torch.device("cpu")))
        self.engine.load_stream(initial_values(model, SHAPE, seed=seed))
        self.optimizer: Optimizer = build_optimizer(self.engine.named_parameters, parameter_roles(model), config)
        self.seed, self.steps, self.text, self.done = seed, steps, text, 0

    def factor(self) -> float:
        """On the learning rate: warm-up, then half a cosine; Schedule-Free stays."""
        if self.done < WARMUP:
            return (self.done + 1) / WARMUP
        if self.optimizer.config.averages:
            return 1.0
        progress = (self.done - WARMUP) / max(self.steps - WARMUP, 1)
        return FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress))

    def step(self) -> float:
        """One step; its seconds, without the making of the batch."""
        batch = self.text.batch(self.seed, self.done)
        begun = time.perf_counter()
        self.optimizer.set_learning_rate(self.optimizer.config.lr * self.factor())
        self.engine.zero_gradients()
        self.engine.forward_backward([batch], float(batch.weights.sum()))
        self.engine.clip_gradients(self.optimizer.config.clip)
        self.engine.step(self.optimizer)
        self.done += 1
        return time.perf_counter() - begun

    def bits(self) -> float:
        """Bits per byte of the held-out text."""
        values = self.optimizer.evaluation_weights()
        parameters = {name: self.engine.named_parameters[name] for name in values}
        text = self.text.held_out
        rows = torch.stack([text[first : first + SEQUENCE + 1] for first in range(0, len(text) - 1, SEQUENCE)])
        with held_weights(parameters, values):
            return float(self.engine.evaluate(make_batch(rows)).mean()) / math.log(2)


def final_bits(kind: str, rate: float, seed: int, steps: int, text: Text, more: dict[str, Any]) -> float:
    """Bits per byte after training."""
    training = Training(kind, rate, seed, steps, text, more)
    for _ in range(steps):
        training.step()
    bits = training.bits()
    return bits if math.isfinite(bits) else math.inf


def tune(kind: str, steps: int, text: Text, more: dict[str, Any], widest: int) -> dict[float, float]:
    """Learning rate -> bits per byte of the first seed; the grid grows where its best is at an edge."""
    found = {rate: final_bits(kind, rate, SEEDS[0], steps, text, more) for rate in GRIDS[kind][1]}
    for _ in range(widest):
        rates, best = sorted(found), min(found, key=lambda rate: found[rate])
        if best not in (rates[0], rates[-1]):
            break
        rate = float(f"{best / STEP_FACTOR if best == rates[0] else best * STEP_FACTOR:.1g}")
        found[rate] = final_bits(kind, rate, SEEDS[0], steps, text, more)
    return found


def step_seconds(rates: dict[str, float], text: Text, more: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Median seconds of a step of each optimizer; a round is 20 steps of each, with two refreshes of SOAP."""
    trainings = {kind: Training(kind, rate, 0, STEPS, text, more[kind]) for kind, rate in rates.items()}
    rounds: dict[str, list[float]] = {kind: [] for kind in rates}
    for number in range(ROUNDS + 1):
        for kind, training in trainings.items():
            seconds = sum(training.step() for _ in range(20)) / 20
            rounds[kind] += [seconds] if number else []
    return {kind: statistics.median(each) for kind, each in rounds.items()}


def interval(values: list[float]) -> dict[str, Any]:
    """Mean and half the 95 % interval; of one value no interval."""
    half = STUDENT * statistics.stdev(values) / math.sqrt(len(values)) if len(values) == len(SEEDS) else None
    return {"mean": statistics.mean(values), "half_interval": half, "values": values}


def measure(paths: list[Path], *, quick: bool) -> dict[str, Any]:
    """All figures."""
    text, steps, seeds = Text(paths), 30 if quick else STEPS, SEEDS[:1] if quick else SEEDS
    grids, rates, more = dict[str, Any](), dict[str, float](), dict[str, dict[str, Any]]()
    for kind in GRIDS:
        more[kind] = {"rest": {"kind": "adamw", "lr": rates["adamw"]}} if kind == "muon" else {}
        grids[kind] = tune(kind, steps, text, more[kind], 0 if quick else WIDEST)
        rates[kind] = min(grids[kind], key=lambda rate: grids[kind][rate])
        print(kind, {rate: round(bits, 4) for rate, bits in grids[kind].items()}, flush=True)
    seconds, found = step_seconds(rates, text, more), {}
    for kind, rate in rates.items():
        count = max(round(steps * seconds["adamw"] / seconds[kind]), 1)
        tokens = [grids[kind][rate]] + [final_bits(kind, rate, seed, steps, text, more[kind]) for seed in seeds[1:]]
        timed = tokens if count == steps else [final_bits(kind, rate, s, count, text, more[kind]) for s in seeds]
        found[kind] = {
            "rate": rate,
            "step_over_adamw": seconds[kind] / seconds["adamw"],
            "equal_tokens": interval(tokens),
            "equal_time": {"steps": count, **interval(timed)},
        }
        print(kind, found[kind], flush=True)
    names = {path.name for path in paths}
    setting = {"steps": steps, "tokens": steps * ROWS * SEQUENCE, "text": sorted(names), "shape": "4 x 128, bytes"}
    return {"setting": setting, "optimizers": found, "grids": grids}


def run(paths: list[Path] | None = None, *, quick: bool = False) -> dict[str, Any]:
    """Measure, print and write benchmarks/results/optimizers_learn.json."""
    figures = measure(paths or [DATA / "git-doc.jsonl.gz"], quick=quick)
    rows = []
    for kind, each in figures["optimizers"].items():
        cells = [
            f"{x['mean']:.4f} +- {x['half_interval'] or 0:.4f}" for x in (each["equal_tokens"], each["equal_time"])
        ]
        rows.append([kind, each["rate"], each["step_over_adamw"], *cells, each["equal_time"]["steps"]])
    print(table(["optimizer", "rate", "step / AdamW", "bits/byte, equal tokens", "equal time", "steps there"], rows))
    if not quick:
        write("optimizers_learn", figures)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    run(asked.paths, quick=asked.quick)
