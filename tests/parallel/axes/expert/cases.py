"""What ranks do in the tests of this folder, called by `run_ranks`."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from hornbook.model.mlp import grouped
from hornbook.model.mlp.grouped import Weights, grouped_glu
from hornbook.parallel import world as world_module
from hornbook.parallel.axes.expert import token_exchange as exchange_module
from hornbook.parallel.axes.expert.dispatch import Dispatcher
from hornbook.parallel.axes.expert.token_exchange import Exchange
from hornbook.parallel.axes.tensor.divide import portion
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.settings.training import TrainConfig

CPU = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
WIDTH, HIDDEN, ACTIVE = 8, 12, 3
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


def serve(rank_info: RankInfo, cases: list[dict[str, Any]]) -> list[dict[str, float]]:
    """For each case the largest differences of the dispatcher's results from those of `grouped_glu` in one process,
    relative to the largest value."""
    with distributed(ParallelConfig.model_validate({"expert": rank_info.size}), CPU, rank_info) as world:
        return [_serve(world, **case) for case in cases]


def _serve(
    world: World,
    experts: int,
    tokens: list[int],
    choose: str = "any",
    dtype: str = "float64",
    activation: Any = "silu",
    gathers: bool = False,
) -> dict[str, float]:
    """tokens: of each rank. choose: which experts they take."""
    values = [_values(experts, count, choose, DTYPES[dtype], seed) for seed, count in enumerate(tokens)]
    matrices = _matrices(experts, DTYPES[dtype])
    x, chosen, weights = (torch.cat(each) for each in zip(*values, strict=True))
    expected = _outcome(grouped_glu, x, chosen, weights, matrices, activation)
    exchange = Exchange(world, "expert")
    exchange.gathers |= gathers
    dispatcher = Dispatcher(exchange, experts, layer=0)
    own = slice(*portion(experts, exchange.size, exchange.rank)[:2])
    mine = Weights(*(each[own] for each in matrices))
    found = _outcome(dispatcher, *values[exchange.rank], mine, activation)
    first = sum(tokens[: exchange.rank])
    rows = slice(first, first + tokens[exchange.rank])
    kept = {name: each[rows if name in ("y", "x", "weights") else own] for name, each in expected.items()}
    return {name: _difference(each, kept[name], expected[name]) for name, each in found.items()}


def _values(experts: int, count: int, choose: str, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their experts, the routing weights."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    chosen = torch.rand(count, experts, generator=generator).topk(ACTIVE).indices
    if choose == "last":  # one rank serves all, the others none
        chosen = (experts - 1 - torch.arange(ACTIVE)).expand(count, -1).contiguous()
    if choose == "few":  # some choices find no room, of some tokens none does
        chosen = chosen.masked_fill(torch.rand(count, ACTIVE, generator=generator) < 0.6, experts)
    weights = torch.rand(count, ACTIVE, generator=generator, dtype=torch.float64)
    return x, chosen, weights.to(torch.promote_types(dtype, torch.float32))


def _matrices(experts: int, dtype: torch.dtype) -> Weights:
    generator = torch.Generator().manual_seed(77)
    shapes = (experts, HIDDEN, WIDTH), (experts, HIDDEN, WIDTH), (experts, WIDTH, HIDDEN)
    wide = torch.promote_types(dtype, torch.float32)
    return Weights(*(torch.randn(shape, generator=generator, dtype=torch.float64).to(wide) for shape in shapes))


def _outcome(
    products: Any, x: Tensor, experts: Tensor, weights: Tensor, matrices: Weights, activation: Any
) -> dict[str, Tensor]:
    """Outputs, and the gradients of everything that has one."""
    leaves = [each.clone().requires_grad_() for each in (x, weights, *matrices)]
    y = products(leaves[0], experts, leaves[1], Weights(*leaves[2:]), activation)
    grad = x.double().sin().to(x.dtype)  # depends on the token alone, wherever it is
    y.backward(grad)
    names = ("x", "weights", *Weights._fields)
    gradients = {name: leaf.grad for name, leaf in zip(names, leaves, strict=True)}
    assert all(each is not None for each in gradients.values())  # zeros where nothing arrived
    return {"y": y.detach()} | {name: each for name, each in gradients.items() if each is not None}


def _difference(found: Tensor, expected: Tensor, whole: Tensor) -> float:
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert found.dtype == expected.dtype
    return float((found - expected).abs().max() / whole.abs().max().clamp(min=1e-30)) if found.numel() else 0.0


def carry(rank_info: RankInfo) -> list[Any]:
    """Rows that say where they are from and where they go, as they arrive and as they come back; both ways to send."""
    with distributed(ParallelConfig.model_validate({"expert": rank_info.size}), CPU, rank_info) as world:
        exchange, found = Exchange(world, "expert"), []
        table = [[(i + 2 * j) % 3 for j in range(exchange.size)] for i in range(exchange.size)]
        rows = [[exchange.rank, j, n] for j, count in enumerate(table[exchange.rank]) for n in range(count)]
        for exchange.gathers in (False, True):
            sent = torch.tensor(rows, dtype=torch.float32).view(-1, 3)
            arrived = exchange.there(sent, table)
            expected = [[i, exchange.rank, n] for i, line in enumerate(table) for n in range(line[exchange.rank])]
            assert arrived.tolist() == expected
            found.append(exchange.back(arrived, table).tolist())
        return [found[0], found[1], rows]


def out_of_step(rank_info: RankInfo) -> str:
    """What is said where ranks call different layers."""
    with distributed(ParallelConfig.model_validate({"expert": rank_info.size}), CPU, rank_info) as world:
        x, experts, weights = _values(4, 5, "any", torch.float32, 0)
        dispatcher = Dispatcher(Exchange(world, "expert"), 4, layer=world.rank)
        try:
            dispatcher(x, experts, weights, _matrices(2, torch.float32))
        except AssertionError as error:
            return str(error)
        return ""


def without_all_to_all(rank_info: RankInfo) -> bool:
    """Whether rows are gathered where the back-end refuses to send them, and arrive all the same."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("Backend other does not support alltoall_base")

    with distributed(ParallelConfig.model_validate({"expert": rank_info.size}), CPU, rank_info) as world:
        exchange_module.dist.all_to_all_single = refuse
        exchange = Exchange(world, "expert")
        arrived = exchange.there(torch.full((3, 1), 1.0 + world.rank), [[1, 2], [2, 1]])
        return exchange.gathers and arrived.tolist() == [[1.0]] * (1 + world.rank) + [[2.0]] * (2 - world.rank)


