"""What schedulers are given to start a run on several machines: a batch script, a Kubernetes Job, commands over ssh.

All three run the same `hornbook train`. Under Slurm each task is a rank. In a pod of an indexed Job, and over ssh, one
process per machine starts the ranks of its machine (`node.py`), told by HORNBOOK_NODES, HORNBOOK_NODE (in a pod
JOB_COMPLETION_INDEX), MASTER_ADDR and MASTER_PORT.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from hornbook.errors import Exit, UsageError
from hornbook.settings.fields import Config

STARTED = "hornbook: started"
"""First line on stderr of a command over ssh: the machine was reached."""
WARN_SECONDS = 120
"""Time between the signal to save and the end of a job."""
REQUEUES = 50
"""Times that a job is started again: an error that every start meets must not do so for ever."""
SAVE_SECONDS = 600
"""Longest time of a run over ssh that was asked to stop, to finish a step and save: it is killed then."""
ARRIVAL_SECONDS = 600
"""Longest wait for the pods of a Job, whose machines may have to load an image first."""
_FINAL = (Exit.USAGE, Exit.INTEGRITY, Exit.DOES_NOT_FIT, Exit.DIVERGED, Exit.RETRIES_SPENT, Exit.INTERRUPTED)
"""Exit codes that fail a Job of Kubernetes."""
_HOST = re.compile(r"(?:[\w.-]+@)?[A-Za-z0-9][\w.:-]*")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class SlurmSite(Config):
    """A site's Slurm."""

    options: dict[str, str | int] = Field(default_factory=dict)
    """Options of sbatch: partition, account, qos, mem, constraint ..."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the ranks."""
    lines: tuple[str, ...] = ()
    """Lines of shell before the ranks start: `module load cuda`, `source /shared/venv/bin/activate`."""


class KubernetesSite(Config):
    """A site's Kubernetes. Requests and limits are equal, so that pods are the last to be evicted."""

    namespace: str = ""
    cpus: int = Field(default=4, ge=1)
    """CPU cores of each rank, unless `--cpus` says so."""
    memory: float = Field(default=16, gt=0)
    """GiB of each rank, in the machine's memory."""
    shared_memory: float = Field(default=8, gt=0)
    """GiB of /dev/shm of a pod, which counts to its memory."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables of the pods."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, str], ...] = ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)
    """Taints of machines that pods may have: by default those of GPUs."""


class Site(Config):
    """Settings of a cluster that its administrator knows (`hornbook launch --site FILE`)."""

    slurm: SlurmSite = SlurmSite()
    kubernetes: KubernetesSite = KubernetesSite()


@dataclass(frozen=True)
class ClusterJob:
    """A run on several machines."""

    name: str
    """Of the job: letters, digits and `-`, as Kubernetes demands."""
    command: Sequence[str]
    """`hornbook train ...`, the same on every machine."""
    folder: str
    """Working directory of the command."""
    nodes: int
    ranks: int
    """Ranks of each machine."""
    gpus: int
    """GPUs of each machine; 0: CPUs alone."""
    cpus: int | None = None
    """CPU cores of each rank; None: as the site says, which in Slurm is often one."""
    seconds: int | None = None
    """Time limit; None: that of the cluster."""
    port: int = 29400
    """Port of rank 0's machine where ranks meet; Slurm derives one from the number of the job."""
    image: str = ""
    """Container image, for Kubernetes."""
    volumes: Sequence[str] = ()
    """CLAIM:PATH, persistent volume claims and where pods see them."""
    site: Site = field(default_factory=Site)


