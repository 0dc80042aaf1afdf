"""The training step of a recipe, in rounds in turn with rows of one document and of several.

MFU is of the data sheet's dense bf16 rate; operations are those of `hornbook.model.config.flops`: products with
matrices, and attention over pairs of a whole row that see each other (causal; rows of documents count the same, so that
the two rates compare).
"""

import time
from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.output import Output
from benchmarks.gpu.worker import begin, peak_bytes, peak_flops, reset_peak, seconds_of
from benchmarks.peers.batches import cut, make_batch
from hornbook.data.batch import Batch
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.flops import operations_per_token, state_bytes
from hornbook.model.config.parameter_count import count_parameters
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

ROUNDS, SECONDS = 5, 2.0
"""Rounds of each kind of rows, and the length of one."""
TINY = ["model.layers=2", "model.width=64", "model.heads=4", "model.vocab=256", "train.compile=false"]
TINY_ATTENTION = {"llama-1b": ["model.attention.kv_heads=2", "model.attention.head_dim=16"]}
TINY_ATTENTION["llama-3-8b"] = ["model.attention.kv_heads=2"]


class Stepper:
    """The calls of the training loop over batches made before."""

    def __init__(self, recipe: Recipe, spec: dict[str, Any], device: torch.device) -> None:
        assert recipe.model.vocab is not None
        model = build_model(recipe.model, recipe.model.vocab)
        self.engine: Engine = parallelize(model, recipe.parallel, recipe.train, World(device))
        draw_weights(self.engine.named_parameters)
        self.optimizer = build_optimizer(self.engine.named_parameters, parameter_roles(model), recipe.optim)
        drawn = torch.Generator().manual_seed(0)
        size = (spec["microbatches"] * spec["rows"], spec["sequence"] + 1)
        tokens = torch.randint(recipe.model.vocab, size, generator=drawn)
        self.batches = {"whole": batches(tokens, spec["rows"], 0), "documents": batches(tokens, spec["rows"], 1)}
        self.loss, self.number = float("nan"), 0

    def __call__(self, kind: str) -> None:
        """One step; its loss is fetched, as the loop does."""
        engine, found = self.engine, self.batches[kind]
        total = sum(each.tokens.numel() for each in found)
        engine.zero_gradients()
        losses = engine.forward_backward(found, total, key=(0, self.number))
        norm = engine.clip_gradients(1.0)
        _, (loss, _) = engine.step_and_fetch(self.optimizer, losses["loss"], norm)
        self.loss, self.number = loss / total, self.number + 1


@torch.no_grad()
def draw_weights(parameters: Mapping[str, Tensor]) -> None:
    """Fill parameters on their device: hornbook's own values, drawn on the host, take 17 s for llama-1b."""
    for name, parameter in parameters.items():
        if parameter.dim() > 1:
            parameter.normal_(std=0.02)
        else:
            parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def batches(tokens: Tensor, rows: int, documents: int) -> list[Batch]:
    """Microbatches of rows that are one document, or several of unequal lengths."""
    from dataclasses import replace

    draw, made = Random(1), [make_batch(part) for part in cut(tokens, rows)]
    if not documents:
        return made
    return [replace(each, document_lengths=[pieces(draw, each.tokens.shape[1]) for _ in each.tokens]) for each in made]


def pieces(draw: Random, total: int) -> tuple[int, ...]:
    """Lengths of documents that fill a row: between a sixteenth of it and a half."""
    lengths: list[int] = []
    while (left := total - sum(lengths)) > 0:
        lengths.append(min(left, draw.randint(total // 16, total // 2)))
    return tuple(lengths)


def recipe_of(spec: dict[str, Any]) -> Recipe:
    """The shipped recipe with this part's settings; tiny on a CPU."""
    words = [*spec["words"], f"train.precision={spec['precision']}", f"train.sequence={spec['sequence']}"]
    words += [f"train.micro_batch={spec['rows']}", f"train.batch_tokens={tokens_of(spec)}"]
    words += ['train.ramp={kind = "none"}']
    if spec["dry_run"]:
        words = [word for word in words if "cuda_graphs" not in word]
        words += ["train.float8.emulate=true"] if spec["precision"] == "float8" else []
        words += [*TINY, *TINY_ATTENTION.get(spec["recipe"], []), "train.device=cpu"]
    return resolve(spec["recipe"], words, environ={}).recipe


def tokens_of(spec: dict[str, Any]) -> int:
    """Tokens of a step."""
    return spec["microbatches"] * spec["rows"] * spec["sequence"]


def measure(spec: dict[str, Any], device: torch.device, output: Output) -> dict[str, Any]:
    """Rounds of both kinds of rows in turn, written as they come."""
    recipe = recipe_of(spec)
    reset_peak(device)
    begun = time.perf_counter()
    step = Stepper(recipe, spec, device)
    for _ in range(2):
        for kind in step.batches:
            step(kind)
    figures: dict[str, Any] = {"precision": spec["precision"], "start_seconds": time.perf_counter() - begun}
    figures["rounds"] = {"whole": [], "documents": []}
    times = 1 if spec["dry_run"] else max(int(SECONDS / seconds_of(lambda: step("whole"), device, 2)), 1)
    for _ in range(1 if spec["dry_run"] else ROUNDS):
        for kind, rounds in figures["rounds"].items():
            rounds.append(seconds_of(lambda kind=kind: step(kind), device, times))
        figures |= summary(recipe, spec, figures["rounds"], device) | {"loss": step.loss}
        output.write(figures)
    return figures


def summary(
    recipe: Recipe, spec: dict[str, Any], rounds: dict[str, list[float]], device: torch.device
) -> dict[str, Any]:
    """Rates, MFU, the price of documents, memory beside the state."""
    assert recipe.model.vocab is not None
    tokens, vocab = tokens_of(spec), recipe.model.vocab
    operations = operations_per_token(recipe.model, vocab, spec["sequence"])["token"].total
    middle = {kind: sorted(found)[len(found) // 2] for kind, found in rounds.items()}
    rates, peak = {kind: tokens / seconds for kind, seconds in middle.items()}, peak_flops(device)
    return {
        "tokens_per_second": rates,
        "mfu_causal": None if peak is None else {kind: rate * operations / peak for kind, rate in rates.items()},
        "documents_over_whole": middle["documents"] / middle["whole"],
        "flops_per_token": operations,
        "peak_bytes": peak_bytes(device),
        "state_bytes": sum(state_bytes(count_parameters(recipe.model, vocab), recipe.parallel, recipe.optim).values()),
    }


def main() -> None:
    """Measure one arithmetic."""
    output, spec, device = begin()
    output.write({})  # none of an earlier call
    torch.backends.cuda.matmul.allow_tf32 = False
    spec = {"precision": "bf16", "microbatches": 2, **spec}
    if spec["dry_run"]:
        spec |= {"rows": 2, "sequence": 64, "precision": "float8" if spec["precision"] == "float8" else "fp32"}
    figures = measure(spec, device, output)
    print({name: figures[name] for name in ("precision", "start_seconds", "tokens_per_second", "mfu_causal", "loss")})


if __name__ == "__main__":
    main()
