"""Configuration of the training run itself."""

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticKnownError

from hornbook.data.config.teacher import NoTerm, TeacherConfig
from hornbook.optim.config.average_config import AverageConfig, NoAverage
from hornbook.optim.config.batch_schedule import NoRamp, Ramp
from hornbook.settings.fields import Config, Count, LocalPath, Number, parse_number


def _or_auto(what: str, least: int) -> BeforeValidator:
    """Refuse what is neither `auto` nor a number from `least` on, with one error instead of one for each."""

    def check(value: Any) -> Any:
        number = parse_number(value)
        if isinstance(number, int) and not isinstance(number, bool) and number < least:
            raise PydanticKnownError("greater_than_equal", {"ge": least})
        if number != "auto" and (isinstance(number, bool) or not isinstance(number, int)):
            raise ValueError(f'must be a whole number of {what}, or "auto"')
        return number

    return BeforeValidator(check)


class ElasticAnchor(Config):
    """Elastic weight consolidation (arXiv 1612.00796): weight / 2 * sum F (w - w*)^2; F: Fisher's diagonal."""

    kind: Literal["ewc"] = "ewc"
    fisher: LocalPath = Field(min_length=1)
    """A file that `hornbook fisher` wrote for the model that the run starts from; the run keeps a copy."""
    weight: Number = Field(default=1.0, gt=0)
    """How many tokens of the old text count as much as one of the new."""


AnchorConfig = Annotated[NoTerm | ElasticAnchor, Field(discriminator="kind")]


