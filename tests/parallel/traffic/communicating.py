"""What ranks do in the tests of this folder."""

from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.training.all_reduces import Message, all_reduce_, bytes_sent, double_tree, ring
from hornbook.kernels.torch_versions import fsdp_groups
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.traffic.reduce_scatter import reduce_scatter_
from hornbook.parallel.traffic.traffic import Kind
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.run.diagnose.calibrate import batch_of
from hornbook.settings.training import TrainConfig

VOCAB, ROWS, SEQUENCE = 96, 2, 16
MODEL = ModelConfig(layers=3, width=48, heads=2, head=LMHead(tied=False))
KINDS: dict[str, Kind] = {
    "allreduce_": "all-reduce",
    "_allgather_base_": "all-gather",
    "allgather_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_": "reduce-scatter",
    "alltoall_base_": "all-to-all",
    "send": "send",
}


class Witness(TorchDispatchMode):
    """Bytes of every collective that torch carries out, by kind: of the whole tensor, as `sent_bytes` takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d" and func._schema.name != "c10d::recv_":
            kind = KINDS[func._schema.name.removeprefix("c10d::")]
            largest = args[1] if kind == "reduce-scatter" else args[0]
            self.bytes[kind] += sum(each.nbytes for each in _tensors(largest))
        return func(*args, **(kwargs or {}))


def _tensors(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [each for part in found for each in _tensors(part)]


def make_engine(place: RankInfo, world: World, settings: dict[str, Any], precision: str = "fp32") -> Engine:
    """A small model on this rank, with its initial values."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": precision})
    engine = parallelize(build_model(MODEL, VOCAB, "meta"), config_of(place, settings), train, world)
    engine.load_stream(initial_values(build_model(MODEL, VOCAB, "meta"), MODEL, seed=3))
    return engine


def config_of(place: RankInfo, settings: dict[str, Any]) -> ParallelConfig:
    """The `[parallel]` section."""
    return ParallelConfig.model_validate({"data": place.size, **settings})


def take_step(engine: Engine, world: World, microbatches: int, rows_of: int | None = None) -> float:
    """Gradients of random rows, others on each rank; returns their norm. `rows_of`: take those of this rank."""
    first = 100 * (world.data_rank if rows_of is None else rows_of)
    batches = [_batch(first + number) for number in range(microbatches)]
    engine.zero_gradients()
    engine.forward_backward(batches, total_weight=float(ROWS * SEQUENCE * microbatches * world.data_size))
    return float(engine.clip_gradients(0.0))


def _batch(seed: int) -> Any:
    torch.manual_seed(seed)
    return batch_of(torch.randint(0, VOCAB, (ROWS, SEQUENCE)))


def counted(place: RankInfo, settings: dict[str, Any], microbatches: int) -> dict[str, Any]:
    """What the clock counted in a step, and what the witness saw; parameters of blocks and of the rest."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
    with distributed(config_of(place, settings), train, place) as world:
        engine = make_engine(place, world, settings)
        blocks = sum(each.numel() for block in engine.model.all_blocks() for each in block.parameters())
        rest = engine.num_parameters - blocks
        take_step(engine, world, microbatches)
        engine.clock.begin()
        with Witness() as witness:
            take_step(engine, world, microbatches)
        phases = engine.clock.take()
        report = engine.clock.traffic.take()
        return {
            "flows": {f"{axis} {kind}": [each.calls, each.bytes] for (axis, kind), each in report.flows.items()},
            "seen": witness.bytes,
            "sizes": [blocks, rest],
            "seconds": [report.seconds, report.waited, phases["communication"]],
            "hidden": report.hidden,
        }


def compressed(place: RankInfo, settings: dict[str, Any]) -> list[float]:
    """Largest error of a compressed gradient over its bound, and error of all over the norm."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
    with distributed(config_of(place, settings), train, place) as world:
        alone = World(world.device)
        own = make_engine(RankInfo(), alone, {})
        take_step(own, alone, 1, rows_of=place.rank)
        share = (1 + 2**-8) ** place.size - 1
        bounds = {name: share * whole.abs() / place.size for name, whole in _gradients(own).items()}
        for bound in bounds.values():  # alone, a rank's rows weigh as much as those of all ranks together do
            dist.all_reduce(bound)
        plain, rounded = (_of_step(place, world, {**settings, "compress": each}, "fp32") for each in ("none", "bf16"))
        regions = {name: shard.slices for name, shard in plain.shards.items()}
        errors = {name: each - _gradients(plain)[name] for name, each in _gradients(rounded).items()}
        worst = [
            float((each.abs() / (bounds[name][regions[name]] + 1e-9)).max())
            for name, each in errors.items()
            if each.numel()
        ]
        return [max(worst), _apart(rounded, plain)]


