"""A GPT trained by 8-bit AdamW, embeddings too, ends with the losses of AdamW: within the deviation of seeds."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import Exit

Launch = Callable[..., Exit]
Events = Callable[..., list[dict[str, Any]]]

WORDS = ("train.tokens=38400", "optim.lr=3e-3", "checkpoint.every=0")
"""300 steps."""
EIGHT = ("optim.kind=adamw8bit", "optim.embeddings=true", "optim.min_values=1")


@pytest.mark.slow
def test_losses_of_8bit_adamw_are_those_of_adamw(tmp_path: Path, launch_run: Launch, events: Events) -> None:
    def loss(name: str, *words: str) -> float:
        assert launch_run(tmp_path / name, *WORDS, *words) == Exit.DONE
        return events(tmp_path / name, "evaluation")[-1]["all"]["loss"]

    plain = [loss(f"plain-{seed}", f"seed={seed}") for seed in (1, 2, 3)]
    eight = [loss(f"eight-{seed}", f"seed={seed}", *EIGHT) for seed in (1, 2, 3)]
    assert plain != eight
    assert abs(statistics.mean(eight) - statistics.mean(plain)) <= statistics.stdev(plain), (plain, eight)
