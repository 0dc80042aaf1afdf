"""What ranks do in the tests of context parallelism: attention over parts of rows against attention over whole rows."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from hornbook.model.attention.attend import attend
from hornbook.model.attention.mask import AttentionMask, DocumentLengths, RowPart
from hornbook.model.layers.dropout import AttentionDropout, row_keys, site_keys
from hornbook.parallel.axes.context.all_to_all import AllToAllAttention
from hornbook.parallel.axes.context.context import cut_rows
from hornbook.parallel.axes.context.context_layout import row_part
from hornbook.parallel.axes.context.part_exchange import CONTEXT, Ring
from hornbook.parallel.axes.context.ring_attention import RingAttention
from hornbook.parallel.axes.context.shift import shift_parts
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.settings.training import TrainConfig
from tests.parallel import trajectory
from tests.parallel.trajectory import Run

CPU = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
ROWS, DIM, VALUE_DIM = 3, 6, 4


@dataclass(frozen=True)
class Case:
    """An attention; lengths that no number of ranks divides."""

    kind: Literal["causal", "bidirectional", "cross"] = "causal"
    length: int = 37
    heads: tuple[int, int] = (4, 4)
    """Of queries, and of keys and values."""
    lengths: DocumentLengths | None = None
    key_lengths: DocumentLengths | None = None
    prefixes: DocumentLengths | None = None
    window: int | None = None
    softcap: float | None = None
    bias: bool = False
    sinks: bool = False
    dropout: float = 0.0
    dtype: torch.dtype = torch.float64

    @property
    def key_length(self) -> int:
        """Of the other sequence across stacks."""
        return 29 if self.kind == "cross" else self.length


DOCUMENTS = ((5, 31, 1), (37,), (18, 2, 17))
CASES = {
    "causal": Case(),
    "bidirectional": Case("bidirectional"),
    "documents": Case(lengths=DOCUMENTS),
    "documents of an encoder": Case("bidirectional", lengths=DOCUMENTS),
    "window": Case(window=7),
    "window of an encoder": Case("bidirectional", window=9, lengths=DOCUMENTS),
    "prefixes": Case(lengths=DOCUMENTS, prefixes=((2, 9, 0), (20,), (0, 1, 5))),
    "grouped heads": Case(heads=(4, 1)),
    "soft cap": Case(softcap=1.5, window=11),
    "scores by distance": Case(bias=True, lengths=DOCUMENTS),
    "soft cap and scores by distance": Case("bidirectional", bias=True, softcap=0.7),
    "sinks": Case(sinks=True, window=5),
    "dropout": Case(dropout=0.3, heads=(4, 2), lengths=DOCUMENTS),
    "heads of three ranks": Case(heads=(6, 2), bias=True, sinks=True, dropout=0.2),
    "all of it": Case(dropout=0.2, heads=(8, 2), lengths=DOCUMENTS, bias=True, sinks=True, softcap=2.0, window=13),
    "across stacks": Case("cross"),
    "documents across stacks": Case(
        "cross", lengths=DOCUMENTS, key_lengths=((9, 19, 1), (29,), (3, 25, 1)), dropout=0.2, heads=(4, 2)
    ),
    "fewer positions than chunks": Case(length=3),
    "many tiles": Case(length=700, dtype=torch.float32, window=300),
    "documents given out by cost": Case(length=1030, dtype=torch.float32, lengths=((900, 130), (1000, 30), (950, 80))),
    "bf16": Case(dtype=torch.bfloat16, length=300, heads=(4, 2)),
}


def attention(rank_info: RankInfo) -> dict[str, dict[str, float]]:
    """Per case and kind the largest difference, of results and of each gradient, relative to the largest value."""
    config = ParallelConfig.model_validate({"context": rank_info.size})
    with distributed(config, CPU, rank_info) as world:
        size = world.axis_size(CONTEXT)
        ways = {"ring": RingAttention(Ring(world)), "all-to-all": AllToAllAttention(world)}
        fitting = [(name, way) for name, case in CASES.items() for way in ways if fits(case, way, size)]
        return {f"{name}, {way}": _differences(CASES[name], ways[way], world) for name, way in fitting}


def fits(case: Case, way: str, ranks: int) -> bool:
    """Whether ranks can share the heads, where they do."""
    return way == "ring" or case.heads[0] % ranks == 0


def _differences(case: Case, way: Any, world: World) -> dict[str, float]:
    torch.manual_seed(7)
    mask = AttentionMask(case.kind, case.lengths, case.key_lengths, case.window, case.prefixes)
    tensors = _tensors(case)
    options: dict[str, Any] = {"softcap": case.softcap}
    if case.dropout:
        hashes = site_keys(row_keys(1, 2, torch.arange(ROWS)), 3, 16)
        options["dropout"] = AttentionDropout(hashes, case.dropout)
    answer = torch.randn(ROWS, case.heads[0], case.length, VALUE_DIM).to(case.dtype)
    size, rank = world.axis_size(CONTEXT), world.axis_rank(CONTEXT)
    query_part = row_part(replace(mask, kind="causal") if case.kind == "cross" else mask, size, rank, case.length, ROWS)
    key_part = query_part
    if case.kind == "cross":
        key_part = row_part(AttentionMask("bidirectional", case.key_lengths), size, rank, case.key_length, ROWS)
    parts = {"query": query_part, "key": key_part, "value": key_part}
    expected = _run(attend, mask, tensors, options, answer)
    own = {name: _cut(each, parts.get(name)) for name, each in tensors.items()}
    found = _run(way, replace(mask, part=query_part, key_part=key_part), own, options, _cut(answer, query_part))
    for name in ("bias", "sinks"):
        if name in found:
            world.all_reduce_sum(found[name], CONTEXT)
    parts["out"] = query_part
    return {name: _distance(each, _cut(expected[name], parts.get(name))) for name, each in found.items()}


def _tensors(case: Case) -> dict[str, Tensor]:
    heads, kv_heads = case.heads
    found = {
        "query": torch.randn(ROWS, heads, case.length, DIM),
        "key": torch.randn(ROWS, kv_heads, case.key_length, DIM),
        "value": torch.randn(ROWS, kv_heads, case.key_length, VALUE_DIM),
    }
    if case.bias:
        found["bias"] = torch.randn(heads, 2 * case.length - 1)
    if case.sinks:
        found["sinks"] = torch.randn(heads)
    return {name: each.to(case.dtype) for name, each in found.items()}


def _cut(x: Tensor, part: RowPart | None) -> Tensor:
    """The part of [batch, heads, time, dim]; what is no sequence stays."""
    return x if part is None else cut_rows(x.transpose(1, 2), part).transpose(1, 2)


def _run(
    way: Any, mask: AttentionMask, tensors: dict[str, Tensor], options: dict[str, Any], answer: Tensor
) -> dict[str, Tensor]:
    """The result, and the gradient of each tensor."""
    inputs = {name: each.detach().clone().requires_grad_() for name, each in tensors.items()}
    query, key, value, *_ = inputs.values()
    rest = {name: each for name, each in inputs.items() if name in ("bias", "sinks")}
    out = way(query, key, value, mask, **options, **rest)
    out.backward(answer)
    return {"out": out.detach(), **{name: each.grad for name, each in inputs.items() if each.grad is not None}}


def _distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def first_step(rank_info: RankInfo, settings: dict[str, Any]) -> dict[str, Any]:
    """Loss terms, every gradient after the first step, and losses of tokens in evaluation, as nested lists."""
    run = Run(**settings)
    config = ParallelConfig.model_validate(run.parallel)
    with distributed(config, CPU, rank_info) as world:
        engine = trajectory.make_engine(run, config, CPU, world)
        grid = trajectory.grid_of(run, 0)
        total = sum(float(batch.weights.sum()) for batch in grid)
        sums = engine.forward_backward(trajectory.share(grid, world), total, (5, 0))
        gradients = _gradients(engine)
        losses = engine.evaluate(grid[0])
        logits = engine.logits(grid[0].tokens) if engine.model.encoder is None else losses[..., None]
        found = {"losses": losses * grid[0].weights, "logits": logits, **sums, **gradients}
        return {name: each.double().tolist() for name, each in found.items()}


def _gradients(engine: Engine) -> dict[str, Tensor]:
    found = {name: each.grad for name, each in engine.named_parameters.items() if each.grad is not None}
    assert found.keys() == engine.named_parameters.keys()
    return found


def kept_bytes(rank_info: RankInfo, kind: str, sequence: int) -> int:
    """Bytes that this rank keeps for backward of one row, parameters and their casts apart."""
    run = Run(context=rank_info.size, sequence=sequence, microbatches=1, width=32, sizes={"heads": 4})
    config = ParallelConfig.model_validate({"context": {"ranks": rank_info.size, "kind": kind}})
    with distributed(config, CPU, rank_info) as world:
        engine = trajectory.make_engine(run, config, CPU, world)
        own = {each.untyped_storage().data_ptr() for each in engine.model.parameters()}
        kept = dict[int, int]()

        def pack(x: Tensor) -> Tensor:
            storage = x.untyped_storage()
            if storage.data_ptr() not in own:
                kept[storage.data_ptr()] = storage.nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            inputs = engine.inputs(trajectory.grid_of(run, 0)[0])
            hidden, _ = engine.model(**inputs)
        assert hidden.shape[1] * rank_info.size == sequence
        return sum(kept.values())


def shifts(rank_info: RankInfo, parts: list[list[list[int]]], length: int, counts: list[int]) -> list[list[float]]:
    """Of values that move over parts: differences of values, of a mask and of gradients from those of whole rows."""
    config = ParallelConfig.model_validate({"context": rank_info.size})
    with distributed(config, CPU, rank_info) as world:
        part = RowPart(tuple(tuple((first, end) for first, end in spans) for spans in parts), world.rank, length)
        generator = torch.Generator().manual_seed(1)
        whole, factors = (torch.randn(2, length, 3, generator=generator, dtype=torch.float64) for _ in range(2))
        found = []
        for count in counts:
            valid = (torch.arange(length) < length - count)[None, :, None]
            rolled, gradient = whole.roll(-count, 1) * valid, (factors * valid).roll(count, 1)
            x = cut_rows(whole, part).requires_grad_()
            shifted, here = shift_parts(world, x, count, part), cut_rows(valid.expand(2, -1, 1), part)
            (shifted * here * cut_rows(factors, part)).sum().backward()
            assert x.grad is not None
            mask = shift_parts(world, cut_rows(whole[..., 0] > 0, part), count, part)
            pairs = [(shifted * here, cut_rows(rolled, part)), (x.grad, cut_rows(gradient, part))]
            pairs.append((mask & here[..., 0], cut_rows(rolled[..., 0] > 0, part)))
            found.append([float((a.detach().double() - b.double()).abs().max()) for a, b in pairs])
        return found