def gathered_in_bf16(place: RankInfo, settings: dict[str, Any]) -> list[float]:
    """Errors of gradients beside float32: in bfloat16, and with weights gathered in it; how far these are apart."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "bf16"})
    with distributed(config_of(place, settings), train, place) as world:
        exact = _of_step(place, world, settings, "fp32")
        stored = _of_step(place, world, settings, "bf16")
        rounded = _of_step(place, world, {**settings, "gather": "bf16"}, "bf16")
        return [_apart(stored, exact), _apart(rounded, exact), _apart(rounded, stored)]


def _of_step(place: RankInfo, world: World, settings: dict[str, Any], precision: str) -> Engine:
    engine = make_engine(place, world, settings, precision)
    take_step(engine, world, 1)
    return engine


def _gradients(engine: Engine) -> dict[str, Tensor]:
    found = {name: shard.tensor.grad for name, shard in engine.shards.items()}
    return {name: gradient.detach().clone() for name, gradient in found.items() if gradient is not None}


def _apart(found: Engine, expected: Engine) -> float:
    """Largest error of a parameter's gradient, relative to the gradient's norm; over all shards."""
    mine, others = _gradients(found), _gradients(expected)
    squares = torch.tensor(
        [[float((mine[name] - each).norm()) ** 2, float(each.norm()) ** 2] for name, each in others.items()]
    )
    dist.all_reduce(squares)
    return float((squares[:, 0] / squares[:, 1]).sqrt().max())


def held(place: RankInfo, settings: dict[str, Any], precision: str) -> dict[str, int]:
    """Bytes of this rank between two microbatches, when weights and gradients of all are held, and of the moments."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": precision})
    with distributed(config_of(place, settings), train, place) as world:
        engine = make_engine(place, world, settings, precision)
        optimizer = build_optimizer(
            engine.named_parameters,
            parameter_roles(engine.model),
            AdamW(),
            {},
            engine.shapes,
        )
        found: list[dict[str, int]] = []
        begin = engine._data_parallel.begin_microbatch

        def measure(*, last: bool, is_empty: bool) -> None:
            if last:
                found.append(_held(engine))
            begin(last=last, is_empty=is_empty)

        engine._data_parallel.begin_microbatch = measure
        take_step(engine, world, 2)
        engine.step(optimizer)
        moments = sum(tensor.nbytes for _, _, tensor in optimizer.state())
        return {**found[0], "moments": moments, "parameters": engine.num_parameters}


def _held(engine: Engine) -> dict[str, int]:
    """Bytes of weights and of gradients: shards, and what FSDP gathered or accumulates whole beside them."""
    shards = {id(shard.tensor): shard.tensor for shard in engine.shards.values()}
    own = [each.untyped_storage() for each in shards.values()]
    gathered, sums = list[Any](), list(engine._data_parallel.gradients())
    for module in engine.model.modules():
        for group in fsdp_groups(module._get_fsdp_state()) if isinstance(module, FSDPModule) else ():
            for each in group.fsdp_params:
                gathered += [tensor.untyped_storage() for tensor in each.all_gather_outputs]
                whole = getattr(each, "_unsharded_param", None)
                sums += [] if whole is None or whole.grad is None else [whole.grad]
                sums += [] if each.unsharded_accumulated_grad is None else [each.unsharded_accumulated_grad]
    storages = {each.data_ptr(): each.nbytes() for each in [*own, *gathered] if each.nbytes()}
    totals = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in sums}
    return {"weights": sum(storages.values()), "gradients": sum(totals.values())}


SCHEDULES = {
    "ring": ring,
    "tree": double_tree,
    "tree of parts": lambda ranks, size: double_tree(ranks, size, parts=3),
}


def written_out(place: RankInfo, sizes: list[int]) -> list[dict[str, Any]]:
    """Sums by every schedule beside the library's: whether they are equal, how far random floats are, bytes sent."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
    found = []
    with distributed(config_of(place, {}), train, place):
        for size in sizes:
            torch.manual_seed(place.rank)
            whole, real = torch.randint(-(2**40), 2**40, (size,)).double(), torch.randn(size)
            expected = [whole.clone(), real.clone()]
            for each in expected:
                dist.all_reduce(each)
            for name, make in SCHEDULES.items():
                messages: list[Message] = make(place.size, size)
                ours = [whole.clone(), real.clone()]
                sent = [all_reduce_(each, messages) for each in ours]
                answer = {
                    "name": name,
                    "equal": torch.equal(ours[0], expected[0]),
                    "apart": float((ours[1] - expected[1]).abs().max()) if size else 0.0,
                    "sent": sent,
                    "told": [bytes_sent(messages, each.element_size())[place.rank] for each in ours],
                }
                found.append(answer)
    return found


def scattered(place: RankInfo, sizes: list[int]) -> list[float]:
    """How far this rank's part of a sum is from the library's, relative to its largest value; bfloat16 last."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
    found = []
    with distributed(config_of(place, {}), train, place):
        for size, dtype in [*((size, torch.float32) for size in sizes), (sizes[-1], torch.bfloat16)]:
            torch.manual_seed(place.rank)
            parts = torch.randn(place.size, size).to(dtype)
            whole = parts.float().clone()
            dist.all_reduce(whole)
            part = parts.new_empty(size)
            reduce_scatter_(part, parts, None)
            expected = whole[place.rank]
            found.append(float((part.float() - expected).abs().max() / expected.abs().max()))
    return found
