"""What the programs of the fault trace share: the specification, the batch of a step, words to the driver.

A batch is a function of seed, step and rank, so a program that knows its step has the right data: nothing about data
can be lost, which is more than most loaders promise.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from model import Shape, Transformer


class Steps:
    """Of one process: rank `rank` of two."""

    def __init__(self, rank: int) -> None:
        self.spec: dict[str, Any] = json.loads(sys.argv[1])
        self.rank = rank
        self.folder = Path(self.spec["folder"])
        self.total, self.every = self.spec["steps"], self.spec["every"]
        self.shape = Shape(**self.spec["shape"])
        self._say("started.jsonl", {"rank": rank, "pid": os.getpid()})

    def model(self) -> Transformer:
        """With the same initial weights in every process."""
        torch.manual_seed(1)
        return Transformer(self.shape)

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Of the model."""
        return torch.optim.AdamW(model.parameters(), lr=1e-3)

    def batch(self, step: int) -> torch.Tensor:
        """This rank's rows of a step; (rows, sequence)."""
        draw = torch.Generator().manual_seed(2 * step + self.rank)
        return torch.randint(self.shape.vocabulary, (self.shape.rows, self.shape.sequence), generator=draw)

    def made(self, step: int, ranks: int = 2) -> None:
        """A step is made, the number `step`, by so many ranks."""
        self._say(f"steps-{self.rank}.jsonl", {"step": step, "ranks": ranks})

    def end(self, model: torch.nn.Module) -> None:
        """Training is at its end."""
        found = hashlib.sha256()
        for each in model.state_dict().values():
            found.update(each.detach().numpy().tobytes())
        self._say("final.jsonl", {"weights": found.hexdigest()})

    def _say(self, name: str, record: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(record) + "\n")
