"""LoRA fine-tuning on a CPU beside peft in transformers' Trainer: tokens/s and memory, in turn.

    BENCH_PEFT_PYTHON=INTERPRETER python -m benchmarks.adapt.lora [--quick] [--busy] [--cpu native|avx2]

All contenders read one random checkpoint of LLaMA's shape and learn from the same rows with the same rank, targets and
optimizer; no dropout, no recomputation. The Trainer takes scaled dot product attention, eager and compiled. QLoRA (nf4,
scales quantized too) is beside bitsandbytes' 4-bit layers under peft, eager: that environment needs peft, transformers
and bitsandbytes. axolotl is described, not run: its LoRA is that of peft in a subclass of the Trainer, and on a CPU
none of its kernels apply.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import cpus, report
from benchmarks.contenders.processes import ROOT, Contender, Process, compare, interleave

SHAPE = {"rows": 4, "sequence": 512, "vocab": 8192}
ADAPTER = {"rank": 16, "alpha": 32, "lr": 1e-3}
TARGETS = {
    "query, value": (["*.query", "*.value"], ["q_proj", "v_proj"]),
    "all linear layers": (
        ["*.query", "*.key", "*.value", "*.attention.out", "*.gate", "*.up", "*.down"],
        ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    ),
}


def make_checkpoint(folder: Path) -> None:
    """A random LLaMA of 6 layers, 512 wide, as transformers writes it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "intermediate_size": 1408,
    }
    config = transformers.LlamaConfig(vocab_size=SHAPE["vocab"], max_position_embeddings=1024, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def measure(targets: str, precision: str, rounds: int, clock: str) -> dict[str, Any]:
    """Interleaved rounds of one step each, and the peak memory of each process: all of it, and above the idle one."""
    ours, theirs = TARGETS[targets]
    peer = [os.environ["BENCH_PEFT_PYTHON"], str(ROOT / "benchmarks" / "peers" / "peft_trainer.py")]
    mine = [sys.executable, "-m", "benchmarks.peers.ours_lora"]
    contenders = [
        Contender("hornbook", mine),
        Contender("peft + Trainer", peer, "sdpa"),
        Contender("peft + Trainer, compiled", peer, "sdpa", compile=True),
    ]
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder))
        spec = {"shape": SHAPE, "precision": precision, "folder": folder, **ADAPTER, "nf4": False}
        spec |= {"targets": ours, "peft_targets": theirs}
        processes = [Process(each, spec) for each in contenders]
        processes.append(Process(Contender("hornbook, nf4", mine), spec | {"nf4": True}))
        processes.append(Process(Contender("peft + Trainer, nf4", peer, "sdpa"), spec | {"nf4": True}))
        trained = {each.name: each.facts["trained"] for each in processes}
        idle = {each.name: each.ask(seed=0, steps=0)["peak_bytes"] for each in processes}
        answers = interleave(processes, rounds, 1)
    assert len(set(trained.values())) == 1, f"not the same adapters: {trained}"
    peaks = {name: found[-1]["peak_bytes"] for name, found in answers.items()}
    above = {name: peak - idle[name] for name, peak in peaks.items()}
    found = compare(answers, SHAPE["rows"] * SHAPE["sequence"], clock)
    facts = {"peak_bytes": peaks, "above_idle_bytes": above, "trained": trained["hornbook"], "rounds": rounds}
    return {**found, **facts}


def main(quick: bool = False, busy: bool = False) -> None:
    """All cases, printed; written to benchmarks/results unless quick, which takes fewer rounds.

    busy: by processor time of processes with one thread (OMP_NUM_THREADS=1), where the machine does other work too.
    """
    if "BENCH_PEFT_PYTHON" not in os.environ:
        raise SystemExit("BENCH_PEFT_PYTHON must name an interpreter that has peft, transformers and bitsandbytes")
    clock = "cpu_seconds" if busy else "seconds"
    figures: dict[str, Any] = {"shape": SHAPE, "adapter": ADAPTER, "clock": clock, "cases": {}}
    for precision in cpus.precisions():
        for targets in TARGETS:
            found = measure(targets, precision, 2 if quick else 7, clock)
            figures["cases"].setdefault(targets, {})[precision] = found
            print(targets, precision, found["ours_over"], found["first_loss"], found["last_loss"], flush=True)
    report.show("lora", figures, keep=not quick)


if __name__ == "__main__":
    cpus.main("benchmarks.adapt.lora", main, "quick", "busy")
