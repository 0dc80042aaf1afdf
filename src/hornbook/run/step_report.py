"""What the loop tells its observers about one optimizer step."""

import time
from dataclasses import dataclass

from hornbook.files.run_directory import StepRecord


@dataclass(frozen=True)
class Step:
    """One finished optimizer step. Observers get this and nothing else: they look, and touch nothing."""

    attempt: int
    """Which start of the run made this step; readers take the last attempt of a step."""
    step: int
    """Optimizer steps done, this one included."""
    tokens: int
    """Tokens consumed, this step's included."""
    step_tokens: int
    """Tokens of this step."""
    loss: float
    """Mean negative log-likelihood per target token, in nats."""
    grad_norm: float
    """Global gradient norm before clipping."""
    lr: float
    """Learning rate used."""
    skipped: bool
    """Loss or gradient was not finite, and the update was refused: weights and moments are as before."""
    token_hash: str
    """Hash of the token ids of the global batch."""
    first_sample: int
    """Global index of the first row."""
    num_samples: int
    """Rows of the global batch."""
    seconds: float
    """Wall time of the step: batch, forward, backward, update; without saves and evaluations."""
    data_seconds: float
    """Part of `seconds` spent waiting for the batch."""
    final: bool
    """The run ends with this step."""

    @property
    def tokens_per_second(self) -> float:
        """Throughput of this step."""
        return self.step_tokens / self.seconds if self.seconds else 0.0

    def evidence(self) -> dict[str, float | int | str]:
        """What the ledger keeps of a step that went wrong; the samples lead to its documents."""
        return {
            "loss": self.loss,
            "gradient_norm": self.grad_norm,
            "token_hash": self.token_hash,
            "first_sample": self.first_sample,
            "num_samples": self.num_samples,
        }

    def record(self) -> StepRecord:
        """The line for metrics.jsonl."""
        return {
            "attempt": self.attempt,
            "step": self.step,
            "tokens": self.tokens,
            "loss": self.loss,
            "gradient_norm": self.grad_norm,
            "lr": self.lr,
            "tokens_per_second": round(self.tokens_per_second, 1),
            "seconds": round(self.seconds, 6),
            "data_seconds": round(self.data_seconds, 6),
            "step_tokens": self.step_tokens,
            "token_hash": self.token_hash,
            "first_sample": self.first_sample,
            "num_samples": self.num_samples,
            "skipped": self.skipped,
            "time": round(time.time(), 3),
        }
