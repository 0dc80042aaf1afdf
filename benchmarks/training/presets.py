"""Time and memory of every shipped recipe on this machine: `python -m benchmarks.training.presets [RECIPE...]`.

Each recipe whose state (weights, gradients, moments) takes at most 6 GB runs in a process of its own, on random tokens
of its own sequence: two optimizer steps over a few rows, then over twice as many, the fastest of which counts.
Where something else runs beside it all the time, processor time over threads stands for time on the clock.
Time per million tokens is that of the microbatches they make and of the optimizer steps that the recipe's batch asks
for. Memory is the peak of the process with one microbatch of these rows; what a row more takes is the difference
between the two sizes. A recipe that is larger, or learns from somebody's own data, is estimated: its time from its
operations per token (`hornbook.model.config.flops`) at the rate of the largest that was measured, its memory as its
state alone.
`train.compile` is off: on a CPU it brings nothing at these sizes.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import report
from hornbook.cli.settings.recipes import rows_of
from hornbook.model.config.flops import operations_per_token, state_bytes
from hornbook.model.config.parameter_count import count_parameters
from hornbook.settings.recipe import Recipe
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve

MOST_STATE = 6e9
"""Bytes of state of what is measured."""
TOKENS = 1024
"""Of the larger microbatch, about."""
MILLION = 1_000_000
SHARE, TRIES = 0.85, 4
"""Processor time over wall time and threads, below which something else ran beside a step; steps until it is enough."""
QUIET = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
"""Threads that wait for each other take no processor time."""


def recipe_of(name: str) -> Recipe:
    """A shipped recipe as it is, but not compiled and on the CPU; two labels where the data would say which."""
    words = ["train.compile=false", "train.device=cpu"]
    recipe = resolve(name, words, environ={}).recipe
    if recipe.model.head.kind == "classification" and not recipe.model.head.labels:
        return resolve(name, [*words, 'model.head.labels=["a", "b"]'], environ={}).recipe
    return recipe


def facts(name: str) -> dict[str, Any]:
    """What follows from a recipe alone."""
    recipe = recipe_of(name)
    vocab = rows_of(recipe)
    count = count_parameters(recipe.model, vocab)
    operations = operations_per_token(recipe.model, vocab, recipe.train.sequence)
    return {
        "parameters": count,
        "state_bytes": sum(state_bytes(count, recipe.parallel, recipe.optim).values()),
        "operations": sum(each.total for each in operations.values()),
        "sequence": recipe.train.sequence,
        "micro_batch": recipe.train.micro_batch,
        "batch_tokens": recipe.train.batch_tokens,
    }


def row_counts(sequence: int, micro_batch: int) -> tuple[int, int]:
    """Rows of the smaller and of the larger microbatch."""
    most = max(min(micro_batch, TOKENS // sequence), 1)
    return max(most // 2, 1), most


def make_batch(recipe: Recipe, rows: int, vocab: int) -> Any:
    """Random tokens as the recipe's model learns from them: continued, masked, answered to, or labelled."""
    import torch

    from benchmarks.peers.batches import batch_of
    from hornbook.data.batch import Source

    sequence, places = recipe.train.sequence, torch.arange(recipe.train.sequence)
    tokens, source = torch.randint(0, vocab, (rows, sequence)), None
    if recipe.model.kind == "encoder_decoder":
        source = Source(tokens, places.expand(rows, -1), [(sequence,)] * rows)
        target = round(sequence * 114 / 512) if recipe.data.objective.kind == "span" else sequence
        tokens, places = tokens[:, :target].contiguous(), places[:target]
    weights = torch.ones(tokens.shape)
    if recipe.model.kind == "encoder":
        weights = (torch.rand(tokens.shape) < 0.15).float()
    targets = tokens.roll(-1, dims=1)
    if recipe.model.head.kind == "classification":
        weights, targets = torch.zeros(tokens.shape), torch.zeros_like(tokens)
        weights[:, 0] = 1
    return batch_of(tokens, targets, weights, source=source)


class Trained:
    """A recipe's model and optimizer, and what its steps took."""

    def __init__(self, name: str) -> None:
        import torch

        from hornbook.kernels.team import keep_freed_memory
        from hornbook.model.build_model import build_model, parameter_roles
        from hornbook.model.init.init import initial_values
        from hornbook.optim.build_optimizer import build_optimizer
        from hornbook.parallel.parallelize import parallelize

        keep_freed_memory()
        self.recipe, self.steps = recipe_of(name), 0
        self.vocab = rows_of(self.recipe)
        self.threads = torch.get_num_threads()
        model = build_model(self.recipe.model, self.vocab, device="meta")
        self.engine = parallelize(model, self.recipe.parallel, self.recipe.train)
        self.engine.load_stream(initial_values(model, self.recipe.model, 1))
        self.optimizer = build_optimizer(self.engine.named_parameters, parameter_roles(model), self.recipe.optim)

    def step(self, rows: int) -> dict[str, float]:
        """One optimizer step over one microbatch: seconds of each, and the share of the processors that it had."""
        batch = make_batch(self.recipe, rows, self.vocab)
        weight = float(batch.weights.sum())
        self.steps += 1
        before = self._clocks()
        self.engine.zero_gradients()
        self.engine.forward_backward([batch], weight, key=(1, self.steps))
        between = self._clocks()
        self.engine.clip_gradients(1.0)
        self.engine.step(self.optimizer)
        after = self._clocks()
        share = (after[1] - before[1]) / (after[0] - before[0])
        clock = 0 if share >= SHARE else 1
        return {
            "microbatch": between[clock] - before[clock],
            "update": after[clock] - between[clock],
            "share": share,
        }

    def _clocks(self) -> tuple[float, float]:
        """Seconds on the wall, and of processors over threads."""
        return time.perf_counter(), time.process_time() / self.threads


