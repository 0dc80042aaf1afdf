"""Memory of the host beside a GPU: copies in the right order whenever they are made, and the optimizer's bits.

Without a GPU, copies that are made as late as they may be stand for a stream of their own.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.nn import Parameter

from hornbook.errors import Exit, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.layers.saved_tensors import Rebuilding, cheap
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel import fully_sharded
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.exact import exact_norm
from hornbook.parallel.gradients.gradient_norm import norm_of_shards
from hornbook.parallel.offload import host, offload
from hornbook.parallel.offload.host import CopyStream, HostTensors, HostUpdate
from hornbook.parallel.offload.offload import check_offload
from hornbook.parallel.owners import Owners
from hornbook.parallel.world import World
from hornbook.settings.layout.rules import layout_problems
from hornbook.settings.training import TrainConfig
from tests.gpu import GPU, needs_gpu
from tests.optim.kinds import CASES, IDS, ROLES, config_of, everything, make, same_bits, step
from tests.parallel.cases import whole_shard
from tests.parallel.trajectory import LAYOUTS, Run, perform
from tests.parallel.trajectory import same_bits as same_runs
from tests.ranks import RankServer

Launch = Callable[..., Exit]
Branch = Callable[[Path], list[dict[str, Any]]]
CPU = torch.device("cpu")
AVERAGING = ("schedule_free", "schedule_free_sgd")


class LateCopies:
    """Makes a copy only when something waits for it, or for a later one; the target holds rubbish until then."""

    def __init__(self) -> None:
        self.queue: list[tuple[Tensor, Tensor]] = []
        self.done = self.started_up = 0

    def start(self, target: Tensor, source: Tensor) -> int:
        target.fill_(float("nan"))
        self.queue.append((target, source))
        return len(self.queue)

    def wait(self, ticket: int) -> None:
        for target, source in self.queue[self.done : ticket]:
            target.copy_(source)
        self.done = max(self.done, ticket)

    @property
    def under_way(self) -> int:
        """Bytes on their way."""
        return sum(source.nbytes for _, source in self.queue[self.done :])


def gradient(x: Tensor, layers: int = 6) -> Tensor:
    y = x
    for _ in range(layers):
        y = cheap(torch.tanh, y @ x) + y.exp().clamp(max=2.0)
    return torch.autograd.grad(y.square().sum(), x)[0]


@pytest.mark.parametrize("rebuild", [False, True])
@pytest.mark.parametrize("room", [0, 1, 2**12 * 3, 2**30])
def test_no_value_is_read_before_its_copy(room: int, rebuild: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever room there is for copies under way; and no more is under way than that, and the one just begun."""
    monkeypatch.setattr(host, "BETWEEN", room)
    x = torch.randn(32, 32, requires_grad=True)
    copies, most = LateCopies(), 0

    def watched(tensor: Tensor) -> Any:
        nonlocal most
        kept = tensors.pack(tensor)
        most = max(most, copies.under_way)
        return kept

    tensors = HostTensors(copies, CPU, 1)
    hooks = watched, tensors.unpack
    with Rebuilding(hooks) if rebuild else torch.autograd.graph.saved_tensors_hooks(*hooks):
        found = gradient(x)
    assert torch.equal(found, gradient(x))
    assert most <= room
    assert copies.queue


def test_what_has_not_left_is_not_copied_back_and_equal_tensors_go_once() -> None:
    copies = LateCopies()
    tensors = HostTensors(copies, CPU, 1)
    x = torch.randn(8, 8).T
    first, again, part = tensors.pack(x), tensors.pack(x), tensors.pack(x[1:])
    assert first is again
    assert part is not first
    assert torch.equal(tensors.unpack(part), x[1:])
    assert torch.equal(tensors.unpack(first), x)
    assert len(copies.queue) == 2
    assert torch.equal(tensors.unpack(first), x)  # a second use: it comes up now
    assert tensors.unpack(first).stride() == x.stride()
    changed = tensors.pack(x.add_(1))
    assert changed is not first


def test_backward_starts_the_way_up_of_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BETWEEN", 2 * 64)
    copies = LateCopies()
    tensors = HostTensors(copies, CPU, 1)
    kept = [tensors.pack(torch.full((16,), float(number))) for number in range(6)]  # 64 bytes each
    assert [each.on_device is not None for each in kept] == [False] * 4 + [True] * 2
    for number in reversed(range(6)):
        assert float(tensors.unpack(kept[number]).mean()) == number
        ahead = [each.on_device is not None for each in kept[:number]]
        assert ahead == [place >= number - 2 for place in range(number)]
    assert len(copies.queue) == 6 + 4


def test_parameters_small_tensors_and_those_elsewhere_stay() -> None:
    tensors = HostTensors(LateCopies(), CPU, 64)
    for tensor in (Parameter(torch.ones(99)), torch.ones(3), torch.ones(99, device="meta")):
        assert tensors.pack(tensor) is tensor
        assert tensors.unpack(tensor) is tensor


