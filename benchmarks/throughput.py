"""CPU training throughput and memory: hornbook, transformers, and the bound that the matrix products set.

Run with `python -m benchmarks.throughput` (`--cpu` chooses a set of rows: `benchmarks.cpus`). The contenders are
long-lived processes with the same initial weights and the same batches; they run one timed round each in turn (A B C A
B C ...), and what counts is the median over rounds of the ratio within a round, so a machine that changes its speed
hurts none of them. Memory is the largest resident set of a fresh process, without parameters, gradients, moments and
what the imports alone take.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from benchmarks import cpus, report
from hornbook.model.build import build_model
from hornbook.model.config import mlp as config_mlp
from hornbook.model.config import model as config
from hornbook.model.init.init import initialize

ROOT = Path(__file__).parent.parent
PEERS = ROOT / "benchmarks" / "peers"
SHAPE = {"width": 384, "layers": 6, "heads": 6, "hidden": 1024, "vocab": 8192, "rows": 8, "sequence": 512}
"""The 13M LLaMA shape: 8 rows of 512 tokens, tied embedding."""
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
"""CPU threads of every contender."""
NAMES = {
    "embedding": "embed_tokens",
    "blocks": "layers",
    "norm1": "input_layernorm",
    "norm2": "post_attention_layernorm",
    "attention": "self_attn",
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "out": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}
"""Our parts' names and those of transformers' LLaMA."""


@dataclass(frozen=True)
class Contender:
    """One line of the table."""

    name: str
    command: list[str]
    attention: str = ""
    compile: bool = False
    precision: str = ""
    """Another one than the round's."""


def model_config(shape: dict[str, int]) -> config.ModelConfig:
    """Our config of a shape."""
    return config.ModelConfig(
        layers=shape["layers"],
        width=shape["width"],
        heads=shape["heads"],
        mlp=config_mlp.GLUConfig(hidden=shape["hidden"]),
    )


def contenders() -> list[Contender]:
    """Ours, the bound, and transformers with both of its attentions, eager and compiled."""
    ours, llama = (
        [sys.executable, "-m", "benchmarks.peers.ours"],
        [sys.executable, str(PEERS / "transformers_llama.py")],
    )
    return [
        Contender("hornbook", ours),
        *([Contender("hornbook, bf16", ours, precision="bf16")] if cpus.kind() == "avx2" else []),
        Contender("matrix products alone", [sys.executable, str(PEERS / "bound.py")]),
        *(
            Contender(f"transformers {attention}{' compiled' if compiled else ''}", llama, attention, compiled)
            for attention in ("sdpa", "eager")
            for compiled in (False, True)
        ),
    ]


