"""Recipes at full size beside transformers and litgpt: tokens per second, MFU, memory.

Run with `python -m benchmarks.training.large` (gpt2-124m on a CPU; with a GPU also llama-1b at 4,096 tokens). bf16,
compiled on a GPU. MFU is the share of the device's dense bf16 peak that goes into the model's matrix products, there
and back: 6 FLOPs per parameter in a matrix and token, and for causal attention 6 x layers x width x sequence per token
(half of the full square; recomputation does not count). The peak is the maker's figure for GPUs we know, else, and on
every CPU, the measured rate of a large matrix product.
"""

import importlib.util
import statistics
import sys
from typing import Any

from benchmarks import report
from benchmarks.contenders.processes import ROOT, Contender, Process, interleave
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.head import LMHead, MaskedHead
from hornbook.settings.resolve import resolve

PEAKS = {"H200": 989.5e12, "H100": 989.5e12, "A100": 312e12}
"""Dense bf16 FLOP/s by the makers' data sheets."""
SCRIPT = str(ROOT / "benchmarks" / "peers" / "large.py")
GPT2 = ("GPT2", {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0})
LLAMA_KEYS = {"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
LLAMA_KEYS |= {"num_key_value_heads": 8, "intermediate_size": 8192, "max_position_embeddings": 8192}
LLAMA = ("Llama", LLAMA_KEYS | {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True})
CASES: dict[str, list[dict[str, Any]]] = {
    "cpu": [{"recipe": "gpt2-124m", "sequence": 1024, "rows": 2, "micro_batch": 2, "transformers": GPT2}],
    "cuda": [
        {"recipe": "gpt2-124m", "sequence": 1024, "rows": 64, "micro_batch": 32, "transformers": GPT2},
        {"recipe": "llama-1b", "sequence": 4096, "rows": 8, "micro_batch": 4, "transformers": LLAMA}
        | {"litgpt": {"name": "Llama-3.2-1B"}},
    ],
}


def flops_per_token(recipe: str, sequence: int) -> float:
    """Of forward and backward, by the convention above."""
    model = resolve(recipe, [], environ={}).recipe.model
    assert model.vocab is not None
    built = build_model(model, model.vocab, device="meta")
    roles = parameter_roles(built)
    matrices = sum(each.numel() for name, each in built.named_parameters() if roles[name] in ("matrix", "head"))
    if isinstance(model.head, LMHead | MaskedHead) and model.head.tied:
        matrices += model.vocab * model.width
    return 6.0 * matrices + 6.0 * model.layers * model.width * sequence


def contenders(case: dict[str, Any]) -> list[Contender]:
    """Ours, the peers that are installed, and the matrix product."""
    ours = [sys.executable, SCRIPT]
    found = [Contender("hornbook", ours), Contender("transformers", ours)]
    if importlib.util.find_spec("litgpt") and "litgpt" in case:
        found.append(Contender("litgpt", ours))
    return [*found, Contender("gemm", ours)]


def measure(case: dict[str, Any], device: str, rounds: int, steps: int) -> dict[str, Any]:
    """Interleaved rounds of all contenders over one case."""
    model = resolve(case["recipe"], [], environ={}).recipe.model
    shape = {"rows": case["rows"], "sequence": case["sequence"], "vocab": model.vocab}
    spec = {"shape": shape, "device": device, "recompute": False, **case}
    processes = [Process(each, spec | {"loop": each.name}) for each in map(compiled(device), contenders(case))]
    answers = interleave(processes, rounds, steps)
    gemm = max(max(answer["losses"]) for answer in answers.pop("gemm"))
    tokens = shape["rows"] * shape["sequence"] * steps
    return summarize(answers, tokens, flops_per_token(case["recipe"], case["sequence"]), gemm)


def compiled(device: str) -> Any:
    """Compilation pays on a GPU; on a CPU no contender of this size gains by it."""
    return lambda each: Contender(each.name, each.command, compile=device == "cuda" and each.name != "gemm")


def summarize(answers: dict[str, list[dict[str, Any]]], tokens: int, flops: float, gemm: float) -> dict[str, Any]:
    """Rates, shares of the peak, memory, and our speed over each peer's."""
    seconds = {name: [answer["seconds"] for answer in found[1:]] for name, found in answers.items()}
    rates = {name: tokens / statistics.median(found) for name, found in seconds.items()}
    peak = next((value for name, value in PEAKS.items() if name in report.machine().get("gpu", "")), gemm)
    return {
        "tokens_per_second": rates,
        "mfu": {name: rate * flops / peak for name, rate in rates.items()},
        "peak_flops": peak,
        "gemm_flops": gemm,
        "flops_per_token": flops,
        "peak_bytes": {name: found[-1]["peak_bytes"] for name, found in answers.items()},
        "ours_over": {
            name: statistics.median(b / a for a, b in zip(seconds["hornbook"], found, strict=True))
            for name, found in seconds.items()
        },
    }


def run(quick: bool = False) -> dict[str, Any]:
    """All cases of this machine, printed and written to benchmarks/results/large.json (on a GPU: NAME-large.json)."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    rounds, steps = (1, 1) if quick else (3, 2 if device == "cpu" else 10)
    figures: dict[str, Any] = {"device": device, "rounds": rounds, "steps_per_round": steps, "cases": {}}
    for case in CASES[device]:
        found = measure(case, device, rounds, steps)
        figures["cases"][f"{case['recipe']}, {case['sequence']} tokens"] = found
        rows = [(n, r, found["mfu"][n], found["peak_bytes"][n] / 2**30) for n, r in found["tokens_per_second"].items()]
        print(report.table([f"{case['recipe']} at {case['sequence']}", "tokens/s", "MFU", "peak GiB"], rows), "\n")
    report.write("large" if device == "cpu" else "h200-large", figures)
    return figures


if __name__ == "__main__":
    run(quick="--quick" in sys.argv)
