"""Mixtures of experts forward and backward, and the growth of linear attention's time with length, on a CPU.

All forms of a mixture have the same weights and tokens, and memory that is kept when freed, as in training. They take
turns in one process (A B C A B C ...) on one thread, and processor time counts, so that a busy machine disturbs them
little; what is shown is the median over rounds of the ratio within a round. In bf16 weights are float32 and products
bfloat16 (autocast); transformers then rounds the router's logits too and sends some tokens elsewhere.

    python -m benchmarks.training.experts [--quick] [--cpu native|avx2]
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import cpus
from benchmarks.report import table, write
from hornbook.kernels.team import keep_freed_memory
from hornbook.model.attention.delta_rule import chunked_delta_rule
from hornbook.model.config import mlp as config_mlp
from hornbook.model.context import Context
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.grouped import make_plan
from hornbook.model.mlp.router import Routing

ROWS, SEQUENCE, WIDTH, HIDDEN = 4, 512, 384, 768
MIXTURES = {"8 experts, 2 active": (8, 2), "32 experts, 4 active": (32, 4)}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
LENGTHS = (1024, 2048, 4096, 8192)
OURS = "hornbook"


def matrices(experts: Experts) -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    """Gate, up and down of all experts."""
    return experts.gate, experts.up, experts.down


def route(experts: Experts, x: Tensor) -> Routing:
    """Our router, in float32 as everywhere."""
    with torch.autocast("cpu", enabled=False):
        return experts.router(x, Context())


def by_loop(experts: Experts, x: Tensor) -> Tensor:
    """One expert after the other: its tokens are picked out, served, and added to the output."""
    routing, flat = route(experts, x), x.flatten(0, 1)
    chosen, weights = routing.experts.flatten(0, 1), routing.weights.flatten(0, 1)
    y = torch.zeros_like(flat)
    for e, (gate, up, down) in enumerate(zip(*matrices(experts), strict=True)):
        tokens, slot = torch.where(chosen == e)
        rows = flat.index_select(0, tokens)
        served = F.linear(F.silu(F.linear(rows, gate)) * F.linear(rows, up), down)
        y.index_add_(0, tokens, (served * weights[tokens, slot, None]).to(y.dtype))
    return y.view_as(x)


def by_torch_grouped_mm(experts: Experts, x: Tensor) -> Tensor:
    """Sorted tokens and torch's grouped product."""
    routing, flat = route(experts, x), x.flatten(0, 1)
    plan = make_plan(routing.experts.flatten(0, 1), len(experts.gate))
    ends = plan.counts.cumsum(0).to(torch.int32)
    gate, up, down = (each.to(x.dtype).transpose(1, 2) for each in matrices(experts))
    rows = flat[plan.order // plan.slots.shape[1]]
    hidden = F.silu(F.grouped_mm(rows, gate, offs=ends)) * F.grouped_mm(rows, up, offs=ends)
    served = F.grouped_mm(hidden, down, offs=ends) * routing.weights.flatten()[plan.order][:, None].to(x.dtype)
    return served[plan.slots].sum(1).view_as(x)


def by_products_alone(experts: Experts, x: Tensor) -> Tensor:
    """What cannot be saved: dense products over as many tokens with one expert's matrices."""
    rows = x.flatten(0, 1).repeat(experts.active, 1)
    gate, up, down = (each[0].to(x.dtype) for each in matrices(experts))
    return F.linear(F.linear(rows, gate) + F.linear(rows, up), down)[: len(x.flatten(0, 1))]


def transformers_block(experts: Experts, form: str) -> nn.Module:
    """Mixtral's block of transformers with our weights."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    settings: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "_experts_implementation": form}
    settings |= {"num_local_experts": len(experts.gate), "num_experts_per_tok": experts.active}
    block: Any = MixtralSparseMoeBlock(MixtralConfig(**settings))
    with torch.no_grad():
        block.gate.weight.copy_(experts.router.weight)
        block.experts.gate_up_proj.copy_(torch.cat([experts.gate, experts.up], 1))
        block.experts.down_proj.copy_(experts.down)
    return block


def forms(experts: Experts, dtype: torch.dtype) -> dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Name -> what holds the parameters, and the forward pass."""
    eager, grouped = (transformers_block(experts, form) for form in ("eager", "grouped_mm"))
    found: dict[str, tuple[nn.Module, Callable[[Tensor], Tensor]]] = {
        OURS: (experts, lambda x: experts(x, Context())[0]),
        "loop over experts": (experts, lambda x: by_loop(experts, x)),
        "torch grouped_mm": (experts, lambda x: by_torch_grouped_mm(experts, x)),
        "transformers Mixtral, eager": (eager, eager),
        "transformers Mixtral, grouped_mm": (grouped, grouped),
        "products alone": (experts, lambda x: by_products_alone(experts, x)),
    }
    autocast = contextlib.nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype)

    def under(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            with autocast:
                return forward(x)

        return call

    return {name: (module, under(forward) if name != OURS else forward) for name, (module, forward) in found.items()}


def seconds(module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor) -> float:
    """Processor time of one forward and backward pass."""
    for parameter in module.parameters():
        parameter.grad = None
    x = x.detach().requires_grad_()
    begun = time.process_time()
    y = forward(x)
    (y * weights.view_as(y)).sum().backward()
    return time.process_time() - begun


def mixture(count: int, active: int, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Times and ratios of all forms, and by how much their outputs differ from ours."""
    torch.manual_seed(1)
    experts = Experts(WIDTH, HIDDEN, config_mlp.ExpertsConfig(count=count, active=active, balance_loss=0), layer=0)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_(0, WIDTH**-0.5)
    x, weights = torch.randn(ROWS, SEQUENCE, WIDTH).to(dtype), torch.randn(ROWS, SEQUENCE, WIDTH).to(dtype)
    contenders = forms(experts, dtype)
    with torch.no_grad():
        outputs = {name: forward(x).float().flatten() for name, (_, forward) in contenders.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, (module, forward) in contenders.items():
            spent = seconds(module, forward, x, weights)
            if number:  # the first round compiles and fills caches
                times[name].append(spent)
    mine, ours = times[OURS], outputs[OURS]
    return {
        "milliseconds": {name: 1e3 * statistics.median(found) for name, found in times.items()},
        "ours_over": {
            name: statistics.median(b / a for a, b in zip(mine, found, strict=True)) for name, found in times.items()
        },
        "difference": {
            name: float((found - ours).norm() / ours.norm())
            for name, found in outputs.items()
            if name != "products alone"
        },
        "rounds": rounds,
    }


def delta_seconds(rule: Callable[[list[Tensor]], Tensor], length: int) -> float:
    """Processor time of the rule forward and backward over one row of 4 heads of 64 dims."""
    torch.manual_seed(2)
    query, key, value = (F.normalize(torch.randn(1, 4, length, 64), dim=-1) for _ in range(3))
    tensors = [query, key, value, -torch.rand(1, 4, length), torch.rand(1, 4, length)]
    tensors = [each.requires_grad_() for each in tensors]
    begun = time.process_time()
    rule(tensors).sum().backward()
    return time.process_time() - begun


def delta(rounds: int, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Times of the gated delta rule by length; ratios of each length to the one half as long."""
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    rules: dict[str, Callable[[list[Tensor]], Tensor]] = {
        OURS: lambda tensors: chunked_delta_rule(*tensors)[0],
        "transformers": lambda tensors: torch_chunk_gated_delta_rule(*(each.transpose(1, 2) for each in tensors))[0],
    }
    times = {name: {length: list[float]() for length in lengths} for name in rules}
    for number in range(rounds + 1):
        for length in lengths:
            for name, rule in rules.items():
                spent = delta_seconds(rule, length)
                if number:
                    times[name][length].append(spent)
    medians = {
        name: {length: statistics.median(each) for length, each in found.items()} for name, found in times.items()
    }
    return {
        "milliseconds": {name: {str(n): 1e3 * t for n, t in found.items()} for name, found in medians.items()},
        "doubling": {
            name: {f"{n} to {2 * n}": found[2 * n] / found[n] for n in lengths[:-1]} for name, found in medians.items()
        },
        "rounds": rounds,
    }


def run(quick: bool = False) -> dict[str, Any]:
    """All figures, printed and written to benchmarks/results/experts.json; quick takes fewer rounds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        rounds = 2 if quick else 7
        mixtures = {
            f"{name}, {precision}": mixture(count, active, dtype, rounds)
            for precision, dtype in PRECISIONS.items()
            if precision in cpus.precisions()
            for name, (count, active) in MIXTURES.items()
        }
        lengths = LENGTHS[:2] if quick else LENGTHS
        shape = {"tokens": ROWS * SEQUENCE, "width": WIDTH, "hidden": HIDDEN}
        figures = {"shape": shape, "mixtures": mixtures, "delta_rule": delta(rounds, lengths)}
        show(figures)
        write("experts", figures)
        return figures
    finally:
        torch.set_num_threads(threads)


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    for name, found in figures["mixtures"].items():
        rows = [
            (form, found["milliseconds"][form], ratio, found["difference"].get(form, "-"))
            for form, ratio in found["ours_over"].items()
        ]
        print(table([f"{name}, forward and backward", "CPU ms", "hornbook is x", "difference"], rows), "\n")
    found = figures["delta_rule"]
    for name, ratios in found["doubling"].items():
        rows = [(step, found["milliseconds"][name][step.split(" to ")[1]], ratio) for step, ratio in ratios.items()]
        print(table([f"gated delta rule, {name}: tokens", "CPU ms", "x"], rows), "\n")


if __name__ == "__main__":
    cpus.main("benchmarks.training.experts", run, "quick")
