"""Short training runs on any number of ranks, and how two of them differ: parity tests and
`benchmarks.training.layouts`.

Everything that may go wrong on many ranks is in them: dropout, clipping that bites, microbatches of unequal weight, a
last microbatch with fewer rows, tied weights.
"""

import importlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
import xxhash
from pydantic import TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from hornbook.data.batch import Batch, empty_microbatch, rank_share
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.mlp_config import ExpertsConfig, GLUConfig, SigmoidRouterConfig
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.config.surgery_config import Surgery
from hornbook.model.init.init import initial_values
from hornbook.model.surgery.added import keyed_normal
from hornbook.model.surgery.added_values import added_parameters, with_added
from hornbook.model.surgery.operate import build_operated, operate
from hornbook.optim.build_optimizer import build_optimizer, decaying
from hornbook.optim.config.clipping_config import AdaptiveClip, NormClip, ValueClip, ZScoreClip
from hornbook.parallel import world as world_module
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.offload.host import HostUpdate
from hornbook.parallel.offload.offload import hosted
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.settings.training import TrainConfig
from tests.optim.kinds import config_of
from tests.parallel import families, odd
from tests.ranks import LIMIT_SECONDS

VOCAB, ROWS, SEED = 96, 2, 5
RATE = 3e-3
CLIP = 0.5
"""Below every norm of these runs, so that clipping always bites."""
CLIPS = {
    "norm": NormClip(limit=CLIP),
    "value": ValueClip(limit=0.01),
    "adaptive": AdaptiveClip(limit=0.02),
    "tight": AdaptiveClip(limit=1e-4),
    "zscore": ZScoreClip(z=0.5, window=8, warmup=4, limit=CLIP),
}
EXPERTS = ExpertsConfig(count=16, active=3, hidden=32, z_loss=0.01, router=SigmoidRouterConfig(balance_rate=0.02))
Precision = Literal["fp64", "fp32", "bf16", "bf16-pure", "fp16"]
TOLD = ("losses", "objectives", "norms", "applied", "scales")
"""What every rank must say alike."""
STEPS = TypeAdapter(Surgery)
ADDRESS = "tests/parallel/trajectory.py:trajectory"


