"""Scripts for schedulers, read back by the programs or parsers that will read them."""

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hornbook.errors import UsageError
from hornbook.run.launch.cluster import (
    ClusterJob,
    job_name,
    kubernetes_job,
    parse_seconds,
    read_site,
    slurm_script,
    ssh_commands,
    ssh_script,
)

JOB = ClusterJob(
    "gpt-2",
    ["hornbook", "train", "my recipe.toml", "--out", "runs/a", "--optim.betas=[0.9, 0.95]", "--resume", "auto"],
    "/shared/my project",
    nodes=2,
    ranks=8,
    gpus=8,
    seconds=90 * 3600,
)


def check_bash(text: str) -> None:
    """Fails unless bash can read it."""
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_a_batch_script_of_slurm():
    text = slurm_script(JOB)
    check_bash(text)
    options = [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert set(options) >= {
        "--nodes=2",
        "--ntasks-per-node=8",
        "--gpus-per-node=8",
        "--time=90:00:00",
        "--signal=USR1@120",
        "--requeue",
    }
    assert f"srun --kill-on-bad-exit=1 {shlex.join(JOB.command)} 2>&1" in text
    assert "--gpus" not in slurm_script(replace(JOB, gpus=0))


@pytest.mark.parametrize(
    ("code", "before", "requeued"),
    [
        (0, 0, ""),
        (2, 0, ""),
        (75, 0, "requeue 7\n"),
        (137, 0, "requeue 7\n"),
        (143, 0, "requeue 7\n"),
        (8, 49, "requeue 7\n"),
        (75, 50, ""),
        (7, 0, "requeuehold 7\n"),
    ],
)
def test_a_batch_script_is_queued_again_where_a_start_may_help(code: int, before: int, requeued: str):
    script = slurm_script(replace(JOB, folder="/"))
    stand_ins = f'srun() {{ return {code}; }}; scontrol() {{ echo "$@"; }}; SLURM_JOB_ID=7\n'
    stand_ins += f"SLURM_RESTART_COUNT={before}\n"
    done = subprocess.run(["bash"], input=stand_ins + script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, requeued)


@pytest.mark.parametrize(
    ("said", "code", "requeued"),
    [
        (["vm: task 1: Exited with exit code 3", "vm: task 0: Exited with exit code 75"], 3, ""),
        (["vm: tasks 0-1: Exited with exit code 2"], 2, ""),
        (["vm: task 1: Killed", "vm: task 0: Exited with exit code 75"], 75, "requeue 7\n"),
        (["vm: task 1: Out Of Memory", "vm: task 0: Terminated"], 143, "requeue 7\n"),
    ],
)
def test_the_first_rank_that_fails_says_how_a_job_ends(said: list[str], code: int, requeued: str):
    """Of the others srun ends some, and returns the highest of all codes."""
    lines = "; ".join(f"echo 'srun: error: {line}' >&2" for line in said)
    stand_ins = f'srun() {{ echo step >&2; {lines}; return 143; }}; scontrol() {{ echo "$@"; }}; SLURM_JOB_ID=7\n'
    script = stand_ins + slurm_script(replace(JOB, folder="/"))
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (code, requeued)
    assert "step\n" in done.stderr  # what ranks say is shown


def test_a_site_says_partition_memory_variables_and_lines(tmp_path: Path):
    file = tmp_path / "site.toml"
    file.write_text(
        '[slurm]\noptions = { partition = "gpu", account = "nlp", qos = "high", mem = 0 }\n'
        'environment = { A = "b c" }\nlines = ["module load cuda", "echo $A; type module"]\n'
        '[kubernetes]\nnamespace = "ml"\nmemory = 32\nshared_memory = 0.5\nnode_selector = { gpu = "h100" }\n'
    )
    text = slurm_script(replace(JOB, folder="/", site=read_site(file)))
    check_bash(text)
    assert {"#SBATCH --partition=gpu", "#SBATCH --account=nlp", "#SBATCH --qos=high", "#SBATCH --mem=0"} <= set(
        text.splitlines()
    )
    lines = text.splitlines()
    first, srun = lines.index("export A='b c'"), next(at for at, line in enumerate(lines) if "srun --kill" in line)
    assert lines[first + 1 : first + 3] == ["module load cuda", "echo $A; type module"]
    assert first < srun
    service, job = yaml.safe_load_all(kubernetes_job(replace(JOB, image="i", site=read_site(file))))
    assert service["metadata"] == job["metadata"] == {"name": "gpt-2", "namespace": "ml"}
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[slurm]\npartiton = "a"', "slurm.partiton: Extra inputs are not permitted"),
        ("[kubernetes]\nmemory = -1", "kubernetes.memory: Input should be greater than 0"),
        ("[slurm", "site.toml: "),
        ("[slurm]\noptions = { nodes = 3 }", "slurm.options.nodes is an option of hornbook launch"),
        ('[slurm]\noptions = { signal = "B:TERM" }', "slurm.options.signal is set by hornbook"),
    ],
)
def test_a_wrong_site_is_named(tmp_path: Path, text: str, said: str):
    file = tmp_path / "site.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(said)):
        slurm_script(replace(JOB, site=read_site(file)))
    with pytest.raises(UsageError, match=r"--site .*absent"):
        read_site(tmp_path / "absent.toml")


