"""What ranks do in the distributed tests of this folder: `tests/parallel/cases.py:NAME`, called by `run_ranks`."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from hornbook.data.batch import rank_share
from hornbook.model.config.mlp_config import GLUConfig
from hornbook.model.mlp.mlp import GLU
from hornbook.parallel import world as world_module
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.exact import TreeSum, exact_all_reduce_, exact_norm, fill_neutral_
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.traffic.fsdp import ExactReduceScatter
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.settings.training import TrainConfig

CPU = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})


def parallel(rank_info: RankInfo, **settings: Any) -> ParallelConfig:
    """The `[parallel]` section of this world."""
    return ParallelConfig.model_validate({"data": rank_info.size, **settings})


def whole_shard(parameter: nn.Parameter) -> ParameterShard:
    """A parameter that this rank holds whole."""
    return ParameterShard(parameter, tuple(parameter.shape), (0,) * parameter.dim())


def say(rank_info: RankInfo, *words: Any) -> dict[str, Any]:
    """Answer with rank and arguments, and what the process looks like."""
    return {"rank": rank_info.rank, "words": words, "pid": os.getpid(), "threads": torch.get_num_threads()}


def follow(rank_info: RankInfo) -> int:
    """What each rank goes on with, where each would say something else."""
    with distributed(parallel(rank_info), CPU, rank_info) as world:
        return world.broadcast(7 + rank_info.rank)


def enter(rank_info: RankInfo, late: int) -> list[float]:
    """When this rank had done its part of setting up, and when it was let in; the rank `late` is slow."""
    real, done = world_module.init_device_mesh, []

    def slow(*args: Any, **settings: Any) -> Any:
        mesh = real(*args, **settings)
        time.sleep(0.5 * (rank_info.rank == late))
        done.append(time.monotonic())
        return mesh

    world_module.init_device_mesh = slow
    with distributed(parallel(rank_info), CPU, rank_info):
        return [*done, time.monotonic()]


def fail(rank_info: RankInfo, rank: int, how: str) -> None:
    """One rank fails while the others wait for it."""
    with distributed(parallel(rank_info), CPU, rank_info) as world:
        if rank_info.rank == rank and how == "raise":
            raise ValueError("the rank has a reason")
        if rank_info.rank == rank and how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank_info.rank == rank and how == "hang":
            time.sleep(600)
        world.barrier()


def orphan(rank_info: RankInfo, folder: str) -> None:
    """Kill the server; then write to the folder for as long as one lives."""
    (Path(folder) / f"{rank_info.rank}").write_text(str(os.getpid()))
    if rank_info.rank == 0:
        while not (Path(folder) / "1").exists() or not (Path(folder) / "1").read_text():
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def leaves(count: int, sizes: tuple[int, ...], seed: int) -> list[list[Tensor]]:
    """For each microbatch a list of tensors with elements of many magnitudes, zeros of both signs among them."""
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(count):
        leaf = []
        for size in sizes:
            exponents = torch.randint(-20, 20, (size,), generator=generator)
            values = torch.randn(size, generator=generator) * 2.0**exponents
            kind = torch.randint(0, 4, (size,), generator=generator)
            values[kind == 0], values[kind == 1] = 0.0, -0.0
            leaf.append(values)
        drawn.append(leaf)
    return drawn


SIZES = (1, 5, 64, 1000)


def sum_leaves(rank_info: RankInfo, counts: list[int], seed: int) -> list[list[list[str]]]:
    """Sums of so many leaves, for each count: [count][tensor][element], as this rank has them at the end."""
    with distributed(parallel(rank_info), CPU, rank_info) as world:
        return [[as_hex(total) for total in _sum_over_ranks(world, leaves(count, SIZES, seed))] for count in counts]


def _sum_over_ranks(world: World, drawn: list[list[Tensor]]) -> list[Tensor]:
    tree, rounds = TreeSum(), -(-len(drawn) // world.size)
    share = list(rank_share(len(drawn), world.data_rank, world.data_size))
    for number in range(rounds):
        mine = [tensor.clone() for tensor in drawn[share[number] if number < len(share) else 0]]
        if number >= len(share):
            fill_neutral_(mine)
        if world.size > 1:
            exact_all_reduce_(mine)
        tree.push(mine)
    return tree.total()


def as_hex(tensor: Tensor) -> list[str]:
    """Every element to the bit, the sign of a zero and NaN included."""
    return [value.hex() for value in tensor.double().tolist()]


def fsdp_gradients(rank_info: RankInfo, count: int, replicas: int) -> dict[str, list[str]]:
    """This rank's part of the gradients of a matrix and a bias over `count` microbatches, summed inside fully_shard."""
    with distributed(parallel(rank_info, replicas=replicas, shard="everything"), CPU, rank_info) as world:
        torch.manual_seed(1)
        model = nn.Linear(6, 8)
        inputs = torch.randn(count, 6) * 2.0 ** torch.randint(-12, 12, (count, 1))
        comm = ExactReduceScatter()
        if world.mesh is not None:
            fully_shard(model, mesh=world.mesh["shard"])
            model.set_gradient_divide_factor(1.0)
            model.set_force_sum_reduction_for_comms(True)
            model.set_custom_reduce_scatter(comm)
        tree, share = TreeSum(), list(rank_share(count, world.data_rank, world.data_size))
        for number in range(-(-count // world.size)):
            comm.is_empty = number >= len(share)
            model(inputs[share[number] if number < len(share) else 0][None]).square().sum().backward()
            gradients = [getattr(each.grad, "_local_tensor", each.grad) for each in model.parameters()]
            model.zero_grad(set_to_none=True)
            if replicas > 1:
                assert world.mesh is not None
                exact_all_reduce_(gradients, world.mesh["replica"].get_group())
            tree.push(gradients)
        return {name: as_hex(total.flatten()) for name, total in zip(("weight", "bias"), tree.total(), strict=True)}


def norm(rank_info: RankInfo, shapes: list[list[int]], replicas: int, seed: int) -> str:
    """The exact norm of gradients cut by rows over the ranks of each replica."""
    with distributed(parallel(rank_info, replicas=replicas, shard="everything"), CPU, rank_info) as world:
        return float(exact_norm(cut(world, shapes, replicas, seed), world)).hex()


def cut(world: World, shapes: list[list[int]], replicas: int, seed: int) -> dict[str, ParameterShard]:
    """Parameters with random gradients, cut as torch cuts: chunks of rows, the last ones short or empty."""
    generator = torch.Generator().manual_seed(seed)
    replica, shard = divmod(world.rank, world.size // replicas)
    shards = {}
    for number, shape in enumerate(shapes):
        gradient = torch.randn(shape, generator=generator) * 3.0 ** torch.randint(-9, 9, shape, generator=generator)
        rows = -(-shape[0] // (world.size // replicas))
        first, last = min(rows * shard, shape[0]), min(rows * (shard + 1), shape[0])
        tensor = nn.Parameter(torch.zeros(last - first, *shape[1:]))
        tensor.grad = gradient[first:last].clone()
        start = (first, *(0 for _ in shape[1:]))
        shards[str(number)] = ParameterShard(tensor, tuple(shape), start, number % replicas == replica)
    return shards


def save_ranks(rank_info: RankInfo, folder: str) -> None:
    """Every rank writes a tensor of its own."""
    save_file({"rank": torch.tensor([rank_info.rank])}, Path(folder) / f"{rank_info.rank}.safetensors")


def uneven_order(rank_info: RankInfo) -> list[float]:
    """What an ordinary all-reduce makes of one round, to show that it is not the fixed tree's sum."""
    with distributed(parallel(rank_info), CPU, rank_info):
        mine = leaves(rank_info.size, (1000,), 3)[rank_info.rank][0]
        dist.all_reduce(mine)
        return mine.tolist()


class CopyToAxis(torch.autograd.Function):
    """The values as they are; backward adds the gradients of the ranks of an axis (f of arXiv 1909.08053)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, axis: world_module.Axis) -> Tensor:
        ctx.world, ctx.axis = world, axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.world.all_reduce_sum(grads[0].clone(), [ctx.axis]), None, None


class ReduceFromAxis(torch.autograd.Function):
    """The sum over the ranks of an axis; backward leaves gradients as they are (g of arXiv 1909.08053)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, axis: world_module.Axis) -> Tensor:
        del ctx
        return world.all_reduce_sum(x.clone(), [axis])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        del ctx
        return grads[0], None, None


def divided_mlp(rank_info: RankInfo) -> list[float]:
    """Differences of a GLU whose columns, then rows, two ranks of the axis `tensor` hold, from one that is whole."""
    world_module.axis_sizes = lambda _: {"replica": rank_info.size // 2, "tensor": 2}
    with distributed(parallel(rank_info), CPU, rank_info) as world:
        torch.manual_seed(3 + world.axis_rank(["replica"]))  # replicas differ: only tensor ranks are to be added
        whole, own = (GLU(6, hidden, GLUConfig()).double() for hidden in (10, 5))
        for each in whole.parameters():
            nn.init.normal_(each)
        half = slice(5 * world.axis_rank(["tensor"]), 5 * world.axis_rank(["tensor"]) + 5)
        cuts = {"gate.weight": (half,), "up.weight": (half,), "down.weight": (slice(None), half)}
        own.load_state_dict({name: each[cuts[name]] for name, each in whole.state_dict().items()})
        own.register_forward_pre_hook(lambda _, args: (CopyToAxis.apply(args[0], world, "tensor"),))
        own.register_forward_hook(lambda _, _args, y: ReduceFromAxis.apply(y, world, "tensor"))
        x, seen = torch.randn(2, 3, 6).double(), []
        for model in (whole, own):
            read = x.clone().requires_grad_()
            y = model(read)
            y.square().sum().backward()
            seen.append([y.detach(), read.grad, *(each.grad for each in model.parameters())])
        names = [(), (), *(cuts[name] for name, _ in whole.named_parameters())]
        pairs = zip(names, *seen, strict=True)
        return [float((expected[part] - found).abs().max()) for part, expected, found in pairs]