@dataclass(frozen=True)
class Run:
    """One run; `world` is how many ranks share its batches."""

    world: int = 1
    shard: Literal["none", "optimizer", "gradients", "everything"] = "none"
    replicas: int = 1
    tensor: int = 1
    sequence_parallel: bool = False
    """Divide what lies between the matrices of a layer over the ranks of `tensor` too."""
    stages: int = 1
    schedule: str = ""
    """Of the pipeline; by default the configuration's."""
    cuts: tuple[int, ...] = ()
    """First block of each stage but the first; by default they follow from costs."""
    context: int = 1
    context_kind: str = ""
    """How context ranks exchange keys and values; by default the configuration's."""
    expert: int = 1
    exact: bool = False
    precision: Precision = "fp32"
    tied: bool = True
    backwards: bool = False
    """Take the microbatches in the opposite order."""
    rotated: int = 0
    """Begin with this microbatch; those before it come last."""
    steps: int = 20
    microbatches: int = 6
    """Of a step, over all ranks."""
    optimizer: str = "adamw"
    """Kind of optimizer."""
    settings: dict[str, Any] = field(default_factory=dict, hash=False)
    """Of the optimizer, besides its kind."""
    clip: Literal["norm", "value", "adaptive", "tight", "zscore"] = "norm"
    """Kind of clipping, with the settings of `CLIPS`."""
    penalty: float = 0.0
    """Weight of an L1 and of an L2 penalty."""
    sequence: int = 24
    width: int = 64
    layers: int = 2
    experts: bool = False
    """Mixtures of experts whose routers' biases follow the loads."""
    recompute: Literal["none", "block"] = "none"
    family: str = ""
    """A model of `tests.parallel.families` and its batches, instead of the decoder of this file and random ones."""
    odd: str = ""
    """A model of `tests.parallel.odd` and its batches."""
    sizes: dict[str, Any] = field(default_factory=dict, hash=False)
    """Settings of that model, or of the decoder of this file, in place of its own."""
    surgery: list[dict[str, Any]] = field(default_factory=list, hash=False)
    """Steps of surgery; what they add begins at other values than in a run, so that all of it matters at once."""
    documents: bool = False
    """Rows of several documents, of which no two rows have the same."""
    corpus: str = ""
    """The data folder that a family's batches come from."""
    copies: int = 1
    """Ranks along the axis `tensor`, of which the engine knows nothing yet: all of them compute the same."""
    host: bool = False
    """The host updates twins of the parameters (`parallel.offload.host`)."""
    held: bool = False
    """The host holds weights, gradients and moments (`parallel.offload.parameters`); on a CPU `before` allows it."""
    spoil: tuple[int, int] | None = None
    """(step, microbatch): there the loss is not a number."""
    before: str = ""
    """`module:function:argument` that each rank calls first (`tests.parallel.mutations`)."""

    @property
    def alone(self) -> "Run":
        """The same in one process."""
        one = replace(self, world=1, shard="none", replicas=1, before="")
        return replace(
            one, tensor=1, sequence_parallel=False, stages=1, schedule="", cuts=(), context=1, context_kind="", expert=1
        )

    @property
    def ranks(self) -> int:
        """Over all axes."""
        return self.world * self.tensor * self.stages * self.context * self.expert * self.copies

    @property
    def parallel(self) -> dict[str, Any]:
        """The section `[parallel]` of its recipe; an axis of one rank is left out."""
        found: dict[str, Any] = {"data": self.world, "shard": self.shard, "replicas": self.replicas}
        found |= {"exact": self.exact, "recompute": self.recompute}
        wide = {"tensor": self.tensor, "expert": self.expert}
        found |= {axis: ranks for axis, ranks in wide.items() if ranks > 1}
        if self.held:
            found["offload"] = {"kind": "cpu", "activations": False, "optimizer": True, "parameters": True}
        if self.sequence_parallel:
            found["sequence"] = True
        if self.stages > 1:
            found["pipeline"] = {"stages": self.stages} | ({"schedule": self.schedule} if self.schedule else {})
            found["pipeline"] |= {"cuts": self.cuts} if self.cuts else {}
        if self.context > 1:
            found["context"] = {"ranks": self.context} | ({"kind": self.context_kind} if self.context_kind else {})
        return found


LAYOUTS: dict[str, dict[str, Any]] = {
    "none": {},
    "optimizer": {"shard": "optimizer"},
    "gradients": {"shard": "gradients"},
    "everything": {"shard": "everything"},
    "hybrid": {"shard": "everything", "replicas": 2},
}
"""How ranks may share a model."""


@dataclass(frozen=True)
class Result:
    """What a run came to."""

    losses: list[float]
    """Mean over targets, in nats, of each step."""
    objectives: list[float]
    """With what is added to the loss: auxiliary losses, penalties."""
    norms: list[float]
    """Before clipping."""
    applied: list[float]
    """0 where a step was refused."""
    scales: list[float]
    """Of the loss, after each step."""
    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]
    """Of every parameter that is trained, after the first step, before clipping."""
    seconds: list[float]
    """Of each step, on the slowest rank."""
    cpu_seconds: list[float]
    """Of each step, of all ranks together."""


@dataclass(frozen=True)
class Difference:
    """Largest relative differences of one run from another."""

    losses: float
    norms: float
    weights: float
    """Of the largest deviation within a parameter to its largest weight."""
    gradients: float
    """The same of gradients after the first step."""
    worst: str = ""
    """The parameter whose gradient deviates most."""


def perform(run_ranks: Any, run: Run, folder: Path, limit: float = LIMIT_SECONDS) -> Result:
    """The run, on forked ranks; `folder` must be new."""
    folder.mkdir()
    ranks = run_ranks(ADDRESS, run.ranks, asdict(run), str(folder), limit=limit)
    told = [{name: rank[name] for name in TOLD} for rank in ranks]
    assert told == told[:1] * len(told), "ranks disagree"
    check_equal(ranks)
    seconds = [max(times) for times in zip(*(rank["seconds"] for rank in ranks), strict=True)]
    cpu_seconds = [sum(times) for times in zip(*(rank["cpu_seconds"] for rank in ranks), strict=True)]
    weights = assemble(folder, [rank["shards"] for rank in ranks])
    gradients = assemble(folder, [rank["shards"] for rank in ranks], ".gradients")
    return Result(**told[0], weights=weights, gradients=gradients, seconds=seconds, cpu_seconds=cpu_seconds)


