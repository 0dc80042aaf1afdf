"""The run directory: paths of the files of a run, and what its records hold.

The directory is the only interface between a run and the commands that watch or control it. Its files are of two
kinds: append-only JSON lines (`hornbook.files.journal`), and small files that are replaced as a whole
(`hornbook.files.durable`). One process at a time owns a run (`hornbook.files.run_lock`).
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NotRequired, Self, TypedDict, cast

from hornbook.errors import StorageError, UsageError
from hornbook.files.durable import TEMPORARY, storage_errors, sync_directory, write_atomic
from hornbook.files.filesystem import exists, is_file, is_folder, list_folder
from hornbook.files.journal import finite

Status = Literal["running", "finished", "stopped", "failed"]


def checkpoint_name(step: int) -> str:
    """Name of the folder of a checkpoint: `step-00000500`."""
    return f"step-{step:08d}"


class Record(TypedDict):
    """Keys of every line of metrics.jsonl and events.jsonl."""

    attempt: int
    """Number of the attempt: 1 for the first, one more for each restart or rollback."""
    step: int
    """Optimizer steps done when the record was made."""
    tokens: int
    """Tokens consumed when the record was made."""


class StepRecord(Record):
    """A line of metrics.jsonl."""

    loss: float | None
    """Mean negative log-likelihood per target token of the step, in nats; None where it was not finite."""
    token_hash: str
    """Hash of the token ids of the step's global batch."""
    lr: NotRequired[float]
    gradient_norm: NotRequired[float | None]
    """Global norm before clipping."""
    seconds: NotRequired[float]
    data_seconds: NotRequired[float]
    tokens_per_second: NotRequired[float]
    step_tokens: NotRequired[int]
    first_sample: NotRequired[int]
    num_samples: NotRequired[int]
    skipped: NotRequired[bool]
    clipped: NotRequired[float]
    """Norm to which the guard clipped the gradient."""
    noise_scale: NotRequired[float | None]
    """Gradient noise scale in targets (`log.noise_scale`), from running averages; None while they allow none."""
    noise_trace: NotRequired[float | None]
    """Its numerator in this step alone: trace of the covariance of the gradients of single targets."""
    noise_signal: NotRequired[float | None]
    """Its denominator in this step alone: squared norm of the gradient over all data; single steps may be negative."""
    terms: NotRequired[dict[str, float]]
    """Terms of the objective besides the loss, per target token."""
    time: NotRequired[float]
    bill: NotRequired[dict[str, Any]]
    """At log intervals: shares of the time of the steps since the last one, MFU (`hornbook.run.observe.step_bill`)."""


class StateRecord(Record):
    """state.json: the heartbeat, replaced as a whole every few seconds."""

    status: Status
    heartbeat: float
    """Seconds since 1970 when the file was written."""
    total_tokens: NotRequired[int]
    loss: NotRequired[float | None]
    pid: NotRequired[int]
    host: NotRequired[str]
    boot: NotRequired[str]
    started: NotRequired[str]


def identity(path: Path) -> tuple[int, int] | None:
    """(device, inode) of the folder at a path, None if there is none. Raises OSError."""
    if not exists(path):
        return None
    found = os.stat(path)
    return found.st_dev, found.st_ino


class RunDir:
    """Paths of the files of a run; `create` makes the folders."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.toml"
        self.env = self.path / "env.json"
        self.plan = self.path / "plan.json"
        self.data_lock = self.path / "data.lock"
        self.metrics = self.path / "metrics.jsonl"
        self.memory = self.path / "memory.jsonl"
        self.statistics = self.path / "statistics.jsonl"
        self.events = self.path / "events.jsonl"
        self.log = self.path / "log.txt"
        self.state = self.path / "state.json"
        self.lock = self.path / "run.lock"
        self.control = self.path / "control"
        self.samples = self.path / "samples"
        self.evals = self.path / "evals"
        self.incidents = self.path / "incidents"
        self.tensorboard = self.path / "tensorboard"
        self.profile = self.path / "profile"
        self.checkpoints = self.path / "checkpoints"
        self.base = self.path / "base"
        self.fisher = self.path / "fisher.safetensors"
        self.cordon = self.path / "cordon.json"
        self.ballast = self.path / "ballast"
        self._identity: tuple[int, int] | None = None
        self.guards: list[Callable[[], None]] = []
        """Called by `check_owner`: they raise where this process must write nothing more here."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.resolve().name

    def exists(self) -> bool:
        """Whether a run was started here. Raises OSError."""
        return is_file(self.recipe) or is_file(self.state) or is_folder(self.checkpoints)

    def must_exist(self) -> Self:
        """The same directory. Raises UsageError where no run was started here."""
        if not self.exists():
            raise UsageError(f"{self.path} holds no run: `hornbook runs ls FOLDER` lists runs")
        return self

    def create(self) -> Self:
        """Make the folders and write a probe file into each. Raises StorageError naming the path."""
        with storage_errors(self.path):
            for folder in (self.path, self.control, self.samples, self.evals, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
                probe = folder / f"{TEMPORARY}probe-{os.getpid()}"
                probe.write_bytes(b"hornbook")
                probe.unlink()
            sync_directory(self.path)
            sync_directory(self.path.parent)
            self._identity = identity(self.path)
        return self

    def check(self) -> None:
        """Raise StorageError if the folder that this run writes into was renamed or deleted, or is another's now.

        Otherwise open files would grow in the renamed folder, and new files be made in a new folder at the old path.
        """
        with storage_errors(self.path):
            found = identity(self.path)
        self._identity = self._identity or found
        if found is None or found != self._identity:
            raise StorageError(
                f"{self.path} was renamed or deleted while the run wrote into it; the run ended, and made nothing new "
                "there. `hornbook resume` goes on from the newest checkpoint, wherever the folder is now"
            )
        self.check_owner()

    def check_owner(self) -> None:
        """Raise TakenOverError if another process has taken the directory over."""
        for guard in self.guards:
            guard()

    def read_state(self) -> StateRecord | None:
        """The heartbeat, None if there is none or it cannot be read."""
        try:
            state = json.loads(self.state.read_bytes())
        except (OSError, ValueError):
            return None
        return cast(StateRecord, state) if isinstance(state, dict) and "status" in state else None

    def write_state(self, state: StateRecord) -> None:
        """Replace the heartbeat. It is not synced: the ledger and the checkpoints hold all that a resume needs."""
        write_atomic(self.state, json.dumps(finite(state)) + "\n", sync=False)

    def clean(self) -> list[str]:
        """Delete temporary files of killed writers (not those of checkpoints); needs the lock. Returns their names."""
        folders = [folder for folder in (self.path, self.samples, self.evals) if is_folder(folder)]
        entries = [entry for folder in folders for entry in list_folder(folder, f"{TEMPORARY}*")]
        litter = [entry for entry in entries if is_file(entry)]
        for entry in litter:
            entry.unlink(missing_ok=True)
        return [entry.name for entry in litter]