def job_name(name: str) -> str:
    """A name that every scheduler accepts: at most 52 lower-case letters, digits and `-`, a letter first."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "run"
    return (found if found[0].isalpha() else f"run-{found}")[:52].strip("-")


def parse_seconds(text: str) -> int:
    """Seconds of `90m`, `24h`, `3d` or `HH:MM:SS`. Raises UsageError."""
    if found := re.fullmatch(r"([0-9]+)([smhd])", text):
        seconds = int(found[1]) * _SECONDS[found[2]]
    elif found := re.fullmatch(r"([0-9]+):([0-5][0-9]):([0-5][0-9])", text):
        seconds = int(found[1]) * 3600 + int(found[2]) * 60 + int(found[3])
    else:
        raise UsageError(f"--time {text}: write a time such as 90m, 24h, 3d or 24:00:00")
    if seconds <= WARN_SECONDS:
        raise UsageError(f"--time {text}: the run saves {WARN_SECONDS} s before the end: give it more time than that")
    return seconds


def read_site(path: Path) -> Site:
    """The site of a TOML file. Raises UsageError with the file and the key."""
    try:
        return Site.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"--site {path}: {error.strerror}; it takes a file with [slurm] or [kubernetes]") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise UsageError(f"--site {path}: {problems}") from error
    except ValueError as error:
        raise UsageError(f"--site {path}: {error}") from error


# ---- Slurm

_OURS = {
    **dict.fromkeys(
        ("nodes", "ntasks", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time"), "an option of hornbook launch"
    ),
    **dict.fromkeys(("signal", "requeue", "open-mode", "job-name"), "set by hornbook"),
}
"""Options of sbatch that a site does not say."""


def slurm_script(job: ClusterJob) -> str:
    """A batch script: one task per rank, a signal before the time limit, requeued while the run is not finished."""
    options = [f"--job-name={job.name}", f"--nodes={job.nodes}", f"--ntasks-per-node={job.ranks}"]
    options += [f"--gpus-per-node={job.gpus}"] if job.gpus else []
    options += [f"--cpus-per-task={job.cpus}"] if job.cpus else []
    options += [f"--time={_clock(job.seconds)}"] if job.seconds else []
    if ours := [name for name in job.site.slurm.options if name in _OURS]:
        raise UsageError(f"--site: slurm.options.{ours[0]} is {_OURS[ours[0]]}: leave it out")
    options += [f"--{name}={shlex.quote(str(value))}" for name, value in job.site.slurm.options.items()]
    options += [f"--signal=USR1@{WARN_SECONDS}", "--requeue", "--open-mode=append", f"--output={job.name}-%j.log"]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        f"cd {shlex.quote(job.folder)} || exit {Exit.USAGE:d}",
        *(["export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK"] if job.cpus else []),
        *(f"export {name}={shlex.quote(value)}" for name, value in job.site.slurm.environment.items()),
        *job.site.slurm.lines,
        "said=$(mktemp)",
        "# What srun says of the ranks is read below; stdout goes by.",
        f'{{ srun --kill-on-bad-exit=1 {shlex.join(job.command)} 2>&1 >&3 | tee "$said" >&2; }} 3>&1',
        "code=${PIPESTATUS[0]}",
        "# srun's code is the highest one, which may be that of a rank that it ended: the first one counts.",
        'first=$(sed -n "s/^srun: error: .*: Exited with exit code //p" "$said" | head -n 1); rm -f "$said"',
        "code=${first:-$code}",
        f"# {Exit.RESUMABLE:d}: saved by the signal, or a rank was lost; {Exit.HARDWARE:d}: hardware suspected; "
        "134, 137 and 143: killed. Any other code is final.",
        f"case $code in {Exit.RESUMABLE:d}|{Exit.HARDWARE:d}|134|137|143)",
        f'  if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {REQUEUES} ]; then scontrol requeue "$SLURM_JOB_ID"',
        f'  else echo "not queued again: started {REQUEUES} times before; see what the ranks said" >&2; fi ;;',
        f'  {Exit.STORAGE:d}) scontrol requeuehold "$SLURM_JOB_ID"',
        '     echo "storage full or unwritable: free space, then scontrol release $SLURM_JOB_ID" >&2 ;;',
        "esac",
        "exit $code",
    ]
    return "\n".join(lines) + "\n"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


# ---- Kubernetes


def kubernetes_job(job: ClusterJob) -> str:
    """YAML of a headless Service and an indexed Job with one pod per machine.

    When a pod is lost, the others end with code 75, and each gets a successor of the same index and name: rank 0 is met
    at the name of pod 0, which is resolved anew at every try. With codes that a restart would meet again the Job fails.
    """
    if not job.image:
        raise UsageError("--on k8s needs --image IMAGE: a container image with hornbook and its dependencies")
    namespace = job.site.kubernetes.namespace
    metadata = {"name": job.name} | ({"namespace": namespace} if namespace else {})
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        # Ranks meet before they are ready, so names must be known before that.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": job.name}},
    }
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": sorted(map(int, _FINAL))}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
    deadline = {"activeDeadlineSeconds": job.seconds} if job.seconds else {}
    spec = {
        "completionMode": "Indexed",
        "completions": job.nodes,
        "parallelism": job.nodes,
        # Of the whole Job, not of each index: pods that start alone have nobody to meet. One that is lost ends all.
        "backoffLimit": REQUEUES * job.nodes,
        **deadline,
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": _pod(job)},
    }
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return "\n".join([*_yaml(service), "---", *_yaml(whole)]) + "\n"


def _pod(job: ClusterJob) -> dict[str, object]:
    claims = [_volume(text) for text in job.volumes]
    names = {claim: f"claim-{number}" for number, claim in enumerate(dict.fromkeys(claim for claim, _ in claims))}
    site = job.site.kubernetes
    environ = {
        **site.environment,
        "HORNBOOK_NODES": job.nodes,
        "HORNBOOK_ARRIVAL_SECONDS": ARRIVAL_SECONDS,
        "MASTER_ADDR": f"{job.name}-0.{job.name}",
        "MASTER_PORT": job.port,
    }
    container: dict[str, object] = {
        "name": "train",
        "image": job.image,
        "command": list(job.command),
        "workingDir": job.folder,
        "env": [{"name": name, "value": str(value)} for name, value in environ.items()],
        "volumeMounts": [
            *({"name": names[claim], "mountPath": path} for claim, path in claims),
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    memory = job.ranks * site.memory + site.shared_memory
    needs = {"cpu": str(job.ranks * (job.cpus or site.cpus)), "memory": _mebibytes(memory)}
    needs |= {"nvidia.com/gpu": str(job.gpus)} if job.gpus else {}
    container["resources"] = {"requests": needs, "limits": needs}
    where = {"nodeSelector": site.node_selector} if site.node_selector else {}
    where |= {"tolerations": list(site.tolerations)} if site.tolerations and job.gpus else {}
    shm = {"medium": "Memory", "sizeLimit": _mebibytes(site.shared_memory)}
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in names.items()]
    return {
        "subdomain": job.name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": WARN_SECONDS,
        **where,
        "containers": [container],
        "volumes": [*volumes, {"name": "shm", "emptyDir": shm}],
    }


def _mebibytes(gib: float) -> str:
    return f"{round(1024 * gib)}Mi"


def _volume(text: str) -> tuple[str, str]:
    claim, colon, path = text.partition(":")
    if not colon or not claim or not path.startswith("/"):
        raise UsageError(f"--volume {text}: write CLAIM:PATH, a persistent volume claim and an absolute path")
    return claim, path


def _yaml(value: object, depth: int = 0) -> list[str]:
    """Lines of block YAML; scalars are written as JSON, which YAML contains."""
    pad, lines = "  " * depth, list[str]()
    if isinstance(value, dict):
        for key, each in value.items():
            if isinstance(each, dict | list) and each:
                lines += [f"{pad}{key}:", *_yaml(each, depth + 1)]
            else:
                lines.append(f"{pad}{key}: {json.dumps(each)}")
    elif isinstance(value, list):
        for each in value:
            first, *rest = _yaml(each, depth + 1)
            lines += [f"{pad}- {first.lstrip()}", *rest]
    else:
        lines.append(f"{pad}{json.dumps(value)}")
    return lines


# ---- ssh


def ssh_commands(job: ClusterJob, hosts: Sequence[str], ssh: str = "ssh") -> list[list[str]]:
    """The command of each host, the first of which has rank 0. Raises UsageError for hosts that do not fit."""
    if len(hosts) != job.nodes:
        raise UsageError(f"--hosts names {len(hosts)} machines, and --nodes is {job.nodes}: name as many")
    if wrong := [host for host in hosts if not _HOST.fullmatch(host)]:
        raise UsageError(f"--hosts: {wrong[0]!r} is no name of a machine, such as node1 or me@node1")
    if repeated := [host for number, host in enumerate(hosts) if host in hosts[:number]]:
        raise UsageError(f"--hosts names {repeated[0]} twice: one command starts all ranks of a machine")
    options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15"]
    options += ["-o", "ServerAliveCountMax=4"]
    remote = (_remote(job, number, hosts[0].rpartition("@")[2]) for number in range(job.nodes))
    return [[ssh, *options, host, text] for host, text in zip(hosts, remote, strict=True)]


def ssh_script(commands: Sequence[Sequence[str]]) -> str:
    """A script that runs the commands side by side and ends with the code of one that failed, if any did.

    Each has an input that stays open: a host asks its run to stop when the input ends.
    """
    opens = ['pipe=$(mktemp -u); mkfifo -m 600 "$pipe" || exit 2; exec 3<>"$pipe"; rm "$pipe"']
    lines = [f"{shlex.join(command)} <&3 & runs+=($!)" for command in commands]
    stops = ["trap 'kill \"${runs[@]}\" 2>/dev/null' EXIT", "code=0"]
    ends = ['for run in "${runs[@]}"; do wait "$run" || code=$?; done', "exit $code"]
    return "\n".join(["#!/bin/bash", *opens, *lines, *stops, *ends])


def _remote(job: ClusterJob, node: int, first_host: str) -> str:
    """What a host runs. The run is asked to save and stop when the connection ends: its input ends then.

    It is killed after SAVE_SECONDS, so that no rank outlives a run: one may wait for ranks that are gone.
    """
    environ = {"HORNBOOK_NODES": job.nodes, "HORNBOOK_NODE": node, "MASTER_ADDR": first_host, "MASTER_PORT": job.port}
    variables = " ".join(f"{name}={value}" for name, value in environ.items())
    script = (
        f"echo {shlex.quote(STARTED)} >&2; cd {shlex.quote(job.folder)} || exit {Exit.USAGE:d}; exec 3<&0; "
        f"env {variables} {shlex.join(job.command)} </dev/null 3<&- & run=$!; "
        '{ while read -r; do :; done <&3; kill -HUP "$run"; '
        f'for ((left = {SAVE_SECONDS}; left; left--)); do sleep 1; done; kill -KILL "$run"; '
        "} >/dev/null 2>&1 & watch=$!; "
        'wait "$run"; code=$?; '
        'kill "$watch" 2>/dev/null; exit "$code"'
    )
    return f"bash -c {shlex.quote(script)}"