def foresee(_: RankInfo, ranks: int, experts: int, tokens: int) -> list[list[int]]:
    """Shapes of outputs and gradients on rank 1 of a world that is not there, on tensors without values."""
    dist.init_process_group("fake", rank=1, world_size=ranks, store=FakeStore())
    sizes: dict[world_module.Axis, int] = {"replica": 1, "expert": ranks}
    world = World(torch.device("cpu"), 1, sizes, *world_module.open_meshes(torch.device("cpu"), sizes))
    dispatcher, (first, end) = Dispatcher(Exchange(world, "expert"), experts, 0), portion(experts, ranks, 1)[:2]
    original = grouped.make_plan

    def even(numbers: Tensor, count: int) -> grouped.DispatchPlan:
        """Tokens have no experts here, so each expert gets as many."""
        share, over = divmod(numbers.numel(), count)
        with _disable_current_modes():
            counts = torch.tensor([share + (number < over) for number in range(count)])
        return original(numbers, count)._replace(counts=counts)

    grouped.make_plan = even
    with FakeTensorMode():
        values = _values(experts, tokens, "any", torch.float32, 0)
        matrices = Weights(*(each[first:end] for each in _matrices(experts, torch.float32)))
        found = _outcome(dispatcher, *values, matrices, "silu")
    return [list(each.shape) for each in found.values()]