def check_equal(ranks: Sequence[Mapping[str, Any]]) -> None:
    """After each step: ranks that hold the same part of a parameter hold the same bits; each microbatch was taken by
    the ranks of one data rank.
    """
    holders: dict[str, tuple[int, list[str]]] = {}
    for number, rank in enumerate(ranks):
        for part, digests in rank["digests"].items():
            first, seen = holders.setdefault(part, (number, digests))
            wrong = [step for step, pair in enumerate(zip(seen, digests, strict=True)) if pair[0] != pair[1]]
            assert not wrong, f"after step {wrong[0] + 1} ranks {first} and {number} hold other bits of {part}"
    taken: dict[int, list[list[str]]] = {}
    for rank in ranks:
        mine = taken.setdefault(rank["data_rank"], rank["tokens"])
        assert mine == rank["tokens"], f"ranks of data rank {rank['data_rank']} took other microbatches"
    for step, whole in enumerate(ranks[0]["grid"]):
        found = sorted(digest for tokens in taken.values() for digest in tokens[step])
        assert found == sorted(whole), f"step {step + 1}: some microbatch was taken twice, or not at all"


def compare(found: Result, expected: Result) -> Difference:
    """How far one run is from another.

    A parameter whose largest weight is below the learning rate, by which a step moves weights, is measured against
    that. Some have no gradient but rounding errors: the bias of keys adds the same to all scores of a query, which the
    softmax takes away. They begin at zero and stay near it, so that relative to their own size two runs differ by 100 %
    and more.
    """
    weights = _deviations(found.weights, expected.weights, RATE)
    largest = max((float(each.abs().max()) for each in expected.gradients.values()), default=1.0)
    gradients = _deviations(found.gradients, expected.gradients, 1e-6 * largest)
    worst = max(gradients, key=lambda name: _nan_above_all(gradients[name]), default="")
    losses = largest_of([_relative(found.losses, expected.losses), _relative(found.objectives, expected.objectives)])
    norms = _relative(found.norms, expected.norms)
    return Difference(losses, norms, largest_of(weights.values()), gradients.get(worst, 0.0), worst)


def largest_of(values: Iterable[float]) -> float:
    """The largest value, 0 of none; NaN where one is NaN, which `max` drops behind another value."""
    return max(values, key=_nan_above_all, default=0.0)


def _nan_above_all(value: float) -> tuple[bool, float]:
    return math.isnan(value), value


def _deviations(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], least: float) -> dict[str, float]:
    """Of each tensor: the largest deviation, relative to its largest value or to `least`."""
    assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
    return {
        name: float((found[name] - each).abs().max() / each.abs().max().clamp(min=least))
        for name, each in expected.items()
    }


def same_bits(found: Result, expected: Result) -> bool:
    """Whether two runs have equal losses, norms and weights, to the bit."""
    return (
        found.losses == expected.losses
        and found.norms == expected.norms
        and found.weights.keys() == expected.weights.keys()
        and all(torch.equal(weight, expected.weights[name]) for name, weight in found.weights.items())
    )


