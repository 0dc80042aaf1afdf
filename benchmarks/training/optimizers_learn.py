"""Which optimizer learns best: a small GPT on bytes of text, at equal tokens and at equal time.

    python -m benchmarks.training.optimizers_learn [--quick] [--minutes N] [FILE.jsonl.gz ...]

By default the text is ../shared/data/git-doc, and all of it takes at most 18 minutes: steps of every optimizer are
timed first, in turns (A B C A B C ...), and the number of steps of a run is what fits. A run that would begin after
the limit is left out, and what is done stands in benchmarks/results/optimizers_learn.json after each part.

The learning rate of each optimizer is that of the best of a few runs of a third of the steps on one seed; where the
best lies at an edge, the grid grows there. With it three seeds, which set initial values and the order of the text,
are trained for equal tokens; and for equal time, as many steps as the optimizer makes while AdamW makes its own, with
a schedule of that length. What counts is bits per byte of held-out text after the last step: mean and 95 % interval
(Student's t).
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

from benchmarks.figures import optimizers_learn
from benchmarks.report import write
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
from hornbook.settings.training import TrainConfig

DATA = Path(__file__).parents[3] / "shared" / "data"
SHAPE = ModelConfig(layers=4, width=128, heads=4)
VOCAB, SEQUENCE, ROWS = 256, 128, 8
STEPS, QUICK_STEPS, FLOOR = 600, 9, 0.1
"""Steps of a run at most, and with --quick; where the cosine ends, as a share of the rate."""
WARMUP = 20
"""A run warms up for one step in so many."""
MINUTES, KEPT = 18.0, 0.85
"""The time limit, and the share of it that the plan takes."""
SHORT = 3
"""A run of the sweep has one step in so many."""
HELD_OUT = 64
"""Rows of held-out text, from the end of it."""
SEEDS = (0, 1, 2)
STUDENT = 4.303
"""Quantile 0.975 of Student's t with two degrees of freedom."""
ROUNDS = 3
WIDEST = 2
"""Rates by which a grid may grow."""
STEP_FACTOR = math.sqrt(10)
"""Between neighbours of the grid."""
GRIDS: dict[str, tuple[dict[str, Any], list[float]]] = {
    "adamw": ({}, [1e-3, 3e-3, 1e-2]),
    "adamw8bit": ({"embeddings": True}, [1e-3, 3e-3, 1e-2]),
    "lion": ({}, [1e-4, 3e-4, 1e-3]),
    "adafactor": ({"relative_step": False}, [1e-2, 3e-2, 1e-1]),
    "muon": ({}, [3e-3, 1e-2, 3e-2]),
    "soap": ({}, [1e-3, 3e-3, 1e-2]),
    "schedule_free": ({}, [3e-3, 1e-2, 3e-2]),
    "sgd": ({}, [3e-2, 1e-1, 3e-1]),
    "lamb": ({}, [3e-3, 1e-2, 3e-2]),
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
        warmup = max(self.steps // WARMUP, 1)
        if self.done < warmup:
            return (self.done + 1) / warmup
        if self.optimizer.config.averages:
            return 1.0
        progress = (self.done - warmup) / max(self.steps - warmup, 1)
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


class OutOfTimeError(Exception):
    """The limit is over."""


class Bench:
    """All runs: figures grow in `figures` and, unless `quick`, on disk after each part."""

    def __init__(self, text: Text, minutes: float, *, quick: bool) -> None:
        self.text, self.quick, self.seeds = text, quick, SEEDS[:1] if quick else SEEDS
        self.end = time.monotonic() + 60 * minutes
        self.found: dict[str, dict[str, Any]] = {kind: {} for kind in GRIDS}
        self.figures: dict[str, Any] = {"optimizers": self.found, "minutes": minutes}
        self.seconds, self.steps = dict[str, float](), QUICK_STEPS

    def save(self) -> None:
        """Write what there is."""
        if not self.quick:
            write("optimizers_learn", self.figures)

    def training(self, kind: str, rate: float, seed: int, steps: int) -> Training:
        """A fresh one; `rest` of Muon has AdamW's rate."""
        rest = {"rest": {"kind": "adamw", "lr": self.found["adamw"].get("rate", 3e-3)}} if kind == "muon" else {}
        return Training(kind, rate, seed, steps, self.text, rest)

    def final_bits(self, kind: str, rate: float, seed: int, steps: int) -> float:
        """Bits per byte after training. Raises OutOfTimeError where it would end too late."""
        if time.monotonic() + steps * self.seconds[kind] > self.end:
            raise OutOfTimeError
        training = self.training(kind, rate, seed, steps)
        for _ in range(steps):
            training.step()
        bits = training.bits()
        return bits if math.isfinite(bits) else math.inf

    def time_steps(self) -> None:
        """Median seconds of a step of each, and with them the number of steps that fits; SOAP refreshes every tenth."""
        rounds: dict[str, list[float]] = {kind: [] for kind in GRIDS}
        trainings = {kind: self.training(kind, rates[0], 0, STEPS) for kind, (_, rates) in GRIDS.items()}
        for number in range(1 + (1 if self.quick else ROUNDS)):
            for kind, training in trainings.items():
                seconds = sum(training.step() for _ in range(10)) / 10
                rounds[kind] += [seconds] if number else []
        self.seconds = {kind: statistics.median(each) for kind, each in rounds.items()}
        each = (3 + WIDEST) / SHORT + len(SEEDS)
        cost = sum(each * seconds + len(SEEDS) * self.seconds["adamw"] for seconds in self.seconds.values())
        if not self.quick:
            self.steps = min(STEPS, int(KEPT * (self.end - time.monotonic()) / cost))
        self.figures |= {"steps": self.steps, "tokens": self.steps * ROWS * SEQUENCE, "shape": "4 x 128, bytes"}
        for kind, seconds in self.seconds.items():
            self.found[kind]["step_over_adamw"] = seconds / self.seconds["adamw"]

    def tune(self, kind: str) -> None:
        """Its grid of rates, which grows where the best is at an edge, and the best one."""
        steps, rates = max(self.steps // SHORT, 1), list(GRIDS[kind][1])
        grid = self.found[kind]["grid"] = dict[float, float]()
        for _ in range(1 if self.quick else 1 + WIDEST):
            grid |= {rate: self.final_bits(kind, rate, SEEDS[0], steps) for rate in rates if rate not in grid}
            best = self.found[kind]["rate"] = min(grid, key=lambda rate: grid[rate])
            if best not in (min(grid), max(grid)):
                break
            rates = [float(f"{best * (STEP_FACTOR if best == max(grid) else 1 / STEP_FACTOR):.1g}")]

    def equal_tokens(self, kind: str) -> None:
        """Every seed, for the same number of steps."""
        self._seeds(kind, "equal_tokens", self.steps)

    def equal_time(self, kind: str) -> None:
        """Every seed, for the time of AdamW; its own runs are those of equal tokens."""
        steps = max(round(self.steps / self.found[kind]["step_over_adamw"]), 1)
        if steps == self.steps:
            self.found[kind]["equal_time"] = self.found[kind]["equal_tokens"]
        else:
            self._seeds(kind, "equal_time", steps)

    def _seeds(self, kind: str, part: str, steps: int) -> None:
        rate = self.found[kind]["rate"]
        values = [self.final_bits(kind, rate, seed, steps) for seed in self.seeds]
        self.found[kind][part] = {"steps": steps, **interval(values)}

    def measure(self) -> None:
        """One part of all optimizers after the other, until the time is over."""
        self.time_steps()
        try:
            for part in (self.tune, self.equal_tokens, self.equal_time):
                for kind in GRIDS:
                    part(kind)
                    self.save()
                    print(part.__name__, kind, self.found[kind], flush=True)
        except OutOfTimeError:
            self.save()
            print("out of time: parts that are missing were not measured", flush=True)


def interval(values: list[float]) -> dict[str, Any]:
    """Mean and half the 95 % interval; of one value no interval."""
    half = STUDENT * statistics.stdev(values) / math.sqrt(len(values)) if len(values) == len(SEEDS) else None
    return {"mean": statistics.mean(values), "half_interval": half, "values": values}


def run(paths: list[Path] | None = None, minutes: float = MINUTES, *, quick: bool = False) -> dict[str, Any]:
    """Measure, print and write benchmarks/results/optimizers_learn.json."""
    paths = paths or [DATA / "git-doc.jsonl.gz"]
    bench = Bench(Text(paths), minutes, quick=quick)
    bench.figures["text"] = sorted(path.name for path in paths)
    bench.measure()
    print("\n".join(optimizers_learn(bench.figures)))
    return bench.figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    asked = parser.parse_args()
    run(asked.paths, asked.minutes, quick=asked.quick)
