"""What the variables of torchrun and Slurm mean, and what is said when they are broken."""

import pytest

from hornbook.errors import UsageError
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import RankInfo
from hornbook.run.launch import launcher_env
from hornbook.run.launch.launcher_env import Node, first_host, launched, nodes_of, ranks_per_node, world_of
from hornbook.run.launch.rendezvous import Address

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "m", "MASTER_PORT": "29400"}
BATCH = {"SLURM_JOB_ID": "70000", "SLURM_JOB_NODELIST": "n[03-05]", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
STEP = {**BATCH, "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "n[03-05]", "SLURM_STEP_ID": "2"}


POD = {"HORNBOOK_NODES": "2", "JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "run-0.run", "MASTER_PORT": "29400"}


def launcher_rank(environ: dict[str, str], size: int) -> RankInfo | None:
    """The rank in a world of data-parallel ranks."""
    place = launched(environ, ParallelConfig(data=size))
    assert not isinstance(place, Node)
    return place


def address_of(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], size: int = 4) -> tuple[RankInfo, Address]:
    """The place, and where its `connect` would go."""
    asked: list[Address] = []
    monkeypatch.setattr(launcher_env, "open_store", asked.append)
    place = launcher_rank(environ, size)
    assert place is not None
    assert place.connect is not None
    place.connect()
    place.connect()
    (address,) = asked  # opened once, however often it is asked for
    return place, address


def test_outside_of_launchers_and_in_a_world_of_one_hornbook_starts_the_ranks():
    assert launcher_rank({}, 2) is None
    assert launcher_rank({"MASTER_ADDR": "m", "MASTER_PORT": "1"}, 2) is None
    assert launcher_rank({"RANK": "0", "WORLD_SIZE": "1"}, 2) is None
    assert launcher_rank({**STEP, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 2) is None


def test_a_batch_script_of_slurm_is_not_a_task_of_a_step():
    assert launcher_rank(BATCH, 4) is None


def test_a_rank_of_torchrun(monkeypatch: pytest.MonkeyPatch):
    place, address = address_of(monkeypatch, TORCHRUN)
    assert (place.rank, place.size, place.local_rank) == (3, 4, 1)
    assert address == Address("m", 29400, is_rank0=False, agent=False)
    assert address_of(monkeypatch, {**TORCHRUN, "RANK": "0"})[1].is_rank0
    assert address_of(monkeypatch, {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"})[1].agent


MPI = {
    **{f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "1"), ("SIZE", "4"), ("LOCAL_RANK", "1"))},
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "PMIX_NAMESPACE": "1898905601",
}
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}


def test_a_rank_of_mpirun_on_one_machine(monkeypatch: pytest.MonkeyPatch):
    place, address = address_of(monkeypatch, MPI)
    assert (place.rank, place.size, place.local_rank, address.host) == (1, 4, 1, "127.0.0.1")
    assert 61440 <= address.port < 65536
    assert address_of(monkeypatch, MPI | {"PMIX_NAMESPACE": "other"})[1].port != address.port
    assert address_of(monkeypatch, MPI | {"MASTER_PORT": "29400"})[1].port == 29400
    assert address_of(monkeypatch, MPI | {"OMPI_COMM_WORLD_RANK": "0"})[1].is_rank0
    place, address = address_of(monkeypatch, HYDRA)
    assert (place.rank, place.size, place.local_rank, address.host) == (2, 4, 2, "127.0.0.1")
    assert (world_of(MPI), ranks_per_node(MPI), ranks_per_node(HYDRA)) == (4, 4, 4)


@pytest.mark.parametrize(("environ", "local"), [(MPI, "OMPI_COMM_WORLD_LOCAL_SIZE"), (HYDRA, "MPI_LOCALNRANKS")])
def test_ranks_of_mpirun_on_several_machines_need_an_address(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], local: str
):
    with pytest.raises(UsageError, match=r"mpirun started 2 of 4 ranks on this machine .*-x MASTER_ADDR=HOST"):
        launcher_rank(environ | {local: "2"}, 4)
    assert address_of(monkeypatch, environ | {local: "2", "MASTER_ADDR": "n1"})[1].host == "n1"


def test_which_launcher_counts_where_several_have_set_variables(monkeypatch: pytest.MonkeyPatch):
    """In a job of Slurm mpirun starts its agents by srun; srun has variables of PMI too; torchrun may be in all."""
    assert address_of(monkeypatch, STEP | MPI)[0].rank == 1
    assert address_of(monkeypatch, STEP | HYDRA)[0].rank == 2
    assert address_of(monkeypatch, STEP | {"PMI_RANK": "3", "PMI_SIZE": "4"})[0].local_rank == 0
    assert address_of(monkeypatch, MPI | TORCHRUN)[0].rank == 3
    with pytest.raises(UsageError, match="MPI_LOCALNRANKS is not set"):
        launcher_rank({"PMI_RANK": "3", "PMI_SIZE": "4"}, 4)
    with pytest.raises(UsageError, match=r"mpirun \(OMPI_COMM_WORLD_SIZE\) started 4 ranks.*mpirun -np"):
        launcher_rank(MPI, 2)


def test_a_task_of_slurm(monkeypatch: pytest.MonkeyPatch):
    place, address = address_of(monkeypatch, STEP)
    assert (place.rank, place.size, place.local_rank) == (2, 4, 0)
    assert address == Address("n03", 65536 - 4096 + 70002 % 4096, is_rank0=False)
    chosen = {"MASTER_ADDR": "m", "MASTER_PORT": "29400", "WORLD_SIZE": "8"}
    assert address_of(monkeypatch, {**STEP, **chosen})[1] == Address("m", 29400, is_rank0=False)


def test_a_step_of_slurm_may_be_smaller_than_its_job(monkeypatch: pytest.MonkeyPatch):
    place, _ = address_of(monkeypatch, {**STEP, "SLURM_STEP_NUM_TASKS": "3"}, size=3)
    assert place.size == 3


def test_torchrun_inside_of_slurm_is_torchrun(monkeypatch: pytest.MonkeyPatch):
    assert address_of(monkeypatch, {**STEP, **TORCHRUN})[0].rank == 3
    assert launcher_rank({**STEP, "RANK": "0", "WORLD_SIZE": "1"}, 2) is None


@pytest.mark.parametrize(("environ", "launcher"), [(TORCHRUN, "torchrun"), (STEP, "Slurm")])
def test_a_world_of_another_size_names_both_numbers_and_the_remedy(environ: dict[str, str], launcher: str):
    with pytest.raises(
        UsageError, match=rf"{launcher} .* started 4 ranks, and parallel.data is 2: give --parallel.data 4, or start 2"
    ):
        launcher_rank(environ, 2)


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_set_variables_of_torchrun_are_named(name: str):
    with pytest.raises(UsageError, match=f"{name} is not set"):
        launcher_rank({key: value for key, value in TORCHRUN.items() if key != name}, 4)


def test_a_world_size_without_a_rank_is_named():
    with pytest.raises(UsageError, match="RANK is not set"):
        launcher_rank({"WORLD_SIZE": "4"}, 4)


@pytest.mark.parametrize("name", ["SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID"])
def test_half_set_variables_of_slurm_are_named(name: str):
    with pytest.raises(UsageError, match=f"{name} is not set"):
        launcher_rank({key: value for key, value in STEP.items() if key != name}, 4)


@pytest.mark.parametrize(
    ("environ", "name", "value"),
    [
        (TORCHRUN, "RANK", "4"),
        (TORCHRUN, "RANK", "-1"),
        (TORCHRUN, "RANK", "one"),
        (TORCHRUN, "RANK", "\u0663"),
        (TORCHRUN, "WORLD_SIZE", "0"),
        (TORCHRUN, "WORLD_SIZE", "4.0"),
        (TORCHRUN, "LOCAL_RANK", "9" * 30),
        (TORCHRUN, "MASTER_PORT", "0"),
        (TORCHRUN, "MASTER_PORT", "65536"),
        (STEP, "SLURM_PROCID", "4"),
        (STEP, "SLURM_NTASKS", "2(x2)"),
        (STEP, "MASTER_PORT", "http"),
    ],
)
def test_a_broken_number_is_named(environ: dict[str, str], name: str, value: str):
    with pytest.raises(UsageError, match=f"^{name} is '.*': a number"):
        launcher_rank({**environ, name: value}, 4)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("login", "login"),
        ("a,b", "a"),
        ("n[01-03,7],m2", "n01"),
        ("n[7],m2", "n7"),
        ("n[1,3]", "n1"),
        ("rack[2-4]-node[010-020].cluster", "rack2-node010.cluster"),
        ("node-1.site,node-2.site", "node-1.site"),
    ],
)
def test_first_host(nodes: str, host: str):
    assert first_host(nodes) == host


