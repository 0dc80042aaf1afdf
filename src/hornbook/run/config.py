"""Configuration of the training run itself."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from hornbook.optim.config.batch_schedule import NoRamp, Ramp
from hornbook.settings.fields import Config, Count, Number, parse_number


def _rows(value: Any) -> Any:
    """Refuse what is neither `auto` nor a number from 1 on, with one error instead of one for each."""
    number = parse_number(value)
    if isinstance(number, int) and not isinstance(number, bool) and number < 1:
        raise PydanticKnownError("greater_than_equal", {"ge": 1})
    if number != "auto" and (isinstance(number, bool) or not isinstance(number, int)):
        raise ValueError('must be a whole number of rows, or "auto"')
    return number


class LossConfig(Config):
    """Cross-entropy and its additions."""

    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target's probability that is spread over the vocabulary (label smoothing, arXiv 1512.00567)."""
    z_loss: Number = Field(default=0.0, ge=0)
    """Weight of the squared log-sum of the logits' exponentials (PaLM: 1e-4); reported apart from the loss."""


class TrainConfig(Config):
    """Length, batch and arithmetic of the run."""

    tokens: Count | None = Field(default=None, ge=1)
    """Length of the run in tokens; or give `epochs`."""
    epochs: Number | None = Field(default=None, gt=0)
    """Length of the run in passes over the training data; or give `tokens`."""
    seconds: Number | None = Field(default=None, gt=0)
    """Time in which the run must end, from its first step to its last save, over all attempts without the time between.
    Where its steps are too slow the run is shortened, schedule included; it is never lengthened."""
    batch_tokens: Count = Field(default=524_288, ge=1)
    """Tokens per optimizer step; with a ramp, once it has ended."""
    ramp: Ramp = NoRamp()
    """How the batch grows to `batch_tokens`. Intervals in steps count steps, whatever their size."""
    sequence: Count = Field(default=1024, ge=2)
    """Tokens per row."""
    micro_batch: Annotated[Count | Literal["auto"], BeforeValidator(_rows)] = 8
    """Rows computed at once; it changes memory and speed, and the last bits of the sums. `auto` takes the most that
    fit in memory, and the run's recipe keeps the number. Where a step runs out of memory it is halved."""
    precision: Literal["auto", "bf16", "fp16", "fp32"] = "auto"
    """Arithmetic of matrix products and activations; weights and moments are always fp32. `auto` takes bf16 where the
    device multiplies it faster than fp32, else fp32; the run's recipe keeps what it took. fp16 scales the loss."""
    loss: LossConfig = LossConfig()
    """The loss function."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `mps`."""
    threads: Count = Field(default=0, ge=0)
    """CPU threads; 0 takes OMP_NUM_THREADS or the number of cores. Bits depend on it."""
    compile: bool = False
    """torch.compile each block: slower start, faster steps on a GPU."""

    @property
    def micro_rows(self) -> int:
        """`micro_batch` as a number: of `auto`, which is settled when a run starts, the least."""
        return 1 if self.micro_batch == "auto" else self.micro_batch


class CheckpointConfig(Config):
    """Which checkpoints are saved and kept."""

    every: Count = Field(default=500, ge=0)
    """Steps between saves; 0 saves only at the end and on a stop."""
    keep: Count = Field(default=3, ge=1)
    """Newest checkpoints kept."""
    keep_every: Count = Field(default=0, ge=0)
    """Steps between checkpoints that are never deleted; 0 deletes all in turn."""
    best: bool = True
    """Also keep the checkpoint with the lowest validation loss."""
    background: bool = True
    """Copy the state in memory and write it while training goes on; false waits until it is on disk."""


class GuardConfig(Config):
    """The reaction to failing steps and ranks."""

    max_skips: Count = Field(default=8, ge=0)
    """Non-finite steps in a row that are skipped before the run stops with exit code 5."""
    max_restarts: Count = Field(default=3, ge=0)
    """Restarts of dead ranks without a new checkpoint between, before the run stops with exit code 9."""
    hang_seconds: Number = Field(default=0.0, ge=0)
    """Seconds of silence after which a rank is restarted; 0: five times the longest so far in its phase, or 10."""


class LogConfig(Config):
    """Logging."""

    every: Count = Field(default=10, ge=1)
    """Steps between console lines; metrics.jsonl always has every step."""
    sync_seconds: Number = Field(default=5.0, ge=0)
    """Longest time metrics stay unsynced to disk."""
    memory_every: Count = Field(default=0, ge=0)
    """Steps between measurements of memory by category, lines of RUN/memory.jsonl; 0: none."""
    memory_snapshot: Count = Field(default=0, ge=0)
    """The step whose tensors kept for backward are listed in RUN/memory-STEP.json, on a GPU with torch's own snapshot
    beside it; 0: none."""
    tensorboard: bool = False
    """Write TensorBoard's event files too, into RUN/tensorboard; needs the extra `track`."""