def trajectory(rank_info: RankInfo, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """Train on this rank; its shards go to `folder`, the rest is returned."""
    run = Run(**settings | {"spoil": settings["spoil"] and tuple(settings["spoil"])})
    if run.before:
        module, function, argument = run.before.split(":", 2)
        getattr(importlib.import_module(module), function)(argument)
    config = ParallelConfig.model_validate(run.parallel)
    if run.copies > 1:
        sizes: dict[world_module.Axis, int] = {**world_module.axis_sizes(config), "tensor": run.copies}
        world_module.axis_sizes = lambda _: sizes
    precision = "fp32" if run.precision == "fp64" else run.precision
    loss = {"l1": run.penalty, "l2": run.penalty}
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": precision, "loss": loss})
    with distributed(config, train, rank_info) as world:
        engine = make_engine(run, config, train, world)
        result = train_steps(engine, run, world, Path(folder) / f"{world.rank}.gradients")
        save_file({name: shard.tensor.detach() for name, shard in engine.shards.items()}, f"{folder}/{world.rank}")
        shards = {name: (shard.shape, shard.start, shard.is_primary) for name, shard in engine.shards.items()}
        return {**result, "shards": shards, "data_rank": world.data_rank}


def make_engine(run: Run, config: ParallelConfig, train: TrainConfig, world: World) -> Engine:
    """The tiny model on this rank, with its initial values."""
    if run.odd:
        sizes, vocab = odd.model_config(run.odd, run.sizes), odd.VOCAB
    elif run.family:
        sizes, vocab = families.model_config(run.family), families.VOCAB
    else:
        mlp = EXPERTS if run.experts else GLUConfig()
        sizes = ModelConfig(
            layers=run.layers, width=run.width, heads=2, dropout=0.1, head=LMHead(tied=run.tied), mlp=mlp
        )
        sizes = ModelConfig.model_validate({**sizes.model_dump(), **run.sizes})
        vocab = sizes.vocab or VOCAB
    steps = STEPS.validate_python(run.surgery)
    model = build_model(sizes, vocab)
    operate(model, steps)
    if run.precision == "fp64":
        model.double()
    engine = parallelize(model, config, train, world)
    if run.precision == "fp64":
        model.compute_dtype = torch.float64
    values = initial_values(build_model(sizes, vocab, "meta"), sizes, seed=3)
    whole = build_operated(sizes, vocab, steps)
    added = added_parameters(whole)
    engine.load_stream(
        (name, each + keyed_normal(tuple(each.shape), 0.1, 3, name) if name in added else each)
        for name, each in with_added(whole, values, 3, divided=engine.model)
    )
    return engine


def train_steps(engine: Engine, run: Run, world: World, gradients: Path) -> dict[str, Any]:
    """Losses, norms and seconds of every step, and digests of what other ranks must have too.

    Gradients of the first step go to a file.
    """
    config = config_of(run.optimizer, **{"lr": RATE, **run.settings})
    shapes = engine.shapes
    roles = parameter_roles(engine.model)
    engine.penalties.names = decaying(roles, config)
    offload = ParallelConfig.model_validate(run.parallel).offload
    whole = HostUpdate(engine.owners, world.device) if run.host else hosted(engine.owners, config, offload, world)
    optimizer = build_optimizer(engine.named_parameters, roles, config, None, shapes, whole)
    told: dict[str, list[float]] = {name: [] for name in (*TOLD, "seconds", "cpu_seconds")}
    digests: dict[str, list[str]] = {}
    taken: dict[str, list[list[str]]] = {"tokens": [], "grid": []}
    for step in range(run.steps):
        grid = grid_of(run, step)[:: -1 if run.backwards else 1]
        grid = grid[run.rotated :] + grid[: run.rotated]
        total = sum(float(batch.weights.sum()) for batch in grid)
        if run.spoil is not None and run.spoil[0] == step:
            grid[run.spoil[1]].weights[0, 0] = torch.nan
        mine = share(grid, world)
        taken["tokens"].append([digest(batch.tokens) for batch in mine if not batch.is_empty])
        taken["grid"].append([digest(batch.tokens) for batch in grid])
        world.barrier()
        begun, cpu_begun = time.perf_counter(), time.process_time()
        engine.zero_gradients()
        sums = engine.forward_backward(mine, total, (SEED, step))
        if step == 0:
            save_gradients(engine, gradients)
        norm = engine.clip_gradients(CLIPS[run.clip])
        applied = engine.step(optimizer)
        scale = engine.scaler.scale if engine.scaler else 1.0
        values = (float(sums["loss"]) / total, sum(map(float, sums.values())) / total)
        values += (float(norm), float(applied), scale)
        values += (time.perf_counter() - begun, time.process_time() - cpu_begun)
        for name, value in zip(told, values, strict=True):
            told[name].append(value)
        for name, shard in engine.shards.items():
            if shard.tensor.numel():
                part = f"{name} from {list(shard.start)}, {list(shard.tensor.shape)}"
                digests.setdefault(part, []).append(digest(shard.tensor))
    return {**told, **taken, "digests": digests}


def digest(tensor: Tensor) -> str:
    """Of the bits of a tensor."""
    return xxhash.xxh3_64_hexdigest(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def save_gradients(engine: Engine, path: Path) -> None:
    """Those of this rank's shards, without the factor of the loss."""
    scale = engine.scaler.scale if engine.scaler else 1.0
    found = {name: each.grad for name, each in engine.named_parameters.items()}
    save_file({name: each.detach().contiguous() / scale for name, each in found.items() if each is not None}, path)


def grid_of(run: Run, step: int) -> list[Batch]:
    """The microbatches of a step, of all ranks."""
    if run.odd:
        return odd.grid(run.odd, step, run.microbatches, run.sequence)
    if run.family:
        return families.grid(run.family, run.corpus, step, run.microbatches, run.sequence)
    plain = microbatches(step, run.microbatches, run.sequence)
    return [with_documents(batch) for batch in plain] if run.documents else plain


def share(grid: list[Batch], world: World) -> list[Batch]:
    """This rank's microbatches, and one that counts nothing where others have one more."""
    mine = [grid[number] for number in rank_share(len(grid), world.data_rank, world.data_size)]
    return mine if len(mine) * world.data_size >= len(grid) else [*mine, empty_microbatch(grid[0])]


def microbatches(step: int, count: int, sequence: int) -> list[Batch]:
    """The grid of a step: rows of unequal weight, the last microbatch a row short."""
    generator = torch.Generator().manual_seed(1000 + step)
    batches = []
    for number in range(count):
        rows = ROWS - 1 if number == count - 1 else ROWS
        tokens = torch.randint(0, VOCAB, (rows, sequence + 1), generator=generator)
        counted = torch.randint(1, sequence + 1, (rows, 1), generator=generator)
        places = torch.arange(sequence).expand(rows, -1)
        batches.append(
            Batch(
                tokens=tokens[:, :-1].contiguous(),
                targets=(tokens[:, :-1] * 7 + 1) % VOCAB,
                weights=(places < counted).float(),
                positions=places,
                document_lengths=[(sequence,)] * rows,
                samples=torch.arange(rows) + ROWS * (count * step + number),
                sources=torch.zeros(rows, dtype=torch.int64),
            )
        )
    return batches


def with_documents(batch: Batch) -> Batch:
    """The batch with rows cut into documents, each row elsewhere."""
    sequence, lengths = batch.tokens.shape[1], []
    for sample in batch.samples.tolist():
        first = 1 + sample * 7 % (sequence // 2)
        lengths.append((first, 2, sequence - first - 2))
    positions = torch.stack([torch.cat([torch.arange(size) for size in row]) for row in lengths])
    return replace(batch, document_lengths=lengths, positions=positions)


def assemble(folder: Path, shards: Sequence[Mapping[str, Any]], kind: str = "") -> dict[str, Tensor]:
    """Whole tensors out of what the ranks wrote; every element has one primary replica, and copies are equal."""
    files = [load_file(folder / f"{rank}{kind}") for rank in range(len(shards))]
    whole = {
        name: torch.zeros(shards[rank][name][0], dtype=tensor.dtype)
        for rank, tensors in enumerate(files)
        for name, tensor in tensors.items()
    }
    filled = {name: torch.zeros(tensor.shape, dtype=torch.bool) for name, tensor in whole.items()}
    parts = []
    for rank, tensors in enumerate(files):
        for name, tensor in tensors.items():
            _, start, is_primary = shards[rank][name]
            place = tuple(slice(a, a + n) for a, n in zip(start, tensor.shape, strict=True))
            parts.append((name, place, tensor, is_primary))
    for name, place, tensor, is_primary in parts:
        if is_primary:
            assert not filled[name][place].any(), f"{name} has two primary replicas"
            whole[name][place], filled[name][place] = tensor, True
    for name, place, tensor, _ in parts:
        assert torch.equal(whole[name][place], tensor), f"{name}: copies differ, or a part has no primary replica"
    missing = [name for name, places in filled.items() if not places.all()]
    assert not missing, f"no primary replica has all of {missing}"
    return whole


def _relative(found: list[float], expected: list[float]) -> float:
    assert len(found) == len(expected)
    return largest_of(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))
