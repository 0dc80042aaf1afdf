"""A contender as a long-lived process: it reads one JSON request a line and answers one JSON object a line.

Runs in either virtual environment, so it imports neither hornbook nor transformers.
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

Step = Callable[[Any], float]
"""One optimizer step over token ids [rows, sequence + 1]; returns the loss per token."""


def batches(seed: int, steps: int, rows: int, sequence: int, vocab: int):
    """The same token ids for every contender: each row repeats a random motif, so that there is something to learn."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        motif = torch.randint(0, vocab, (rows, 64), generator=generator)
        yield motif.repeat(1, sequence // 64 + 1)[:, : sequence + 1].contiguous()


def peak_bytes() -> int:
    """Most memory that this process had so far: of its GPU if it uses one, else the largest resident set (VmHWM)."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def serve(step: Step, shape: dict[str, int]) -> None:
    """Answer `{"seed": s, "steps": n}` with the seconds of n steps, on the wall and of the CPU, losses and memory."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        data = list(batches(request["seed"], request["steps"], shape["rows"], shape["sequence"], shape["vocab"]))
        start, cpu = time.perf_counter(), time.process_time()
        losses = [step(tokens) for tokens in data]
        answer = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu}
        answer |= {"losses": losses, "peak_bytes": peak_bytes()}
        print(json.dumps(answer), flush=True)