class Process:
    """A contender's process: `ask` sends one request and waits for its answer."""

    def __init__(self, contender: Contender, spec: dict[str, Any]) -> None:
        self.name = contender.name
        spec = {**spec, "attention": contender.attention, "compile": contender.compile}
        spec["precision"] = contender.precision or spec["precision"]
        # torch.compile takes code from its cache that was made for other instructions, and dies of it.
        compiled = Path(tempfile.gettempdir(), f"torchinductor-{cpus.kind()}")
        environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(compiled)
        self._process = subprocess.Popen(
            [*contender.command, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self._read()

    def ask(self, seed: int, steps: int) -> dict[str, Any]:
        """Run a round."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"seed": seed, "steps": steps}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended early: run its command by hand")
        return json.loads(line)


def interleave(processes: list[Process], rounds: int, steps: int) -> dict[str, list[dict[str, Any]]]:
    """Answers of each process to a first round that does not count, and so many more, in turn; then all are ended."""
    answers: dict[str, list[dict[str, Any]]] = {process.name: [] for process in processes}
    for number in range(rounds + 1):
        for process in processes:
            answers[process.name].append(process.ask(seed=number, steps=steps))
    for process in processes:
        process.close()
    return answers


def weights(folder: Path, shape: dict[str, int]) -> dict[str, str]:
    """Write one set of initial weights under both naming schemes."""
    model = build_model(model_config(shape), shape["vocab"]).to_empty(device="cpu")
    initialize(model, model_config(shape), seed=1)
    own = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    theirs = {"model." + ".".join(NAMES.get(part, part) for part in name.split(".")): own[name] for name in own}
    save_file(own, folder / "own.safetensors")
    save_file(theirs, folder / "llama.safetensors")
    return {"own_weights": str(folder / "own.safetensors"), "weights": str(folder / "llama.safetensors")}


def speed(
    precision: str, rounds: int, steps: int, clock: str = "seconds", shape: dict[str, int] = SHAPE
) -> dict[str, Any]:
    """Interleaved rounds of all contenders in one precision: tokens/s, ratios and losses.

    clock: `seconds` of the wall, or `cpu_seconds`, which with one thread compares work on a machine that is busy.
    """
    with tempfile.TemporaryDirectory() as folder:
        spec = {"shape": shape, "precision": precision, **weights(Path(folder), shape)}
        processes = [Process(contender, spec) for contender in contenders()]
        answers = interleave(processes, rounds, steps)
    return compare(answers, shape["rows"] * shape["sequence"] * steps, clock) | {
        "rounds": rounds,
        "steps_per_round": steps,
    }


def compare(answers: dict[str, list[dict[str, Any]]], tokens: int, clock: str = "seconds") -> dict[str, Any]:
    """Tokens/s where a round has `tokens`, hornbook's ratio to each within a round, and losses."""
    seconds = {name: [answer[clock] for answer in found[1:]] for name, found in answers.items()}
    return {
        "tokens_per_second": {name: tokens / statistics.median(found) for name, found in seconds.items()},
        "ours_over": {
            name: statistics.median(b / a for a, b in zip(seconds["hornbook"], found, strict=True))
            for name, found in seconds.items()
        },
        "last_loss": {name: found[-1]["losses"][-1] for name, found in answers.items()},
        "first_loss": {name: found[0]["losses"][0] for name, found in answers.items()},
    }


def memory(precision: str, steps: int = 2) -> dict[str, Any]:
    """Peak bytes of a fresh process above its states, at a vocabulary of 32k."""
    shape = {**SHAPE, "vocab": 32768}
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        spec = {"shape": shape, "precision": precision, **weights(Path(folder), shape)}
        parameters = sum(tensor.numel() for tensor in build_model(model_config(shape), shape["vocab"]).parameters())
        for contender in contenders():
            if contender.name.startswith("matrix") or contender.precision:
                continue
            process = Process(contender, spec)
            idle = process.ask(seed=0, steps=0)["peak_bytes"]
            peaks[contender.name] = process.ask(seed=0, steps=steps)["peak_bytes"] - idle
            process.close()
    # Before the first step only the parameters are there: gradients and two moments come with it.
    states = 3 * 4 * parameters
    above = {name: peak - states for name, peak in peaks.items()}
    return {"above_states_bytes": above, "states_bytes": 4 * 4 * parameters}


def run(quick: bool = False) -> dict[str, Any]:
    """All figures, printed as a table and written to benchmarks/results/throughput.json; quick takes fewer rounds.

    With AVX2 alone fp32 only, and beside it hornbook's own bf16.
    """
    rounds, steps = (2, 1) if quick else (5, 2)
    figures = {
        "shape": SHAPE,
        "speed": {precision: speed(precision, rounds, steps) for precision in cpus.precisions()},
        "memory_32k": {precision: memory(precision) for precision in cpus.precisions()},
    }
    show(figures)
    report.write("throughput", figures)
    return figures


def show(figures: dict[str, Any]) -> None:
    """Print the figures."""
    for precision, found in figures.get("speed", {}).items():
        rows = [
            (name, rate, found["ours_over"][name], found["first_loss"][name], found["last_loss"][name])
            for name, rate in found["tokens_per_second"].items()
        ]
        print(
            report.table([f"{precision}, training", "tokens/s", "hornbook is x", "first loss", "last loss"], rows), "\n"
        )
    for precision, found in figures.get("memory_32k", {}).items():
        rows = [(name, peak / 2**20) for name, peak in found["above_states_bytes"].items()]
        print(report.table([f"{precision}, vocabulary 32k", "MiB above states"], rows), "\n")


if __name__ == "__main__":
    cpus.main("benchmarks.throughput", run, "quick")