def test_ranks_have_the_cores_that_are_asked_for():
    text = slurm_script(replace(JOB, cpus=8))
    check_bash(text)
    assert "#SBATCH --cpus-per-task=8" in text
    assert "--cpus-per-task" not in slurm_script(JOB)


def test_a_script_over_ssh_ends_as_its_machines_do():
    """Their input stays open while they run: waiting for a line of it times out, where the end of it would not."""
    waits = "read -t 0.2; [ $? -gt 128 ] || exit 9"
    script = ssh_script([["bash", "-c", f"{waits}; exit 75"], ["bash", "-c", waits]])
    check_bash(script)
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, timeout=20, check=False)
    assert done.returncode == 75, done.stderr


def test_an_indexed_job_of_kubernetes():
    text = kubernetes_job(replace(JOB, image="me/hornbook:1", volumes=["data:/shared", "runs:/runs"]))
    service, job = yaml.safe_load_all(text)
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    assert service["spec"]["selector"] == {"job-name": "gpt-2"}
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    assert container["command"] == JOB.command
    assert container["workingDir"] == "/shared/my project"
    environ = {each["name"]: each["value"] for each in container["env"]}
    assert environ["HORNBOOK_NODES"] == "2"
    assert environ["MASTER_ADDR"] == f"gpt-2-0.{pod['subdomain']}"
    needs = {"cpu": "32", "memory": f"{(8 * 16 + 8) * 1024}Mi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": needs, "limits": needs}
    shm = next(each["emptyDir"] for each in pod["volumes"] if each["name"] == "shm")
    assert shm == {"medium": "Memory", "sizeLimit": "8192Mi"}
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    claims = {
        each["name"]: each["persistentVolumeClaim"]["claimName"]
        for each in pod["volumes"]
        if "persistentVolumeClaim" in each
    }
    assert {claim: mounts[name] for name, claim in claims.items()} == {"data": "/shared", "runs": "/runs"}
    (_, cpus) = yaml.safe_load_all(kubernetes_job(replace(JOB, image="i", gpus=0, ranks=2, cpus=3)))
    pod = cpus["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "6", "memory": f"{(2 * 16 + 8) * 1024}Mi"}
    assert "tolerations" not in pod


def test_which_ends_of_a_pod_fail_the_job_and_which_start_it_again():
    (_, job) = yaml.safe_load_all(kubernetes_job(replace(JOB, image="me/hornbook:1")))
    fails, ignores = job["spec"]["podFailurePolicy"]["rules"]
    assert (fails["action"], fails["onExitCodes"]) == ("FailJob", {"operator": "In", "values": [2, 3, 4, 5, 9, 130]})
    assert ignores == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    # Any other end is counted: of the Job as a whole, each loss of a pod ends all of them.
    assert job["spec"]["backoffLimit"] == 50 * 2
    assert "backoffLimitPerIndex" not in job["spec"]
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_a_job_without_an_image_is_refused():
    with pytest.raises(UsageError, match="--image"):
        kubernetes_job(JOB)
    with pytest.raises(UsageError, match="CLAIM:PATH"):
        kubernetes_job(replace(JOB, image="i", volumes=["data"]))


def test_commands_over_ssh():
    commands = ssh_commands(JOB, ["me@node1", "node2"])
    assert [command[-2] for command in commands] == ["me@node1", "node2"]
    for number, command in enumerate(commands):
        check_bash(command[-1])
        _, _, script = shlex.split(command[-1])
        check_bash(script)
        assert f"HORNBOOK_NODES=2 HORNBOOK_NODE={number} MASTER_ADDR=node1 MASTER_PORT=29400" in script


@pytest.mark.parametrize(
    ("hosts", "text"),
    [(["a"], "names 1 machines, and --nodes is 2"), (["a", "a"], "names a twice"), (["a", "-oX=y"], "no name")],
)
def test_hosts_that_do_not_fit_are_refused(hosts: list[str], text: str):
    with pytest.raises(UsageError, match=text):
        ssh_commands(JOB, hosts)


def test_times_and_names():
    assert [parse_seconds(text) for text in ("90m", "24h", "3d", "01:30:05")] == [5400, 86400, 259200, 5405]
    for text in ("", "1", "1:2", "60s", "tomorrow"):
        with pytest.raises(UsageError, match="--time"):
            parse_seconds(text)
    assert job_name("My run_2!") == "my-run-2"
    assert job_name("___") == "run"
    assert job_name("7b") == "run-7b"
