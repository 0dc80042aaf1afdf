"""Runs under real launchers: a Slurm of one node, and Open MPI's mpirun (`apt install slurm-wlm munge openmpi-bin`)."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.run.launch.cluster import ClusterJob, KubernetesSite, Site, SlurmSite, kubernetes_job, slurm_script
from tests.processes import free_port, wait_until

pytestmark = pytest.mark.slow
TWO = ("parallel.data=2", "train.micro_batch=1", "checkpoint.background=false")
PROGRAM = f"{sys.executable} -m hornbook.cli.main"
SLURM = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=small Nodes={host} Default=NO MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def whole(train_whole: Callable[..., Path]) -> Path:
    """The same run on two ranks that hornbook starts."""
    return train_whole(*TWO)


@pytest.fixture
def environ() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def slurm(tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A Slurm of this machine alone, whose one partition is not the default one; the folder of its configuration."""
    programs = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
    if lacking := [each for each in programs if shutil.which(each, path=f"{os.environ['PATH']}:/usr/sbin") is None]:
        pytest.skip(f"no Slurm here: {lacking[0]} is missing")
    if os.geteuid():
        pytest.skip("slurmd starts tasks as root alone")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host, ports = socket.gethostname().partition(".")[0], (free_port(), free_port())
    text = SLURM.format(folder=folder, host=host, ports=ports, cores=os.cpu_count())
    (folder / "slurm.conf").write_text(text)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    monkeypatch.chdir(tmp_path)  # where logs go
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    files = [f"--{each}-file={folder}/munge.{each}" for each in ("key", "pid", "log", "seed")]
    servers = [
        ["/usr/sbin/munged", "-F", "--force", f"--socket={folder}/munge.socket", *files],
        ["/usr/sbin/slurmctld", "-D", "-c"],
        ["/usr/sbin/slurmd", "-D"],
    ]
    processes = []
    try:
        for command in servers:
            with (folder / f"{Path(command[0]).name}.txt").open("w") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
            time.sleep(1)
        wait_until(lambda: "idle" in _said("sinfo", "-h", "-o", "%T"), 60)
        yield folder
    finally:
        subprocess.run(["scancel", "--full", "--state=RUNNING"], check=False, capture_output=True)
        for each in reversed(processes):
            each.terminate()
            each.wait(20)


def _said(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.strip()


def _ended(number: str, seconds: float) -> str:
    """The last state and exit code of a job."""
    states = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}

    def record() -> dict[str, str]:
        words = _said("scontrol", "show", "job", number).split()
        return dict(word.partition("=")[::2] for word in words)

    wait_until(lambda: record().get("JobState") in states, seconds)
    found = record()
    return f"{found['JobName']} {found['Partition']} {found['JobState']} {found['ExitCode']}"


@pytest.mark.usefixtures("slurm")
def test_a_job_trains_as_hornbook_alone_does(
    tmp_path: Path, tiny_settings: tuple[str, ...], same: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Submitted by `launch`, under the name of its recipe's file, with what a site says."""
    site, mine = tmp_path / "site.toml", tmp_path / "mine.toml"
    site.write_text(
        '[slurm]\noptions = { partition = "small", mem = 0 }\nenvironment = { OF_SITE = "a b" }\n'
        'lines = ["echo \\"site: $OF_SITE\\""]\n'
    )
    mine.write_text("# all by default\n")
    words = ["launch", str(mine), *tiny_settings, *TWO, "--out", str(tmp_path / "run"), "--folder", str(tmp_path)]
    words += ["--on", "slurm", "--nodes", "1", "--ranks", "2", "--site", str(site), "--program", PROGRAM]
    assert main([*words, "--script", str(tmp_path / "job.sbatch")]) == Exit.DONE
    number = capsys.readouterr().out.split()[-1]
    ended = _ended(number, 240)
    log = (tmp_path / f"mine-{number}.log").read_text()
    assert ended == "mine small COMPLETED 0:0", log
    assert "site: a b" in log
    same(tmp_path / "run")


@pytest.mark.usefixtures("slurm")
def test_a_task_that_fails_ends_the_others(tmp_path: Path) -> None:
    """They would wait for it until the end of the job otherwise."""
    command = ["bash", "-c", 'if [ "$SLURM_PROCID" = 1 ]; then exit 3; fi; exec sleep 600']
    site = Site(slurm=SlurmSite(options={"partition": "small"}))
    job = ClusterJob("failing", command, str(tmp_path), nodes=1, ranks=2, gpus=0, site=site)
    script = tmp_path / "job.sbatch"
    script.write_text(slurm_script(job))
    number = _said("sbatch", "--parsable", str(script))
    assert _ended(number, 90) == "failing small FAILED 3:0", (tmp_path / f"failing-{number}.log").read_text()


@pytest.mark.usefixtures("slurm")
def test_a_job_that_is_asked_to_stop_saves_and_is_queued_again(tmp_path: Path, tiny_settings: tuple[str, ...]) -> None:
    """Ranks end one after the other, and srun sends the last ones a second signal: the save is not given up."""
    run, site = tmp_path / "run", Site(slurm=SlurmSite(options={"partition": "small"}))
    words = [*shlex.split(PROGRAM), "train", *tiny_settings, *TWO, "--out", str(run), "--resume", "auto"]
    job = ClusterJob("asked", [*words, "--train.tokens=100M"], str(tmp_path), nodes=1, ranks=2, gpus=0, site=site)
    script = tmp_path / "job.sbatch"
    script.write_text(slurm_script(job))
    number, log = _said("sbatch", "--parsable", str(script)), tmp_path / "asked-1.log"
    wait_until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size, 120)
    _said("scancel", "--signal=TERM", f"{number}.0")
    wait_until(lambda: "Restarts=1" in _said("scontrol", "show", "job", number), 60)
    _said("scancel", number)
    assert "saved step-" in log.read_text(), log.read_text()
    assert list((run / "checkpoints").glob("step-*"))


def test_ranks_of_mpirun_train_one_run(
    tmp_path: Path, tiny_settings: tuple[str, ...], environ: dict[str, str], same: Any
) -> None:
    if shutil.which("mpirun") is None or "Open MPI" not in _said("mpirun", "--version"):
        pytest.skip("no Open MPI here: mpirun is missing")
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    words = [*shlex.split(PROGRAM), "train", *tiny_settings, *TWO, "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run([*mpirun, *words], env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == Exit.DONE, done.stderr
    assert done.stdout.count('"status": "finished"') == 1  # rank 0 answers
    same(tmp_path / "run")


def test_files_of_kubernetes_keep_its_strict_schema() -> None:
    """By the API's schema, as the package kubernetes-validate ships it: unknown keys and wrong types are errors."""
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    site = Site(kubernetes=KubernetesSite(namespace="ml", node_selector={"gpu": "h100"}, environment={"A": "1"}))
    job = ClusterJob("a", ["hornbook"], "/a", nodes=2, ranks=8, gpus=8, seconds=900, image="i", volumes=["c:/a"])
    for each in (job, replace(job, site=site), replace(job, gpus=0, volumes=(), seconds=None)):
        for document in yaml.safe_load_all(kubernetes_job(each)):
            validate.validate(document, validate.latest_version(), strict=True)
            with pytest.raises(validate.ValidationError):
                validate.validate(document | {"specs": {}}, validate.latest_version(), strict=True)