def measure(name: str) -> dict[str, Any]:
    """Figures of one recipe, in this process."""
    from benchmarks.peers.worker import peak_bytes
    from hornbook.model.layers.precision import choose_precision

    trained = Trained(name)
    train = trained.recipe.train
    assert isinstance(train.micro_batch, int)
    few, many = row_counts(train.sequence, train.micro_batch)
    for _ in range(2):  # the first compiles kernels and makes the moments
        trained.step(few)
    small, found = peak_bytes(), [trained.step(many) for _ in range(2)]
    while len(found) < TRIES and max(each["share"] for each in found) < SHARE:
        found.append(trained.step(many))
    alone = [each for each in found if each["share"] >= SHARE] or found
    best, peak = min(alone, key=lambda each: each["microbatch"]), peak_bytes()
    microbatches, updates = MILLION / (many * train.sequence), MILLION / train.batch_tokens
    device = trained.engine.world.device
    return {
        "rows": many,
        "seconds": microbatches * best["microbatch"] + updates * min(each["update"] for each in alone),
        "peak_bytes": peak,
        "row_bytes": (peak - small) / (many - few) if many > few else None,
        "share": max(each["share"] for each in found),
        "precision": choose_precision(device).precision if train.precision == "auto" else train.precision,
    }


def is_measured(name: str, found: dict[str, Any]) -> bool:
    """Whether a recipe is small enough, and learns from plain text."""
    return found["state_bytes"] <= MOST_STATE and recipe_of(name).data.weights == {}


def run(names: Sequence[str] = (), *, missing: bool = False) -> dict[str, Any]:
    """Measure, estimate the rest, print, and write results/presets.json, again after each recipe.

    names: measure these alone; missing: those that the file does not have.
    """
    path = report.RESULTS / "presets.json"
    kept = json.loads(path.read_text())["presets"] if (names or missing) and path.exists() else {}
    presets = {name: facts(name) for name in shipped_recipes()}
    for name, found in presets.items():
        if name not in names and "rows" in kept.get(name, {}):
            presets[name] |= {key: value for key, value in kept[name].items() if key not in found}
    for name, found in presets.items():
        if "rows" not in found and is_measured(name, found) and (name in names or not names):
            command = [sys.executable, "-m", "benchmarks.training.presets", "--one", name]
            environ = os.environ | QUIET
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environ)
            presets[name] |= json.loads(done.stdout)
            write(presets)
    print(report.table(HEADER, cells(figures := write(presets))))
    return figures


def write(presets: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Estimate what was not measured, and write all by family and size."""
    estimate(presets)
    ordered = dict(sorted(presets.items(), key=lambda item: (item[0].partition("-")[0], item[1]["parameters"])))
    report.write("presets", {"presets": ordered})
    return {"presets": ordered}


def estimate(presets: dict[str, dict[str, Any]]) -> None:
    """Give those that were not measured a time: at the rate of the largest that was."""
    measured = [found for found in presets.values() if "rows" in found]
    largest = max(measured, key=lambda found: found["parameters"])
    rate = largest["operations"] * MILLION / largest["seconds"]
    for found in presets.values():
        if "rows" not in found:
            found["seconds"] = found["operations"] * MILLION / rate


HEADER = ["recipe", "parameters", "1M tokens", "state, GB", "peak, GB", "with rows", "GB a row more", ""]


def cells(figures: dict[str, Any]) -> list[tuple[Any, ...]]:
    """A line for each recipe."""
    rows = []
    for name, found in figures["presets"].items():
        own = "rows" in found
        more = found["row_bytes"] / 1e9 if own and found["row_bytes"] else ""
        shape = f"{found['rows']} x {found['sequence']:,}" if own else ""
        state = found["state_bytes"] / 1e9
        peak = found["peak_bytes"] / 1e9 if own else f"more than {state:,.{0 if state >= 100 else 1}f}"
        sizes = (state, peak, shape, more)
        how = "estimated" if not own else "processor time" if found["share"] < SHARE else ""
        rows.append((name, _count(found["parameters"]), duration(found["seconds"]), *sizes, how))
    return rows


def _count(number: int) -> str:
    return f"{number / 1e9:.3g}B" if number >= 1e9 else f"{number / 1e6:.3g}M"


def duration(seconds: float) -> str:
    """Two units that a person counts in."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:,.3g} {unit}"
    return f"{seconds:.3g} s"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="RECIPE", help="measure these again; by default all")
    parser.add_argument("--one", metavar="RECIPE", help=argparse.SUPPRESS)
    parser.add_argument("--missing", action="store_true", help="keep what was measured before")
    words = parser.parse_args()
    if words.one:
        print(json.dumps(measure(words.one)))
    else:
        run(words.names, missing=words.missing)


if __name__ == "__main__":
    main()
