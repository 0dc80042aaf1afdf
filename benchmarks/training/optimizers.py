"""Step time and state of every optimizer, beside torch's fused AdamW and the best public form of the same one.

The parameters are those of a GPT of 13 M, the gradients random. Optimizers take turns in one process (A B C A B C ...);
what is shown is the median over rounds of the ratio within a round. The list comes from the union of `optim.kind`.

    python -m benchmarks.training.optimizers [--quick]
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, get_args

import torch
from pydantic import TypeAdapter
from torch.nn import Parameter

from benchmarks.figures import optimizers
from benchmarks.report import write
from hornbook.kernels.team import keep_freed_memory
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.head import LMHead
from hornbook.model.config.mlp import GLUConfig
from hornbook.model.config.model import ModelConfig
from hornbook.optim.build import build_optimizer
from hornbook.optim.config.optim import AnyOptimizer

KINDS: tuple[str, ...] = tuple(each.model_fields["kind"].default for each in get_args(get_args(AnyOptimizer)[0]))
SHAPE = ModelConfig(layers=6, width=384, heads=6, mlp=GLUConfig(), head=LMHead(tied=True))
VOCAB = 8192
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw, state bf16": ("adamw", {"state": "bf16"}),
    "adamw8bit, embeddings too": ("adamw8bit", {"embeddings": True}),
}
"""Name -> a kind with other settings than its own."""
BASELINE = "torch AdamW, fused"


def parameters(seed: int = 0) -> dict[str, Parameter]:
    """Fresh parameters of the shape, with gradients."""
    model = build_model(SHAPE, VOCAB)
    generator = torch.Generator().manual_seed(seed)
    named = {
        name: Parameter(0.02 * torch.randn(each.shape, generator=generator)) for name, each in model.named_parameters()
    }
    for parameter in named.values():
        parameter.grad = 1e-3 * torch.randn(parameter.shape, generator=generator)
    return named


def ours(kind: str, **settings: Any) -> tuple[Callable[[], Any], float]:
    """The step of our optimizer, and its bytes of state per parameter."""
    named, roles = parameters(), parameter_roles(build_model(SHAPE, VOCAB))
    config = TypeAdapter(AnyOptimizer).validate_python({"kind": kind, **settings})
    optimizer = build_optimizer(named, roles, config)
    kept = sum(tensor.nbytes for _, _, tensor in optimizer.state())
    return optimizer.step, kept / sum(each.numel() for each in named.values())


def peers() -> dict[str, tuple[str, Callable[[], Any]]]:
    """Kind -> a public form of it, and its step."""

    def step(made: Callable[[list[Parameter]], torch.optim.Optimizer]) -> Callable[[], Any]:
        return made(list(parameters().values())).step

    found: dict[str, tuple[str, Callable[[], Any]]] = {
        "sgd": ("torch SGD", step(lambda p: torch.optim.SGD(p, 1e-3, momentum=0.9))),
        "adagrad": ("torch Adagrad", step(torch.optim.Adagrad)),
        "rmsprop": ("torch RMSprop", step(torch.optim.RMSprop)),
        "adam": ("torch Adam", step(torch.optim.Adam)),
        "adamw": ("torch AdamW", step(torch.optim.AdamW)),
        "lion": ("plain loop of its paper", step(PlainLion)),
    }
    try:
        from transformers.optimization import Adafactor
    except ImportError:
        return found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return found | {"adafactor": ("transformers Adafactor", step(Adafactor))}


class PlainLion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675, one parameter after the other, as its authors' own loop has it."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-4})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter."""
        del closure
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["exp_avg"] = torch.zeros_like(parameter)
            momentum = state["exp_avg"]
            parameter.mul_(1 - 1e-4 * 0.3)
            update = momentum * 0.9 + parameter.grad * 0.1
            parameter.add_(update.sign(), alpha=-1e-4)
            momentum.mul_(0.99).add_(parameter.grad, alpha=0.01)


def timed(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each step in every round but the first, which allocates."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            if number:
                times[name].append(time.perf_counter() - begun)
    return times


def run(quick: bool = False) -> dict[str, Any]:
    """All figures, printed and written to benchmarks/results/optimizers.json; quick takes fewer rounds."""
    keep_freed_memory()  # as in training
    baseline = torch.optim.AdamW(list(parameters().values()), fused=True).step
    made, others = {kind: ours(kind) for kind in KINDS}, peers()
    made |= {name: ours(kind, **settings) for name, (kind, settings) in VARIANTS.items()}
    steps = {BASELINE: baseline, **{kind: step for kind, (step, _) in made.items()}}
    steps |= dict(others.values())
    times = timed(steps, 3 if quick else 15)

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))

    found = {
        kind: {
            "milliseconds": 1e3 * statistics.median(times[kind]),
            "of_fused_adamw": ratio(kind, BASELINE),
            "peer": others[kind][0] if kind in others else "",
            "of_peer": ratio(kind, others[kind][0]) if kind in others else None,
            "state_bytes_per_parameter": made[kind][1],
        }
        for kind in made
    }
    count = sum(each.numel() for each in parameters().values())
    figures = {"optimizers": found, "parameters": count, "rounds": len(times[BASELINE])}
    print("\n".join(optimizers(figures)))
    write("optimizers", figures)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    run(parser.parse_args().quick)