# ---- The optimizer


def hosted(named: dict[str, Parameter], config: Any) -> Optimizer:
    owners = Owners({name: whole_shard(each) for name, each in named.items()}, World(CPU))
    return build_optimizer(named, ROLES, config, None, None, HostUpdate(owners, CPU))


@pytest.mark.parametrize(("kind", "more"), CASES, ids=IDS)
def test_an_update_on_the_host_has_the_bits_of_one_in_place(kind: str, more: dict[str, Any]) -> None:
    """With refused steps, and weights that others change in between."""
    if kind in AVERAGING:
        with pytest.raises(UsageError, match=r"parallel\.offload\.optimizer.*stay on the device"):
            check_offload(
                ParallelConfig.model_validate({"offload": {"kind": "cpu", "optimizer": True}}).offload,
                GPU,
                config_of(kind),
            )
        return
    config = config_of(kind, **more)
    named, optimizer = make(config)
    twins, _ = make(config)
    other = hosted(twins, config)
    for seed in range(5):
        flag = torch.tensor(float(seed == 2))
        step(named, optimizer, seed, flag)
        step(twins, other, seed, flag)
        if seed == 3:
            for each in (named, twins):
                with torch.no_grad():
                    each["a.weight"].mul_(0.5)
        assert same_bits(everything(named, optimizer), everything(twins, other))
    assert other.asks_host


def test_values_go_down_only_where_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    named, _ = make(config_of("adamw"))
    other, copied = hosted(named, config_of("adamw")), list[int]()
    plain = Tensor.copy_
    monkeypatch.setattr(Tensor, "copy_", lambda x, *a, **more: copied.append(x.numel()) or plain(x, *a, **more))
    counts = []
    for seed in range(3):
        copied.clear()
        step(named, other, seed)
        counts.append(len(copied))
    assert counts == [9, 6, 6]  # values, gradients down, values up


@pytest.fixture
def as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU counts as a GPU: what is held on its host is held beside it."""
    monkeypatch.setattr(offload, "is_gpu", lambda _: True)
    monkeypatch.setattr(offload, "SMALLEST", 1)


def saved(folder: Path, step: int = 12) -> list[bytes]:
    checkpoint = RunDir(folder).checkpoints / f"step-{step:08d}"
    return [path.read_bytes() for path in sorted(checkpoint.rglob("*.safetensors"))]


@pytest.mark.usefixtures("as_gpu")
@pytest.mark.parametrize(
    ("where", "more"),
    [
        ("cpu", []),
        ("cpu", ["optim=muon", "train.average=mean"]),
        ("disk", ["parallel.offload.activations=false", "optim=adamw8bit"]),
    ],
    ids=["adamw", "muon, averaged", "8-bit on disk"],
)
def test_a_run_has_the_same_bits(
    tmp_path: Path, launch_run: Launch, branch: Branch, where: str, more: list[str]
) -> None:
    """Saved, and resumed."""
    launch_run(tmp_path / "plain", *(each for each in more if "offload" not in each))
    settings = [f"parallel.offload={where}", "parallel.offload.optimizer=true", *more]
    assert launch_run(tmp_path / "run", *settings) == Exit.DONE
    assert branch(tmp_path / "run") == branch(tmp_path / "plain")
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")
    for number in (8, 12):
        (RunDir(tmp_path / "run").checkpoints / f"step-{number:08d}").rename(tmp_path / f"gone-{number}")
    assert launch_run(tmp_path / "run", mode="resume") == Exit.DONE
    assert saved(tmp_path / "run") == saved(tmp_path / "plain")


@pytest.mark.usefixtures("as_gpu")
def test_an_optimizer_that_averages_is_refused_before_the_run(tmp_path: Path, launch_run: Launch) -> None:
    with pytest.raises(UsageError, match=r"parallel\.offload\.optimizer: ScheduleFree evaluates.*another optimizer"):
        launch_run(tmp_path / "run", "parallel.offload=cpu", "parallel.offload.optimizer=true", "optim=schedule_free")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("world", "layout", "kind"),
    [(2, "none", "adamw"), (2, "optimizer", "muon"), (4, "hybrid", "adamw"), (2, "everything", "lamb")],
)
def test_shards_are_updated_on_the_host(
    run_ranks: RankServer, tmp_path: Path, world: int, layout: str, kind: str
) -> None:
    run = Run(world, **LAYOUTS[layout], optimizer=kind, steps=3, microbatches=4)
    expected = perform(run_ranks, run, tmp_path / "device")
    assert same_runs(perform(run_ranks, replace(run, host=True), tmp_path / "host"), expected)


# ---- Weights


def lend(_: str) -> None:
    """What `Run.before` calls: the CPU of a rank counts as a GPU, and FSDP holds weights on its host."""
    offload.is_gpu = lambda _: True
    plain = fully_sharded.fully_shard

    def watched(*args: Any, **more: Any) -> Any:
        assert isinstance(more["offload_policy"], CPUOffloadPolicy)
        return plain(*args, **more)

    fully_sharded.fully_shard = watched


@pytest.mark.parametrize(
    ("layout", "more"),
    [
        ("everything", {"experts": True, "clip": "zscore", "penalty": 0.01, "spoil": (1, 2)}),
        ("everything", {"exact": True, "optimizer": "muon"}),
        ("everything", {"optimizer": "schedule_free", "clip": "adaptive", "stages": 2}),
        ("hybrid", {"precision": "fp16"}),
    ],
    ids=["experts", "exact", "pipeline", "hybrid"],
)
def test_shards_on_the_host_have_the_same_bits(
    run_ranks: RankServer, tmp_path: Path, layout: str, more: dict[str, Any]
) -> None:
    settings = {"world": 2, "steps": 3, "microbatches": 4, **LAYOUTS[layout], **more}
    expected = perform(run_ranks, Run(**settings), tmp_path / "device")
    held = Run(**settings, held=True, before=f"{__name__}:lend:")
    assert same_runs(perform(run_ranks, held, tmp_path / "host"), expected)


def test_norms_of_shards_on_the_host_are_on_the_device() -> None:
    """torch's `meta` stands for a GPU."""
    world, shard = World(torch.device("meta")), whole_shard(Parameter(torch.ones(4, 3)))
    shard.tensor.grad = torch.ones(4, 3)
    assert norm_of_shards({"a": shard}, [shard.tensor.grad], world).is_meta
    assert exact_norm({"a": shard}, world).is_meta