class LossConfig(Config):
    """Cross-entropy and its additions."""

    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """Share of the target's probability that is spread over the vocabulary (label smoothing, arXiv 1512.00567)."""
    z_loss: Number = Field(default=0.0, ge=0)
    """Weight of the squared log-sum of the logits' exponentials (PaLM: 1e-4); reported apart from the loss."""
    l1: Number = Field(default=0.0, ge=0)
    """Penalty l1 * sum |w| over the parameters that decay, reported apart; its gradient is clipped as the loss's."""
    l2: Number = Field(default=0.0, ge=0)
    """Penalty l2 / 2 * sum w^2, in the same way; `optim.weight_decay` of AdamW is decoupled decay instead."""
    mtp: Number = Field(default=0.3, ge=0)
    """Weight of the mean loss of `model.mtp`'s blocks, where there are any (DeepSeek-V3: 0.3, later 0.1)."""
    detection: Number = Field(default=50.0, ge=0)
    """Weight of telling replaced tokens (`data.objective` "replaced"; ELECTRA: 50); reported apart from the loss."""
    teacher: TeacherConfig = NoTerm()
    """A model whose predictions, or relations between tokens, are learned beside the text; reported apart from the loss
    as `distillation`."""
    anchor: AnchorConfig = NoTerm()
    """A trained model whose weights are held, each by its importance; reported apart from the loss as `anchor`."""

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the terms that the head computes, in the order in which they are added."""
        there = {"loss": True, "z_loss": bool(self.z_loss), "distillation": self.teacher.kind != "none"}
        return tuple(name for name, used in there.items() if used)


class Float8Config(Config):
    """How operands of float8 products are scaled, with `train.precision = "float8"`."""

    scales: Literal["tensor", "row"] = "tensor"
    """From the largest magnitude of each operand, or of each of its rows: more exact, and slower."""
    emulate: bool = False
    """Multiply the rounded numbers in float32 where the device has no such products: to study it, slowly."""


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
    micro_batch: Annotated[Count | Literal["auto"], _or_auto("rows", 1)] = 8
    """Rows computed at once; it changes memory and speed, and the last bits of the sums. `auto` takes the most that
    fit in memory, and the run's recipe keeps the number. Where a step runs out of memory it is halved."""
    precision: Literal["auto", "bf16", "bf16-pure", "float8", "fp16", "fp32"] = "auto"
    """Arithmetic of matrix products and activations; weights and moments are fp32. `auto` takes bf16 where the device
    multiplies it faster than fp32, else fp32; the run's recipe keeps what it took. fp16 scales the loss. `bf16-pure`:
    weights, gradients and moments are bf16 too, and updates round stochastically (optimizers adamw, adamw8bit).
    `float8`: bf16 with products of float8 numbers in the linear layers of blocks whose dims are multiples of 16."""
    float8: Float8Config = Float8Config()
    """Products of float8 numbers."""
    loss: LossConfig = LossConfig()
    """The loss function."""
    neftune: Number = Field(default=0, ge=0)
    """Noise on embeddings, uniform within this / sqrt(document's tokens x width) (NEFTune, arXiv 2310.05914)."""
    average: AverageConfig = NoAverage()
    """An average of the weights, kept beside them: 4 bytes per parameter. `hornbook export --average` takes it."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `mps`."""
    threads: Count = Field(default=0, ge=0)
    """CPU threads; 0 takes OMP_NUM_THREADS or the number of cores. Bits depend on it."""
    compile: bool = False
    """torch.compile the model: slower start, faster steps on a GPU. The code is kept for later starts."""
    compile_scope: Literal["blocks", "stack"] = "blocks"
    """What is compiled as one piece: a block, whose code serves all layers, or all blocks (a start that is longer by
    their number)."""
    cuda_graphs: bool = False
    """Start the kernels of a compiled piece by one call, on a GPU: for models whose kernels are too short for the CPU
    to keep up. Each piece and batch shape holds memory of its own."""

    @property
    def micro_rows(self) -> int:
        """`micro_batch` as a number: of `auto`, which is settled when a run starts, the least."""
        return 1 if self.micro_batch == "auto" else self.micro_batch

    @property
    def num_microbatches(self) -> int:
        """Of a step, over all ranks."""
        return -(-(self.batch_tokens // self.sequence) // self.micro_rows)

    @property
    def item_bytes(self) -> int:
        """Bytes of a weight and of its gradient."""
        return 2 if self.precision == "bf16-pure" else 4


class CheckpointConfig(Config):
    """Which checkpoints are saved and kept."""

    every: Annotated[Count | Literal["auto"], _or_auto("steps", 0)] = 500
    """Steps between saves; 0 saves only at the end and on a stop. `auto` takes what loses least time to saves and to
    failures, from the time that saves hold the loop, `guard.mtbf` and the failures so far; each is in the ledger."""
    keep: Count = Field(default=3, ge=1)
    """Newest checkpoints kept; where they are close together, two older ones too, for the guard to go back to."""
    keep_every: Count = Field(default=0, ge=0)
    """Steps between checkpoints that are never deleted; 0 deletes all in turn."""
    best: bool = True
    """Also keep the checkpoint with the lowest validation loss."""
    background: bool = True
    """Copy the state in memory and write it while training goes on; false waits until it is on disk."""
    memory_every: Count = Field(default=0, ge=0)
    """Steps between copies of the state in memory, for restarts of ranks that died; 0: none. Two are kept, of all that
    a rank holds, where hornbook starts the ranks itself on one machine. Runs that train adapters have none."""
    ballast: Count = Field(default=0, ge=0)
    """Bytes that the run holds free on its disk (a file `ballast`): where the disk is full, they make room for records
    and for the checkpoint with which the run then stops (exit code 75). 0: none, older checkpoints make room."""


class GuardConfig(Config):
    """The reaction to spikes and divergence, and to failing steps and ranks. z: distance of the loss, or of the
    logarithm of the gradient norm, from its median over recent steps, in robust standard deviations."""

    mode: Literal["off", "observe", "safe", "auto"] = "safe"
    """`safe` clips and skips steps that stand far out, goes back to a checkpoint from before a divergence and leaves
    out its data, and pauses the run (exit code 5) where that does not help; `auto` may lower the learning rate and
    change settings (`guard.swaps`) before it pauses; `observe` writes to the ledger what `safe` would do; `off`."""
    window: Count = Field(default=256, ge=32)
    """Steps over which the deviation is taken; the median is that of the last 32."""
    clip_z: Number = Field(default=6.0, gt=0)
    """Gradients whose norm is beyond are clipped to three deviations over the median."""
    skip_norm_z: Number = Field(default=12.0, gt=0)
    """Updates whose gradient norm is beyond are refused."""
    skip_loss_z: Number = Field(default=8.0, gt=0)
    """Updates whose loss is beyond are refused."""
    probe_every: Count = Field(default=250, ge=0)
    """Steps between losses of a fixed held-out batch, which confirm a slow divergence; 0: none. In runs of fewer than
    10,000 steps it is fewer, in proportion, and 50 at least."""
    swaps: list[str] = Field(default=["optim.clip=0.3", "optim.beta2=0.95"])
    """Settings that `auto` may change, as `hornbook tell` takes them: the next one each time that a lower learning
    rate has not helped. One that the run does not have, or that changes nothing, is passed over."""
    max_skips: Count = Field(default=8, ge=0)
    """Updates in a row that are refused before the run goes back to a checkpoint, or stops with exit code 5."""
    max_restarts: Count = Field(default=3, ge=0)
    """Restarts of dead ranks without a new checkpoint between, before the run stops with exit code 9."""
    hang_seconds: Number = Field(default=0.0, ge=0)
    """Seconds of silence after which a rank is restarted; 0: five times the longest lately in its phase, or 8.75."""
    standby: bool = False
    """Keep a second set of ranks waiting, with the model built, on a CPU: a restart takes less time."""
    mtbf: Number = Field(default=24.0, gt=0)
    """Hours between failures that are expected before a run, for `checkpoint.every = "auto"`: they count as one failure
    in so many hours, beside those that the run trains and the failures it has."""
    hash_every: Count = Field(default=0, ge=0)
    """Steps between comparisons of hashes of weights and moments over data-parallel ranks, which also come before each
    save; 0: none. Where most ranks agree, the others get their bits; else the run restarts from the state before."""
    audit_every: Count = Field(default=0, ge=0)
    """Steps between audits, in which each rank computes a microbatch again, and one of its neighbour; 0: none."""


MOST_PROFILED = 200
"""Steps of one trace: it is held in memory until its end."""
_PROFILE = re.compile(r"(?P<first>\d+)-(?P<last>\d+)|(?P<count>\d+)( steps?)?")


class WandbConfig(Config):
    """Weights & Biases, through its package."""

    kind: Literal["wandb"] = "wandb"
    project: str = Field(default="hornbook", min_length=1)
    """The project that the run is shown in."""
    mode: Literal["offline", "online"] | None = None
    """`offline` writes into RUN/wandb, for `wandb sync`; `online` sends what it gets. By default the environment's
    WANDB_MODE, else `offline`."""


class TrackioConfig(Config):
    """Trackio, through its package, into its own folder of this machine."""

    kind: Literal["trackio"] = "trackio"
    project: str = Field(default="hornbook", min_length=1)
    """The project that the run is shown in."""


class MlflowConfig(Config):
    """MLflow, through its package (extra `mlflow`), at the environment's MLFLOW_TRACKING_URI."""

    kind: Literal["mlflow"] = "mlflow"
    project: str = Field(default="hornbook", min_length=1)
    """The experiment that the run is shown in."""


TrackerConfig = Annotated[WandbConfig | TrackioConfig | MlflowConfig, Field(discriminator="kind")]

Event = Literal[
    "fail",
    "rollback",
    "spike",
    "precursor",
    "audit",
    "pause",
    "straggler",
    "throughput",
    "disk",
    "finish",
    "stop",
    "restart",
    "skip",
    "shorten",
    "checkpoint_damaged",
]
"""What alerts can be of: kinds of records of the ledger, and `disk`, a save that failed."""
ALERTS: tuple[Event, ...] = ("fail", "rollback", "spike", "audit", "pause", "straggler", "disk", "finish")


class _Alert(Config):
    events: list[Event] = Field(default=[*ALERTS])
    """Which events alert."""


class TerminalAlert(_Alert):
    """The terminal's bell, and a line."""

    kind: Literal["terminal"] = "terminal"


class FileAlert(_Alert):
    """A line of JSON at the end of a file."""

    kind: Literal["file"] = "file"
    path: str = Field(default="alerts.jsonl", min_length=1)
    """Below the run's folder, unless it is absolute."""


class CommandAlert(_Alert):
    """A command that gets the event as JSON on its standard input, such as one that sends mail."""

    kind: Literal["command"] = "command"
    argv: list[str] = Field(min_length=1)
    """Program and arguments; no shell reads them."""


class WebhookAlert(_Alert):
    """A POST of the event as JSON."""

    kind: Literal["webhook"] = "webhook"
    url: str = Field(pattern=r"^(https?://|env:[A-Za-z_]\w*$)")
    """Address, or `env:NAME` for one that is a secret: the run records the name alone."""


AlertConfig = Annotated[TerminalAlert | FileAlert | CommandAlert | WebhookAlert, Field(discriminator="kind")]


class LogConfig(Config):
    """Logging."""

    every: Count = Field(default=10, ge=1)
    """Steps between console lines; metrics.jsonl always has every step."""
    slowdown: Number | None = Field(default=1.5, gt=1)
    """A fall of the throughput below the run's own median by this factor, if it lasts, is shown with what takes the
    time now, and written to the ledger; so is a rank whose own work takes this many times as long as that of the
    others. `none`: never."""
    profile: str = ""
    """Steps to trace with torch.profiler, `"100-104"`, or `"5 steps"` behind the first ten of an attempt; each rank
    writes a Chrome trace into RUN/profile. Only these steps are slower."""
    sync_seconds: Number = Field(default=5.0, ge=0)
    """Longest time metrics stay unsynced to disk."""
    memory_every: Count = Field(default=0, ge=0)
    """Steps between measurements of memory by category, lines of RUN/memory.jsonl; 0: none."""
    memory_snapshot: Count = Field(default=0, ge=0)
    """The step whose tensors kept for backward are listed in RUN/memory-STEP.json, on a GPU with torch's own snapshot
    beside it; 0: none."""
    statistics_every: Count = Field(default=100, ge=0)
    """Steps between measurements of every layer (gradient, weight and update norms, activations, dead units, attention
    logits), lines of RUN/statistics.jsonl that `hornbook doctor RUN` reads; 0: none."""
    noise_scale: Count = Field(default=0, ge=0)
    """Steps over which the gradient noise scale is averaged, such as 100; 0 does not measure it. Needs two ranks, or
    two microbatches of a rank: the norm of a part of the gradient is compared with that of the whole."""
    tensorboard: bool = False
    """Write TensorBoard's event files too, into RUN/tensorboard; needs the extra `track`."""
    trackers: list[TrackerConfig] = Field(default_factory=list)
    """Other trackers that get metrics, such as `{kind = "wandb"}`, `trackio` or `mlflow`, which need their packages;
    they can neither stop nor slow the run."""
    alerts: list[AlertConfig] = Field(default_factory=list)
    """Who is told of events, such as `{kind = "command", argv = ["notify-send", "run"]}`: kinds `terminal`, `file`,
    `command`, `webhook`. An alert that fails is told once, and never stops the run."""

    @field_validator("profile")
    @classmethod
    def _check_profile(cls, text: str) -> str:
        match = _PROFILE.fullmatch(text)
        if not text or (match is not None and 1 <= len(range(*_span(match, 0))) <= MOST_PROFILED):
            return text
        raise ValueError(f"write the steps to trace as '100-104' or '5 steps', {MOST_PROFILED} steps at most")

    def profiled(self, done: int) -> range:
        """Numbers of the steps to trace in an attempt that starts after `done` steps; empty: none."""
        match = _PROFILE.fullmatch(self.profile)
        return range(*_span(match, done)) if match is not None else range(0)


PROFILE_WARM_UP = 10
"""Steps of an attempt before a trace of so many steps."""


def _span(match: re.Match[str], done: int) -> tuple[int, int]:
    """(first step, last step + 1) of a trace."""
    if match["count"] is not None:
        first = done + PROFILE_WARM_UP + 1
        return first, first + int(match["count"])
    return max(int(match["first"]), 1), int(match["last"]) + 1