@pytest.mark.parametrize("nodes", ["", ",a", "n[1", "n[1]]", "n[]x y", "-n"])
def test_a_list_that_names_no_node_is_told(nodes: str):
    with pytest.raises(UsageError, match="SLURM_STEP_NODELIST"):
        launcher_rank({**STEP, "SLURM_STEP_NODELIST": nodes}, 4)


def test_one_process_of_each_machine_starts_the_ranks_there(monkeypatch: pytest.MonkeyPatch):
    asked: list[Address] = []
    monkeypatch.setattr(launcher_env, "open_store", asked.append)
    node = launched(POD, ParallelConfig(data=4))
    assert isinstance(node, Node)
    ranks = list(node.ranks())
    assert [(each.rank, each.size, each.local_rank) for each in ranks] == [(2, 4, 0), (3, 4, 1)]
    for each in node.ranks():
        assert each.connect is not None
        each.connect()
    assert asked == [Address("run-0.run", 29400, is_rank0=False)] * 2
    first = launched({**POD, "HORNBOOK_NODE": "0"}, ParallelConfig(data=4))
    assert isinstance(first, Node)
    assert first.number == 0
    assert nodes_of(POD) == 2
    assert launched({**POD, "HORNBOOK_NODES": "1"}, ParallelConfig(data=4)) is None


def test_machines_that_cannot_share_the_ranks_are_told():
    with pytest.raises(UsageError, match="3 ranks do not divide over 2 machines"):
        launched(POD, ParallelConfig(data=3))


@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "MASTER_ADDR", "MASTER_PORT"])
def test_half_set_variables_of_a_machine_are_named(name: str):
    with pytest.raises(UsageError, match=f"{name} is not set"):
        launched({key: value for key, value in POD.items() if key != name}, ParallelConfig(data=4))


def test_a_rank_of_torchrun_in_a_pod_is_a_rank(monkeypatch: pytest.MonkeyPatch):
    assert address_of(monkeypatch, {**POD, **TORCHRUN})[0].rank == 3
    assert nodes_of({**POD, **TORCHRUN}) == 1


def test_what_launchers_say_of_the_world_and_of_machines():
    assert world_of({}) is None
    assert (world_of(TORCHRUN), world_of(STEP), world_of(BATCH)) == (4, 4, None)
    assert ranks_per_node({**TORCHRUN, "LOCAL_WORLD_SIZE": "2"}) == 2
    assert ranks_per_node({**STEP, "SLURM_STEP_TASKS_PER_NODE": "8(x2)"}) == 8
    assert ranks_per_node({**STEP, "SLURM_STEP_TASKS_PER_NODE": "8,4"}) is None
    assert ranks_per_node({}) is None
