"""One rank of a large run, on one machine: its memory and its collectives, without the other ranks and without values.

The model is built and divided as in a run, by the same code, under torch's fake process group, where any rank of any
world can be; a step then runs on fake tensors. What depends on values is assumed: rows hold one document each, and
experts get equal loads.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import ceil, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.data.batch import Batch, Source
from hornbook.errors import UsageError
from hornbook.kernels.torch_versions import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeStore,
    FakeTensorMode,
    without_modes,
)
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.mup import learning_factors
from hornbook.model.layers.products import is_widened
from hornbook.model.mlp import grouped
from hornbook.model.surgery.operate import operate
from hornbook.model.surgery.quantization import nf4
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.axes.pipeline.cuts import settle_cuts
from hornbook.parallel.config import NoOffload
from hornbook.parallel.device import choose_device
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import AXES, World, axis_sizes, open_meshes
from hornbook.plan.counts.share import labels_texts
from hornbook.run.diagnose.step_tracker import Collective, StepTracker
from hornbook.run.observe.memory_log import SavedWatch
from hornbook.settings.recipe import Recipe


@dataclass(frozen=True)
class Simulation:
    """What one rank of a run holds and sends in a step."""

    rank: int
    world: int
    axes: dict[str, tuple[int, int]]
    """(number of this rank along it, ranks) of each wide axis."""
    parameters: int
    """Values of the parameters that this rank holds."""
    state: dict[str, int]
    """Bytes of weights, gradients and moments when gradients are complete."""
    memory: dict[str, int]
    """Bytes by category at the peak, which may be a moment without gradients."""
    kept: int
    """Bytes kept for backward at once, at most."""
    collectives: list[Collective]
    microbatches: int
    """Of this rank in a step."""
    seconds: float
    """That the simulation took."""
    notes: list[str] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """Bytes in use at the peak."""
        return sum(self.memory.values())

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rows = [
            {name: getattr(row, name) for name in ("kind", "axes", "ranks", "count", "num_bytes", "sent")}
            for row in self.collectives
        ]
        names = ("rank", "world", "axes", "parameters", "state", "memory", "peak", "kept", "microbatches", "seconds")
        names += ("notes",)
        return {name: getattr(self, name) for name in names} | {"collectives": rows}


def simulate(recipe: Recipe, vocab: int, rank: int) -> Simulation:
    """A step of one rank of the world that `recipe.parallel` makes; `vocab` rows of the embedding.

    Raises UsageError for a rank outside of it, and for what cannot be foreseen without values.
    """
    size = recipe.parallel.world
    if not 0 <= rank < size:
        raise UsageError(f"--rank {rank}: the ranks of a world of {size} are 0 to {size - 1}")
    started = time.perf_counter()
    recipe, notes = foreseeable(recipe, vocab)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake_world(recipe, rank) as world:
        tracker = StepTracker(world)
        engine = engine_of(recipe, vocab, replace(world, memory=_both(fake, tracker)))
        count = _microbatches(recipe, world)
        with _foreseen(), tracker.resizing(), _balanced(), fake, tracker:
            optimizer = optimizer_of(recipe, engine)
            steps = [_step(recipe, engine, optimizer, tracker, each) for each in _counts(count, recipe)]
        held = sum(shard.tensor.numel() for shard in engine.shards.values())
        axes = {axis: (world.axis_rank([axis]), world.sizes[axis]) for axis in AXES if world.sizes.get(axis, 1) > 1}
        state, memory, kept, collectives = _extrapolated(steps, count)
        seconds = time.perf_counter() - started
        return Simulation(rank, size, axes, held, state, memory, kept, collectives, count, seconds, notes)


@dataclass(frozen=True)
class _Step:
    """What a step of some microbatches takes."""

    microbatches: int
    state: dict[str, int]
    memory: dict[str, int]
    kept: int
    collectives: list[Collective]


def _counts(microbatches: int, recipe: Recipe) -> list[int]:
    """Numbers of microbatches to make a step of: few enough for a large step, and enough to extrapolate from.

    A pipeline is full of as many microbatches as it has stages, and schedules may ask for a multiple of these.
    """
    unit = recipe.parallel.pipeline.stages
    return [microbatches] if microbatches <= 3 * unit else [2 * unit, 3 * unit]


def _extrapolated(steps: list[_Step], count: int) -> tuple[dict[str, int], dict[str, int], int, list[Collective]]:
    """State, memory at the peak, what is kept and collectives of `count` microbatches; each one adds the same."""
    few, more = steps[0], steps[-1]
    if few is more:
        return more.state, more.memory, more.kept, more.collectives
    times = (count - more.microbatches) / (more.microbatches - few.microbatches)

    def at(first: int, second: int) -> int:
        return round(second + times * (second - first))

    before = {(row.kind, row.axes): row for row in few.collectives}
    rows = list[Collective]()
    for row in more.collectives:
        first = before.get((row.kind, row.axes))
        counts = (first.count, first.num_bytes) if first is not None else (0, 0)
        rows.append(replace(row, count=at(counts[0], row.count), num_bytes=at(counts[1], row.num_bytes)))
    memory = {name: at(few.memory[name], size) for name, size in more.memory.items()}
    return more.state, memory, at(few.kept, more.kept), sorted(rows, key=lambda row: -row.num_bytes)


def foreseeable(recipe: Recipe, vocab: int) -> tuple[Recipe, list[str]]:
    """The recipe without what has no meaning on fake tensors, and notes about it."""
    parallel, train, notes = recipe.parallel, recipe.train, list[str]()
    if parallel.offload.kind != "none":
        notes.append("parallel.offload is left out: all is counted in the memory of the device")
    if parallel.exact:
        notes.append("parallel.exact is left out: gradients cross ranks as they do without it")
    if train.compile:
        notes.append("train.compile is left out: what fused kernels save is not counted")
    if recipe.model.position.kind == "relative":
        notes.append("attention keeps scores, to which learned ones are added; kernels of a GPU and a CPU do not")
    parallel = settle_cuts(parallel, recipe.model, vocab, train.sequence)
    parallel = parallel.model_copy(update={"offload": NoOffload(), "exact": False})
    train = train.model_copy(update={"compile": False, "cuda_graphs": False})
    return recipe.model_copy(update={"parallel": parallel, "train": train}), notes


@contextlib.contextmanager
def fake_world(recipe: Recipe, rank: int) -> Iterator[World]:
    """The world of a run as `rank` sees it, where collectives end at once and bring nothing."""
    sizes, device = axis_sizes(recipe.parallel), choose_device(recipe.train.device)
    size = prod(sizes.values())
    if size == 1:
        yield World(device, 0, sizes)
        return
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield World(device, rank, sizes, *open_meshes(device, sizes))
    finally:
        dist.destroy_process_group()


def _both(fake: FakeTensorMode, tracker: StepTracker) -> Any:
    @contextlib.contextmanager
    def memory() -> Iterator[None]:
        with fake, tracker:
            yield

    return memory


def engine_of(recipe: Recipe, vocab: int, world: World) -> Engine:
    """The engine of one rank, without initial values."""
    model = build_model(recipe.model, vocab, device="meta")
    operate(model, recipe.surgery)
    is_widened(torch.empty(0, dtype=torch.bfloat16))  # measured once, with values
    _ = nf4.levels(), nf4.scale_levels()  # tables, made once with values
    return parallelize(model, recipe.parallel, recipe.train, world)


def optimizer_of(recipe: Recipe, engine: Engine) -> Optimizer:
    """The optimizer of what one rank holds."""
    roles = parameter_roles(engine.model)
    shapes = {name: shard.shape for name, shard in engine.shards.items()}
    factors = learning_factors(roles, recipe.model)
    return build_optimizer(engine.named_parameters, roles, recipe.optim, factors, shapes, engine.owners)


class _Unasked:
    """An optimizer whose step is applied: whether to refuse it is not known without values."""

    asks_host = False

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def step(self, _: object = None) -> None:
        self._optimizer.step()


def _step(recipe: Recipe, engine: Engine, optimizer: Optimizer, tracker: StepTracker, count: int) -> _Step:
    batches = [_batch(recipe, number) for number in range(count)]
    engine.zero_gradients()
    tracker.begin()
    watch = SavedWatch(engine.model, tracker.place)
    with watch.watching(engine.model):
        engine.forward_backward(batches, float(recipe.train.batch_tokens), key=(recipe.seed, 0))
    engine.clip_gradients(0.0)  # the norm; whether it is above the limit is not known without values
    optimizer.set_learning_rate(recipe.optim.lr)
    engine.step(_Unasked(optimizer))  # pyright: ignore[reportArgumentType]
    categories = state_tensors(engine, optimizer)
    state = {name: tracker.held(tensors) for name, tensors in categories.items()}
    return _Step(count, state, tracker.peak(categories), watch.peak, tracker.collectives)


def _microbatches(recipe: Recipe, world: World) -> int:
    rows = recipe.train.batch_tokens // recipe.train.sequence
    return ceil(ceil(rows / recipe.train.micro_rows) / world.data_size)


def _batch(recipe: Recipe, number: int) -> Batch:
    """Rows of one document each; of an encoder-decoder, sources as long as the target."""
    rows, length = recipe.train.micro_rows, recipe.train.sequence
    tokens = torch.zeros(rows, length, dtype=torch.int64)
    positions = torch.arange(length).expand(rows, length).contiguous()
    lengths = [(length,)] * rows
    source = Source(tokens, positions, lengths) if recipe.model.kind == "encoder_decoder" else None
    weights = torch.ones(rows, length)
    if recipe.model.head.kind != "lm":  # which tokens are predicted is asked of the values: of a text one, else all
        with without_modes():
            weights = torch.ones(rows, length)
            weights[:, 1:] *= not labels_texts(recipe.model)
    return Batch(
        tokens=tokens,
        targets=tokens,
        weights=weights,
        positions=positions,
        document_lengths=lengths,
        samples=torch.arange(rows) + rows * number,
        sources=torch.zeros(rows, dtype=torch.int64),
        source=source,
    )


def state_tensors(engine: Engine, optimizer: Optimizer) -> dict[str, list[Tensor]]:
    """Weights, gradients and moments of one rank, which stay between steps."""
    shards: list[Tensor] = [shard.tensor for shard in engine.shards.values()]
    gradients = [each.grad for each in shards if each.grad is not None]
    codes = [each for part in engine.model.modules() if isinstance(part, nf4.Nf4Code) for each in part.buffers()]
    return {
        "weights": [*shards, *codes],
        "gradients": gradients,
        "moments": [tensor for _, _, tensor in optimizer.state()],
    }


@contextlib.contextmanager
def _balanced() -> Iterator[None]:
    """Mixtures of experts within it give every expert as many tokens, up to one."""
    original = grouped.make_plan

    def make_plan(experts: Tensor, count: int) -> grouped.DispatchPlan:
        plan, choices = original(experts, count), experts.numel()
        # Made without a mode, so that it has values.
        with without_modes():
            counts = torch.tensor([choices // count + (number < choices % count) for number in range(count)])
        return plan._replace(counts=counts)

    grouped.make_plan = make_plan
    try:
        yield
    finally:
        grouped.make_plan = original


@contextlib.contextmanager
def _foreseen() -> Iterator[None]:
    """Say what of a step cannot be foreseen. Raises UsageError."""
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        frames = [frame for frame in _frames(error) if frame.startswith("hornbook.")]
        where = f" ({frames[-1]})" if frames else ""
        raise UsageError(
            f"a part of this step depends on values, which a dry run has none of{where}: take another kind of this "
            "part for the dry run, such as --optim.kind adamw, or measure a few real ranks"
        ) from error


def _frames(error: BaseException) -> list[str]:
    found, trace = list[str](), error.__traceback__
    while trace is not None:
        found.append(f"{trace.tb_frame.f_globals.get('__name__', '')}:{trace.tb_lineno}")
        trace = trace.tb_next
    return found
