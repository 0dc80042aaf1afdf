"""Memory of a training step by five calculators and by ours, beside a trace of the step on fake tensors.

    python -m benchmarks.plan.peers

The step: one device, one row of 2,048 tokens (1,024 of GPT-2), products in bfloat16, AdamW, nothing computed again.
Ours is what `hornbook plan --verify` plans for it, the trace is hornbook's own step. The calculators are as published:

    BENCH_COOKBOOK    EleutherAI/cookbook, a folder       BENCH_SIMUMAX    MooreThreads/SimuMax, a folder
    BENCH_CALCULON    calculon-ai/calculon, a folder      BENCH_DEEPSPEED  a folder that has the package deepspeed
    BENCH_PLAN_PYTHON an interpreter with pandas, for SimuMax and Calculon; by default this one

accelerate is that of this environment. One that is not there, or does not know a kind of model, has no figures. SimuMax
and Calculon model Megatron-LM, which holds 18 bytes a value all the time; hornbook holds 16, and casts of weights (2)
among its activations. accelerate and DeepSpeed estimate the state alone. Calculon has no gated MLP, no heads that share
keys and no embedding: it gets an MLP of as many weights.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import table, write
from hornbook.cli.train.simulation import trace_layout
from hornbook.model.build import build_model
from hornbook.model.config.mlp import ExpertsConfig
from hornbook.model.config.parameter_count import count_parameters
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import plan_run, vocabulary
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

GIB = 2**30
MODELS = ("gpt2-1.5b", "llama-7b", "llama-13b", "llama-3-8b", "mixtral-8x7b")
DEEPSPEED = """
import json, sys
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as needs
print(json.dumps(needs(int(sys.argv[1]), num_gpus_per_node=1, num_nodes=1, cpu_offload=False)[1]))
"""
SIMUMAX = """
import json, sys
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig
from simumax.core.perf_llm import PerfLLM
model, strategy, system = sys.argv[1:]
found = PerfLLM()
found.configure(
    strategy_config=StrategyConfig.init_from_config_file(strategy),
    model_config=ModelConfig.init_from_config_file(model),
    system_config=SystemConfig.init_from_config_file(system),
)
found.run_estimate()
memory = found.analysis_mem()
print(json.dumps(getattr(memory, "data", memory)))
"""


class Memory(NamedTuple):
    """GiB of one device; None where a calculator says nothing of it."""

    state: float
    """Weights, gradients, optimizer."""
    activations: float | None
    """Kept for backward."""
    all: float | None
    """At the peak."""


class Case(NamedTuple):
    """A model, and what calculators ask about it."""

    recipe: Recipe
    vocab: int
    parameters: int

    @property
    def experts(self) -> ExpertsConfig | None:
        """Of its MLPs."""
        return self.recipe.model.mlp if isinstance(self.recipe.model.mlp, ExpertsConfig) else None

    @property
    def matrices(self) -> int:
        """Of an MLP, or an expert."""
        return 2 if self.recipe.model.mlp.kind == "mlp" else 3


def case_of(name: str) -> Case:
    """The step of a shipped recipe."""
    known = resolve(name, environ={}).recipe
    length = min(2048, known.train.sequence, getattr(known.model.position, "length", None) or 2048)
    words = [f"train.sequence={length}", f"train.batch_tokens={length}", "train.micro_batch=1", "train.precision=bf16"]
    recipe = resolve(name, [*words, "train.compile=false", "parallel.recompute.kind=none"], environ={}).recipe
    vocab = vocabulary(recipe)
    return Case(recipe, vocab, count_parameters(recipe.model, vocab))


def _run(code: list[str], folder: Path, python: str = sys.executable) -> str:
    """What a program prints, which imports what lies in a folder."""
    environ = os.environ | {"PYTHONPATH": str(folder)}
    with tempfile.TemporaryDirectory() as here:
        return subprocess.run(
            [python, *code], env=environ, cwd=here, capture_output=True, text=True, check=True, timeout=300
        ).stdout


# ---- Theirs


def cookbook(case: Case, folder: Path) -> Memory:
    """`calc/calc_transformer_mem.py`, with gradients of 4 bytes and no constant beside."""
    model, train = case.recipe.model, case.recipe.train
    words: dict[str, object] = {
        "num-gpus": 1,
        "zero-stage": 0,
        "batch-size-per-gpu": 1,
        "sequence-length": train.sequence,
        "vocab-size": case.vocab,
        "hidden-size": model.width,
        "num-attention-heads": model.heads,
        "num-layers": model.layers,
        "ffn-expansion-factor": model.hidden / model.width,
        "num-mlp-linears": case.matrices,
        "kv-size-ratio": model.kv_heads / model.heads,
        "misc-mem-gib": 0,
    }
    if case.experts:
        words |= {"num-experts": case.experts.count, "expert-parallelism": 1}
    options = [text for name, value in words.items() for text in (f"--{name}", str(value))]
    printed = _run([str(folder / "calc" / "calc_transformer_mem.py"), *options], folder)
    found = {
        line.split(":")[0]: float(line.split(":")[1].split()[0])
        for line in printed.splitlines()
        if line.endswith("GiB")
    }
    state = sum(found[f"Per-GPU {name}"] for name in ("Model Memory", "Gradient Memory", "Optimizer Memory (adamw)"))
    return Memory(state, found["Per-GPU Activation Memory"], found["Per-GPU Memory Required for Training"])


def simumax(case: Case, folder: Path) -> Memory:
    """Its model of Megatron-LM on one device."""
    model, configs = case.recipe.model, folder / "configs"
    described: dict[str, object] = {
        "model_type": "moe" if case.experts else "dense",
        "model_name": "model",
        "hidden_size": model.width,
        "head_num": model.heads,
        "kv_head_num": model.kv_heads,
        "head_size": model.head_dim,
        "intermediate_size": model.hidden,
        "layer_num": model.layers,
        "vocab_size": case.vocab,
        "use_swiglu": case.matrices == 3,
    }
    if case.experts:
        described |= {"expert_num": case.experts.count, "topk": case.experts.active}
    strategy = json.loads((configs / "strategy" / "tp1_pp1_dp8_mbs1.json").read_text())
    strategy |= {"seq_len": case.recipe.train.sequence, "micro_batch_num": 1, "world_size": 1, "zero_state": 0}
    strategy |= {"enable_recompute": False, "enable_sequence_parallel": False}
    with tempfile.TemporaryDirectory() as texts:
        files = [Path(texts) / name for name in ("model.json", "strategy.json")]
        for file, tree in zip(files, (described, strategy), strict=True):
            file.write_text(json.dumps(tree))
        words = [*map(str, files), str(configs / "system" / "a100_pcie.json")]
        found = json.loads(_run(["-c", SIMUMAX, *words], folder, _python()).splitlines()[-1])
    kept, state, peak = (
        _amount(found[name]) for name in ("fwd_activation_cache_per_micro_batch", "model_mem", "peak_mem")
    )
    return Memory(state, kept, peak)


def _amount(text: str) -> float:
    """GiB of `9.5146 GB`, by which SimuMax means powers of 1,024."""
    number, unit = text.split()
    return float(number) * {"TB": 1024, "GB": 1, "MB": 1 / 1024, "KB": 1 / 2**20, "B": 1 / GIB}[unit]


def calculon(case: Case, folder: Path) -> Memory | None:
    """Its model of Megatron-LM on one device; None for experts."""
    model = case.recipe.model
    if case.experts:
        return None
    application = {
        "hidden": model.width,
        "feedforward": model.hidden * case.matrices // 2,
        "seq_size": case.recipe.train.sequence,
        "attn_heads": model.heads,
        "attn_size": model.head_dim,
        "num_blocks": model.layers,
    }
    execution = json.loads(next((folder / "examples").glob("*.json")).read_text())
    execution |= dict.fromkeys(("num_procs", "tensor_par", "pipeline_par", "data_par", "batch_size"), 1)
    execution |= {"microbatch_size": 1, "activation_recompute": "none", "optimizer_sharding": False}
    execution |= {"tensor_par_comm_type": "ar"}
    with tempfile.TemporaryDirectory() as texts:
        files = [Path(texts) / name for name in ("application.json", "execution.json", "found.json")]
        system = json.loads((folder / "systems" / "h100_80g_nvl8.json").read_text())
        system["mem1"]["GiB"] = 2**20  # the model need not fit
        for file, tree in zip(files, (application, execution, system), strict=True):
            file.write_text(json.dumps(tree))
        out = Path(texts) / "stats.json"
        _run([str(folder / "bin" / "calculon"), "llm", *map(str, files), str(out)], folder, _python())
        found = json.loads(out.read_text())
    state = sum(found[f"{name}_space"] for name in ("weight", "weight_grad", "optimizer"))
    return Memory(state / GIB, found["act_space"] / GIB, found["proc_mem_tier1_cap_req"] / GIB)


def deepspeed(case: Case, folder: Path) -> Memory:
    """Its estimator of the state under ZeRO 2, of one device."""
    printed = _run(["-c", DEEPSPEED, str(case.parameters)], folder)
    return Memory(json.loads(printed.splitlines()[-1]) / GIB, None, None)


def accelerate(case: Case) -> Memory:
    """Its `estimate-memory`, of the model on the device meta."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils.modeling import calculate_maximum_sizes

    size, _ = calculate_maximum_sizes(build_model(case.recipe.model, case.vocab, "meta"))
    found = estimate_training_usage(int(size), "bfloat16")
    return Memory(max(found.values()) / GIB, None, None)