def test_weights_on_the_host_need_ranks_that_share_them() -> None:
    held = {"kind": "cpu", "optimizer": True, "parameters": True}
    shared = {"data": 2, "shard": "everything"}
    for section, keys in (
        ({**shared, "offload": held}, []),
        ({**shared, "data": 1, "offload": held}, ["parallel.offload.parameters"]),
        ({**shared, "shard": "gradients", "offload": held}, ["parallel.offload.parameters"]),
        ({**shared, "offload": {**held, "optimizer": False}}, ["parallel.offload.optimizer"]),
    ):
        config = ParallelConfig.model_validate(section)
        assert [key for key, _ in layout_problems(config, TrainConfig(), ModelConfig())] == keys


# ---- On the day there is a GPU


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("room", [0, 2**20, 2**28])
def test_copies_beside_computing_change_no_bit(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under CUDA's own judge of waits, with little room, and memory that is reused at once."""
    monkeypatch.setattr(host, "BETWEEN", room)
    x = (torch.randn(512, 512, device=GPU) / 30).requires_grad_()
    expected, copies = gradient(x, 24), CopyStream(GPU)
    for judged in (False, True, True):  # the first pass makes the pages that later ones use again
        torch.cuda.set_sync_debug_mode("error" if judged else "default")
        try:
            with torch.autograd.graph.saved_tensors_hooks(*HostTensors(copies, GPU, 1).hooks()):
                found = gradient(x, 24)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(found, expected)


@pytest.mark.gpu
@needs_gpu
def test_less_is_held_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "BETWEEN", 2**24)
    x, peaks = (torch.randn(1024, 1024, device=GPU) / 40).requires_grad_(), []
    for hooks in (None, HostTensors(CopyStream(GPU), GPU).hooks()):
        torch.cuda.reset_peak_memory_stats()
        if hooks is None:
            gradient(x, 40)
        else:
            with torch.autograd.graph.saved_tensors_hooks(*hooks):
                gradient(x, 40)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < peaks[0] / 2


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", ["adamw", "muon", "adamw8bit"])
def test_the_host_updates_as_the_cpu_does(kind: str) -> None:
    """Parameters on a GPU, updated on the host, have the bits of an update on a CPU; the state stays there."""
    config = config_of(kind)
    named, optimizer = make(config)
    on_gpu = {name: Parameter(each.detach().to(GPU)) for name, each in named.items()}
    owners = Owners({name: whole_shard(each) for name, each in on_gpu.items()}, World(GPU))
    other = build_optimizer(on_gpu, ROLES, config, None, None, HostUpdate(owners, GPU))
    for seed in range(4):
        step(named, optimizer, seed)
        for name, each in named.items():
            on_gpu[name].grad = None if each.grad is None else each.grad.to(GPU)
        other.step(torch.zeros((), device=GPU))
        assert all(torch.equal(on_gpu[name].cpu(), each) for name, each in named.items())
    assert all(tensor.device == CPU for _, _, tensor in other.state())
