"""The parts of `python -m benchmarks.gpu`, those worth most first."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Part:
    """One process: `python -m MODULE OUTPUT SPEC`. It writes its figures to OUTPUT again whenever it knows more."""

    name: str
    about: str
    module: str
    seconds: float
    """Its time limit."""
    spec: dict[str, Any] = field(default_factory=dict)
    least: float = 15.0
    """It is not begun with less time left."""


LEFT_OUT = 4
"""Exit code of a part whose data or peer is not there; it is tried again by the next call."""


SMOKE, TESTS = "benchmarks.gpu.smoke", "benchmarks.gpu.tests"
STEP, MEMORY = "benchmarks.gpu.step", "benchmarks.gpu.memory"
PEERS, BUDGET = "benchmarks.gpu.peers", "benchmarks.gpu.budget.part"
GPT2 = {"recipe": "gpt2-124m", "sequence": 1024, "rows": 32, "words": []}
LLAMA_1B = {"recipe": "llama-1b", "sequence": 4096, "rows": 4, "words": ["parallel.recompute=none"]}
LLAMA_8B = {"recipe": "llama-3-8b", "sequence": 8192, "rows": 1, "words": ["model.layers=8", "parallel.recompute=none"]}


def five_minutes(name: str, contender: str) -> Part:
    """A part that takes a whole call: text, a trial that compiles, five minutes of training, held-out text."""
    about = f"bits per byte of held-out text after five minutes: {contender}"
    return Part(name, about, BUDGET, 515, {"contender": contender}, least=450)


FLOAT8, GRAPHS = {"precision": "float8"}, {"words": ["train.cuda_graphs=true"], "microbatches": 1}
PARTS = (
    Part("smoke", "the commands themselves, small: train, stop, resume, eval, generate, replay, bench", SMOKE, 100),
    Part("gpt2-124m", "tokens/s at 1k, with documents and without", STEP, 90, GPT2),
    Part("llama-1b", "tokens/s at 4k, with documents and without", STEP, 100, LLAMA_1B),
    Part("tests", "tests marked gpu: each path and kernel against the reference", TESTS, 200),
    Part("llama-8b, 8 blocks", "tokens/s at 8k, with documents and without", STEP, 110, LLAMA_8B),
    Part("loss", "memory and time of the chunked loss at vocabulary 128k, against full logits", MEMORY, 40),
    Part("llama-1b, float8", "the same with float8 products", STEP, 100, LLAMA_1B | FLOAT8),
    Part("llama-8b, float8", "the same with float8 products", STEP, 110, LLAMA_8B | FLOAT8),
    Part("llama-1b, recompute", "what recomputing blocks costs and saves", STEP, 100, {**LLAMA_1B, "words": []}),
    Part("gpt2-124m, stack", "all blocks as one graph", STEP, 90, {**GPT2, "words": ["train.compile_scope=stack"]}),
    Part("gpt2-124m, peers", "tokens/s at 1k beside transformers, litgpt, nanoGPT", PEERS, 150, GPT2),
    Part("llama-1b, peers", "tokens/s at 4k beside transformers, litgpt, torchtitan", PEERS, 200, LLAMA_1B),
    Part("llama-8b, peers", "tokens/s at 8k beside transformers, litgpt, torchtitan", PEERS, 200, LLAMA_8B),
    Part("gpt2-124m, graphs", "CUDA graphs of the blocks, one microbatch a step", STEP, 90, GPT2 | GRAPHS),
    five_minutes("five minutes", "hornbook"),
    five_minutes("five minutes, nanoGPT", "nanoGPT"),
    five_minutes("five minutes, nanochat", "nanochat"),
    five_minutes("five minutes, modded-nanogpt", "modded-nanogpt"),
)
