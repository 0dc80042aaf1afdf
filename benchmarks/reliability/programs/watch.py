"""What a program of a peer says of itself, step by step. It needs torch alone: peers have interpreters of their own.

A line of JSON for the start of the process, one for each step with digests of what the step begins from, and one for
the end. The driver compares them with those of the uninterrupted run.
"""

import hashlib
import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from model import Shape

SHAPE = Shape(vocabulary=300, sequence=64, rows=8, layers=2, width=64, heads=2, dropout=0.1)
"""Of the model that every framework trains."""


def tokens(count: int) -> torch.Tensor:
    """The data: random ids of `count` rows, the same in every process; (count, sequence)."""
    return torch.randint(SHAPE.vocabulary, (count, SHAPE.sequence), generator=torch.Generator().manual_seed(7))


def digest(tensors: Iterable[torch.Tensor]) -> str:
    """Of the bytes of tensors, in their order."""
    made = hashlib.sha256()
    for each in tensors:
        made.update(each.detach().cpu().contiguous().numpy().tobytes())
    return made.hexdigest()[:16]


def moments(optimizer: torch.optim.Optimizer) -> str:
    """Digest of all tensors of an optimizer's state."""
    states = optimizer.state_dict()["state"]
    return digest(each for key in sorted(states) for each in states[key].values() if isinstance(each, torch.Tensor))


class Watch:
    """Appends to a file; kills its own process where it is told to."""

    def __init__(self, facts: str, kill_at: int | None) -> None:
        """`kill_at`: the step before which the process kills itself (SIGKILL); None: it does not."""
        self._path, self._kill_at = Path(facts), kill_at
        self._say({"begin": True})

    def step(
        self, done: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Iterable[torch.Tensor]
    ) -> None:
        """State before a step, of which `done` are made."""
        if done == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        found = {"weights": digest(model.state_dict().values()), "moments": moments(optimizer)}
        found |= {"data": digest(batch), "random state": digest([torch.get_rng_state()])}
        self._say({"step": done + 1, **found, "learning rate": float(optimizer.param_groups[0]["lr"]).hex()})

    def loss(self, value: float) -> None:
        """The loss of the step that was told last."""
        self._say({"loss": value.hex()})

    def end(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """State after the last step."""
        self._say({"end": True, "weights": digest(model.state_dict().values()), "moments": moments(optimizer)})

    def _say(self, record: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")
