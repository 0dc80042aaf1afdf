"""The sides: what starts a job, who its ranks are, how far it is, what it has saved."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import psutil

from benchmarks.contenders.peers_here import find
from benchmarks.reliability import kill
from benchmarks.reliability.kill_ranks import ranks_of
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir

PROGRAMS = Path(__file__).parents[1] / "programs"
EVERY = 50
"""Steps between two checkpoints."""
TIMEOUT_SECONDS = 60
"""After which a collective of torch's fails; its default is 30 minutes."""
SHAPE = {"vocabulary": 300, "sequence": 64, "rows": 16, "layers": 3, "width": 128, "heads": 4}
"""Of the peers' model; rows are those of one of two ranks."""
LAST_BYTES = 2048
"""Of a file of steps, in which its last record is."""
BATCH = 2 * SHAPE["rows"] * SHAPE["sequence"]
SETTINGS = kill.SETTINGS | {
    "model.layers": SHAPE["layers"],
    "model.width": SHAPE["width"],
    "model.heads": SHAPE["heads"],
    "model.dropout": 0.0,
    "train.sequence": SHAPE["sequence"],
    "train.micro_batch": SHAPE["rows"],
    "train.batch_tokens": BATCH,
    "eval.every": 0,
    "parallel.data": 2,
    "guard.standby": True,
    "checkpoint.memory_every": 1,
    "checkpoint.every": EVERY,
}


class Job(ABC):
    """One run of a side, through all its starts."""

    version, missing = "", ""

    def __init__(self, folder: Path, data: Path, steps: int) -> None:
        """`data`: hornbook's prepared ones."""
        self.folder, self.data, self.steps = folder, data, steps
        self.processes: list[subprocess.Popen[bytes]] = []
        (folder / "saved").mkdir(parents=True)

    @abstractmethod
    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        """(command, environment) of each process that is started."""

    @abstractmethod
    def ranks(self) -> list[int]:
        """Process ids of the ranks, those of a rank that is away included."""

    @abstractmethod
    def step(self) -> int:
        """The last step on record."""

    @abstractmethod
    def final(self) -> str:
        """Digest of the weights at the end; "": it is not there."""

    @abstractmethod
    def newest(self) -> Path | None:
        """The file with the weights of the newest checkpoint."""

    def start(self) -> None:
        """Start, or go on."""
        with (self.folder / "words.txt").open("ab") as words:
            for command, environment in self.commands():
                self.processes.append(
                    subprocess.Popen(command, stdout=words, stderr=words, env=os.environ | environment)
                )

    def code(self) -> int | None:
        """Exit code when all that makes steps has ended; the first that is not zero."""
        codes = [process.poll() for process in self.processes]
        return None if None in codes else next((code for code in codes if code), 0)

    def kill(self) -> None:
        """SIGKILL of every process of the job."""
        every = [psutil.Process(each.pid) for each in self.processes if each.poll() is None]
        for process in [child for each in every for child in each.children(recursive=True)] + every:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        for each in self.processes:
            each.wait()
        self.processes = []

    def mend(self) -> None:
        """Put the newest checkpoint aside, as an operator would on whose file a start has failed."""
        found = self.newest()
        if found is not None:
            found.rename(found.with_name(f"{found.name}.damaged"))

    def facts(self) -> dict[str, Any]:
        """More that is worth telling."""
        return {}


class Hornbook(Job):
    """`hornbook train` on two ranks, with a copy in memory of every step and ranks on standby."""

    def __init__(self, folder: Path, data: Path, steps: int) -> None:
        super().__init__(folder, data, steps)
        self._run = RunDir(folder / "run")

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        settings = SETTINGS | {"train.tokens": self.steps * BATCH}
        return [(kill.train_command(self.data, self._run.path, settings), {})]

    def ranks(self) -> list[int]:
        return ranks_of(self.processes[0].pid)[:2]

    def step(self) -> int:
        return newest_record(self._run.metrics)

    def final(self) -> str:
        path = self._run.checkpoints / f"step-{self.steps:08}" / "model.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    def newest(self) -> Path | None:
        return max(self._run.checkpoints.glob("step-*/model.safetensors"), default=None)

    def facts(self) -> dict[str, Any]:
        made = [record["step"] for record in read_records(self._run.metrics)]
        return {"steps_again": len(made) - len(set(made))}


