"""`hornbook launch`: start a run on several machines, through Slurm, Kubernetes or ssh."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hornbook.cli.result import Options, Result
from hornbook.cli.shell import DryRun, Words, resolve_words, runs_folder, say, split_target
from hornbook.errors import Exit, UsageError
from hornbook.files.durable import write_atomic
from hornbook.parallel.config import axis_ranks
from hornbook.settings.layout.world import check_world, fill_world, warning_about_nodes
from hornbook.settings.resolve import Resolved
from hornbook.settings.schema import leaves
from hornbook.settings.sources import environment_source
from hornbook.settings.toml import dotted

if TYPE_CHECKING:
    from hornbook.run.launch.cluster import ClusterJob

On = Literal["slurm", "k8s", "ssh"]
_SUBMIT = {"slurm": ("sbatch",), "k8s": ("kubectl", "apply", "-f")}
_ENDING = {"slurm": "sbatch", "k8s": "yaml", "ssh": "sh"}


@dataclass(frozen=True)
class LaunchOptions(Options):
    """The machines, and what they run."""

    on: Annotated[On, typer.Option(help="What starts processes on the machines.")]
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="Machines.")]
    gpus: Annotated[int, typer.Option(metavar="G", min=0, help="GPUs of each machine; 0: CPUs alone.")] = 0
    ranks: Annotated[
        int | None, typer.Option(metavar="R", min=1, help="Ranks of each machine; by default one per GPU.")
    ] = None
    hosts: Annotated[str, typer.Option(metavar="A,B", help="ssh: the machines; the first has rank 0.")] = ""
    spares: Annotated[str, typer.Option(metavar="C,D", help="ssh: machines that take the places of lost ones.")] = ""
    restarts: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="ssh: times that a run that lost machines or ranks is started again."),
    ] = 3
    time: Annotated[str, typer.Option(help="Time limit: 90m, 24h, 3d, 24:00:00; the run saves before its end.")] = ""
    image: Annotated[str, typer.Option(help="k8s: container image.")] = ""
    volume: Annotated[list[str] | None, typer.Option(metavar="CLAIM:PATH", help="k8s: volumes of the pods.")] = None
    cpus: Annotated[int | None, typer.Option(metavar="C", min=1, help="slurm, k8s: CPU cores of each rank.")] = None
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="HORNBOOK_SITE",
            help="slurm, k8s: partition, memory, modules ... of a site, in TOML.",
        ),
    ] = None
    port: Annotated[int, typer.Option(min=1, max=65535, help="k8s, ssh: port where ranks meet.")] = 29400
    program: Annotated[str, typer.Option(help="The command `hornbook` on the machines.")] = "hornbook"
    folder: Annotated[Path | None, typer.Option(help="Working directory there; by default this one.")] = None
    data: Annotated[Path | None, typer.Option(help="A folder written by `hornbook tokenize`.")] = None
    out: Annotated[Path | None, typer.Option(help="Run directory; by default runs/NAME.")] = None
    script: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write; by default NAME.ENDING.")] = None
    dry_run: DryRun = False

    @property
    def each(self) -> int:
        """Ranks of each machine."""
        return self.ranks or max(self.gpus, 1)


def launch(words: Words = None, *, options: LaunchOptions) -> Result | Exit:
    """Start a run on several machines, or with --dry-run print the script that would. All must see RECIPE, --data and
    --out.

    slurm: writes a batch script and submits it. k8s: writes an indexed Job and applies it. ssh: runs `hornbook train`
    on every machine, until all have ended; Ctrl-C saves and stops. Where a machine is lost a spare takes its place, or
    the others go on alone.
    """
    from hornbook.run.launch.cluster import (
        ClusterJob,
        Site,
        job_name,
        kubernetes_job,
        parse_seconds,
        read_site,
        slurm_script,
    )

    resolved, command = _command(words, options.nodes * options.each, options)
    job = ClusterJob(
        job_name(resolved.recipe.name),
        command,
        str(options.folder or Path.cwd()),
        options.nodes,
        options.each,
        options.gpus,
        port=options.port,
        seconds=parse_seconds(options.time) if options.time else None,
        image=options.image,
        volumes=options.volume or (),
        cpus=options.cpus,
        site=Site() if options.site is None else read_site(options.site),
    )
    _warn(resolved, job)
    if options.on == "ssh":
        if options.time:
            raise UsageError("--time is for schedulers: over ssh, `timeout -s USR1 24h hornbook launch ...` does it")

        def fewer(machines: int) -> ClusterJob:
            return replace(job, nodes=machines, command=_command(words, machines * job.ranks, options)[1])

        return _over_ssh(job, fewer, options)
    text = slurm_script(job) if options.on == "slurm" else kubernetes_job(job)
    if options.dry_run:
        return Result({"on": options.on, "script": text}, text.rstrip("\n"))
    return _submit(options.on, text, options.script or Path(f"{job.name}.{_ENDING[options.on]}"))


def _command(words: list[str] | None, world: int, options: LaunchOptions) -> tuple[Resolved, list[str]]:
    """(the recipe in a world of so many ranks, the command that every machine runs)."""
    (target, overrides), data = split_target(words), options.data
    given = resolve_words(words, *([] if data is None else [f"data.path={data}"]))
    resolved = fill_world(given, world, "as --nodes and --gpus ask", data=True)
    check_world(resolved.recipe.parallel, world, f"--nodes and --gpus ask for {world} ranks")
    if resolved.recipe.data.path is None:
        raise UsageError("missing --data DATA: a folder made by `hornbook tokenize`, where all machines see it")
    run = options.out or runs_folder() / resolved.recipe.name
    filled = [f"--{key}={value}" for key, value in _filled(given, resolved)]
    named = ([] if target is None else [target]) + ([] if data is None else ["--data", str(data)])
    settings = [*named, "--out", str(run), *_of_environment(), *(f"--{word}" for word in overrides), *filled]
    return resolved, [*shlex.split(options.program), "train", *settings, "--resume", "auto"]


def _of_environment() -> list[str]:
    """Settings of `HORNBOOK_SET` and the like as words: other machines do not have the variables of this one."""
    return [f"--{dotted(path)}={given.value}" for path, given in leaves(environment_source(os.environ).tree)]


def _filled(given: Resolved, resolved: Resolved) -> list[tuple[str, int]]:
    """The axes that were filled, and their ranks."""
    before, after = axis_ranks(given.recipe.parallel), axis_ranks(resolved.recipe.parallel)
    return [(key, size) for key, size in after.items() if before[key] != size]


def _warn(resolved: Resolved, job: "ClusterJob") -> None:

    if text := warning_about_nodes(resolved.recipe.parallel, job.ranks):
        say(f"warning: {text}")


def _submit(on: On, text: str, file: Path) -> Result:
    """Write the script and hand it over. Raises UsageError where there is no scheduler, or another file."""
    if file.exists() and file.read_text(encoding="utf-8") != text:
        raise UsageError(f"{file} exists and is another script: remove it, or name another with --script")
    write_atomic(file, text)
    submit = _SUBMIT[on]
    if shutil.which(submit[0]) is None:
        raise UsageError(f"{file} is written, but there is no {submit[0]} here: run `{' '.join(submit)} {file}` there")
    done = subprocess.run([*submit, str(file)], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        raise UsageError(f"{file} is written, but `{' '.join(submit)}` refused it: {said}")
    if on == "k8s" and re.search(r"^job\S* (unchanged|configured)", done.stdout, re.MULTILINE):
        raise UsageError(
            f"the Job of {file} is there already, and is not started again: `kubectl delete -f {file}` first"
        )
    return Result({"on": on, "file": str(file), "answer": done.stdout.strip()}, done.stdout.strip())


def _over_ssh(job: "ClusterJob", fewer: "Callable[[int], ClusterJob]", options: LaunchOptions) -> Result | Exit:
    """`fewer`: the job on so many machines; raises UsageError where the run does not divide over them."""
    from hornbook.run.launch.cluster import ssh_commands, ssh_script

    hosts, spares = ([host for host in text.split(",") if host] for text in (options.hosts, options.spares))
    ssh, every = os.environ.get("HORNBOOK_SSH", "ssh"), [*hosts, *spares]
    commands = ssh_commands(job, hosts, ssh)
    ssh_commands(replace(job, nodes=len(every)), every, ssh)  # names of spares that are none, or are there twice
    if options.dry_run:
        return Result({"on": "ssh", "commands": commands}, ssh_script(commands))
    from hornbook.run.launch.remote_machines import run_again

    return run_again(hosts, spares, options.restarts, lambda found: ssh_commands(fewer(len(found)), found, ssh))