def _python() -> str:
    return os.environ.get("BENCH_PLAN_PYTHON", sys.executable)


FOLDERS: dict[str, tuple[str, Callable[[Case, Path], Memory | None]]] = {
    "EleutherAI": ("BENCH_COOKBOOK", cookbook),
    "DeepSpeed": ("BENCH_DEEPSPEED", deepspeed),
    "SimuMax": ("BENCH_SIMUMAX", simumax),
    "Calculon": ("BENCH_CALCULON", calculon),
}


# ---- Ours


def ours(case: Case) -> tuple[Memory, Memory]:
    """(planned, traced)."""
    layout = plan_run(case.recipe, parse_cluster("this"), remedy=False).best
    traced = trace_layout(case.recipe, case.vocab, layout)
    rows = {name: (planned / GIB, found / GIB) for name, planned, found in traced.rows}
    planned, found = (
        Memory(
            sum(rows[name][which] for name in ("weights", "gradients", "optimizer")),
            rows["activations"][which],
            rows["peak"][which],
        )
        for which in (0, 1)
    )
    return planned, found


def compared(name: str) -> dict[str, Memory | None]:
    """By calculator, ours and the trace among them."""
    case = case_of(name)
    found: dict[str, Memory | None] = {}
    for peer, (variable, estimate) in FOLDERS.items():
        folder = os.environ.get(variable)
        found[peer] = None if folder is None else estimate(case, Path(folder).absolute())
    found["accelerate"] = accelerate(case)
    found["hornbook"], found["trace"] = ours(case)
    return found


def main() -> None:
    """Compare all models."""
    rows: list[list[Any]] = []
    for name in MODELS:
        for peer, memory in compared(name).items():
            if memory is not None:
                rows.append([name, peer, *memory])
    print(
        table(["model", "by", "state", "activations", "all"], [[x if x is not None else "" for x in r] for r in rows])
    )
    write("plan_peers", {"rows": rows})


if __name__ == "__main__":
    main()
