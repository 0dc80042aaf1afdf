"""The report of an optimizer step to the observers, and the count of steps whose update was refused.

The update itself is refused on the device (`Engine.step`). The count is part of the state, so that it is saved and
rewound with it.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hornbook.errors import DivergedError
from hornbook.files.run_directory import StepRecord
from hornbook.parallel.gradients.noise_scale import NoiseRecord
from hornbook.parallel.traffic.traffic import TrafficReport
from hornbook.settings.training import GuardConfig


@dataclass(frozen=True)
class Step:
    """One finished optimizer step: all that observers get."""

    attempt: int
    """Which start of the run made this step; readers take the last attempt of a step."""
    step: int
    """Optimizer steps done, this one included."""
    tokens: int
    """Tokens consumed, this step's included."""
    step_tokens: int
    loss: float
    """Mean negative log-likelihood per target token, in nats."""
    grad_norm: float
    """Global gradient norm before clipping."""
    lr: float
    skipped: bool
    """Loss or gradient was not finite or stood far out, and the update was refused: all weights are as before."""
    token_hash: str
    """Hash of the token ids of the global batch."""
    first_sample: int
    """Global index of the first row."""
    num_samples: int
    """Rows of the global batch."""
    seconds: float
    """Wall time of the step: batch, forward, backward, update; without saves and evaluations."""
    data_seconds: float
    """The part of `seconds` spent on waiting for the batch."""
    final: bool
    """The run ends with this step."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of this rank by phase (`hornbook.parallel.traffic.step_clock`); the rest of `seconds` is the host's."""
    traffic: TrafficReport = field(default_factory=TrafficReport)
    """What this rank sent to others, and how long it took."""
    positions: tuple[int, int] = (0, 0)
    """Positions that this rank computed, padding included: of the model, and of its encoder where it has one beside."""
    targets: float = math.inf
    """Sum of the weights of its targets, which the loss is divided by."""
    noise: NoiseRecord | None = None
    """The gradient noise scale (`log.noise_scale`); None: not measured."""
    clipped: float | None = None
    """Norm to which the guard clipped the gradient; None: it did not."""
    recomputed: bool = False
    """The refused step was computed again, and is what the data makes of these weights."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Other terms of the objective by name, per target token: `z_loss`, `l1`, `l2`, what experts add."""

    def evidence(self) -> dict[str, Any]:
        """Fields for the ledger of a refused step; the samples lead to its documents."""
        record: dict[str, Any] = {**self.record()}
        found = {key: record[key] for key in ("loss", "gradient_norm", "token_hash", "first_sample", "num_samples")}
        return found | ({"recomputed": True} if self.recomputed else {})

    def record(self) -> StepRecord:
        """The line for metrics.jsonl."""
        record: StepRecord = {
            "attempt": self.attempt,
            "step": self.step,
            "tokens": self.tokens,
            "loss": self.loss,
            "gradient_norm": self.grad_norm,
            "lr": self.lr,
            "tokens_per_second": round(self.step_tokens / self.seconds, 1) if self.seconds else 0.0,
            "seconds": round(self.seconds, 6),
            "data_seconds": round(self.data_seconds, 6),
            "step_tokens": self.step_tokens,
            "token_hash": self.token_hash,
            "first_sample": self.first_sample,
            "num_samples": self.num_samples,
            "skipped": self.skipped,
            "time": round(time.time(), 3),
        }
        if self.clipped is not None:
            record["clipped"] = self.clipped
        if self.terms:
            record["terms"] = dict(self.terms)
        if self.noise is not None:
            record["noise_scale"] = self.noise.ratio
            record["noise_trace"], record["noise_signal"] = self.noise.trace, self.noise.signal
        return record


def is_due(step: int, every: int) -> bool:
    """Whether something that happens every `every` steps (0: never) happens after step `step`."""
    return every > 0 and step % every == 0


def count_skips(before: int, *, skipped: bool, searching: bool) -> int:
    """Refused updates in a row after a step, of `before` ones before it.

    searching: while the fp16 scale is searched for, refusals are normal and do not count.
    """
    return before + (not searching) if skipped else 0


def diverged(config: GuardConfig, skips: int, step: int) -> DivergedError:
    """The error that ends a run after too many refused updates in a row."""
    return DivergedError(
        f"diverged: {skips} steps in a row, up to step {step}, had a loss or gradient that is not finite, and "
        f"guard.max_skips is {config.max_skips}. The last checkpoint holds none of them: resume with a lower "
        "--optim.lr or a smaller --optim.clip, and look at the data of these steps in events.jsonl"
    )
