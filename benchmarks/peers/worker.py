"""A contender as a long-lived process: it reads one JSON request a line and answers one JSON object a line.

Runs in either virtual environment, so it imports neither hornbook nor transformers.
"""

import contextlib
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


class EndOfRequests(SystemExit):
    """Ends a loop that has no end of its own, and its process."""


class Rounds:
    """Requests for a loop that calls us: `take` at the start of a step gives its tokens, `lost` hears of its loss.

    A round ends where its last step's successor begins, so all that the loop does between steps is in its time.
    """

    def __init__(self, shape: dict[str, int], **facts: Any) -> None:
        self._shape, self._facts = shape, facts
        self._data: list[Any] = []
        self._losses: list[float] = []
        self._begun: tuple[float, float] | None = None
        self._told = False

    def take(self) -> Any:
        """Token ids [rows, sequence + 1] of the step that begins; the process ends where no request comes."""
        if not self._told:
            _answer({"ready": True, **self._facts})
            self._told = True
        while not self._data:
            self._finish()
            line = sys.stdin.readline()
            if not line:
                raise EndOfRequests
            request = json.loads(line)
            keys = ("rows", "sequence", "vocab")
            self._data = list(batches(request["seed"], request["steps"], *(self._shape[key] for key in keys)))
            self._begun = time.perf_counter(), time.process_time()
        return self._data.pop(0)

    def lost(self, loss: float) -> None:
        """The loss per token of the step."""
        self._losses.append(loss)

    def _finish(self) -> None:
        if self._begun is None:
            return
        wall, cpu = time.perf_counter() - self._begun[0], time.process_time() - self._begun[1]
        times = {"seconds": wall, "cpu_seconds": cpu, "losses": self._losses}
        _answer({**times, "peak_bytes": peak_bytes()})
        self._losses, self._begun = [], None


def serve(step: Step, shape: dict[str, int], **facts: Any) -> None:
    """Answer `{"seed": s, "steps": n}` with the seconds of n steps, on the wall and of the CPU, losses and memory."""
    rounds = Rounds(shape, **facts)
    with contextlib.suppress(EndOfRequests):
        while True:
            rounds.lost(step(rounds.take()))


def _answer(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)