class Torchrun(Job):
    """A plain script under torchrun."""

    program, python = "trace_torchrun", sys.executable

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        words = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        return [([*words, "--max-restarts", "3", *self.script()], {})]

    def script(self) -> list[str]:
        """The program and its specification."""
        spec = {"folder": str(self.folder), "steps": self.steps, "every": EVERY, "timeout": TIMEOUT_SECONDS}
        return [str(PROGRAMS / f"{self.program}.py"), json.dumps(spec | {"shape": SHAPE})]

    def ranks(self) -> list[int]:
        found = {record["rank"]: record["pid"] for record in read_records(self.folder / "started.jsonl")}
        return [found[rank] for rank in sorted(found)]

    def step(self) -> int:
        return max(newest_record(path) for path in self._logs())

    def final(self) -> str:
        path = self.folder / "final.jsonl"
        return next((record["weights"] for record in read_records(path)), "") if path.exists() else ""

    def newest(self) -> Path | None:
        return max((self.folder / "saved").glob("snapshot-*.pt"), default=None)

    def facts(self) -> dict[str, Any]:
        made = [record["step"] for record in read_records(self.folder / "steps-0.jsonl")]
        return {"steps_again": len(made) - len(set(made))}

    def _logs(self) -> list[Path]:
        return [self.folder / f"steps-{rank}.jsonl" for rank in range(2)]


class Lightning(Torchrun):
    """The same under Lightning's Trainer."""

    program = "trace_lightning"
    _found = find("lightning")
    python, version, missing = _found.python, _found.version, _found.missing

    def newest(self) -> Path | None:
        path = self.folder / "saved" / "last.ckpt"
        return path if path.exists() else None

    def mend(self) -> None:
        """Of the same step there is another file, which the operator puts in the place of the damaged one."""
        super().mend()
        saved = self.folder / "saved"
        if whole := max(saved.glob("step=*.ckpt"), default=None):
            (saved / "last.ckpt").write_bytes(whole.read_bytes())


class Torchft(Torchrun):
    """Two replica groups of one rank, each under its own torchrun, beside a lighthouse."""

    program = "trace_torchft"
    _found = find("torchft")
    version, missing = _found.version, _found.missing
    home = _found.home

    def commands(self) -> list[tuple[list[str], dict[str, str]]]:
        ports = [_free_port() for _ in range(3)]
        paths = {
            "PYTHONPATH": self.home,
            "TORCHFT_LIGHTHOUSE": f"http://localhost:{ports[0]}",
            "NUM_REPLICA_GROUPS": "2",
        }
        house = (Path(self.home) / "bin" if self.home else Path(self.python).parent) / "torchft_lighthouse"
        words = [self.python, str(house), "--min_replicas", "1", "--bind", f"[::]:{ports[0]}"]
        made = [([*words, "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"], paths)]
        for group in range(2):
            words = [self.python, "-m", "torch.distributed.run", "--nproc-per-node", "1", "--max-restarts", "100"]
            words += ["--master-port", str(ports[1 + group]), *self.script()]
            made.append((words, paths | {"REPLICA_GROUP_ID": str(group)}))
        return made

    def code(self) -> int | None:
        """One replica that ends well is enough: the other may have no partner left to end with."""
        codes = [process.poll() for process in self.processes[1:]]
        return (
            0 if self.final() and 0 in codes else None if None in codes else next((each for each in codes if each), 0)
        )

    def facts(self) -> dict[str, Any]:
        ranks = {record["step"]: record["ranks"] for path in self._logs() for record in read_records(path)}
        return super().facts() | {"share_of_data": sum(ranks.values()) / (2 * self.steps)}


def newest_record(path: Path) -> int:
    """Step of the last whole record of a file of steps; 0: there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - LAST_BYTES, 0))
        whole = file.read().splitlines(keepends=True)
    lines = [line for line in whole if line.endswith(b"}\n") and line.startswith(b"{")]
    return json.loads(lines[-1])["step"] if lines else 0


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return found.getsockname()[1]


SIDES: dict[str, type[Job]] = {
    "hornbook": Hornbook,
    "torchrun": Torchrun,
    "Lightning": Lightning,
    "torchft": Torchft,
}
