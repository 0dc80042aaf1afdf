"""The ways of a GPU equal the formula. They run here on a CPU: FlexAttention as its eager form, flash attention over
documents as a loop of the same contract; on a GPU (marker `gpu`) the kernels themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from hornbook.kernels.torch_versions import compile_options
from hornbook.model.attention import attend as attend_module
from hornbook.model.attention import device_attention, key_tables
from hornbook.model.attention.attend import attend, choose_way
from hornbook.model.attention.key_tables import BLOCK, KeyTables, block_mask, with_tables
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiled_attention import Scoring
from hornbook.model.layers.dropout import AttentionDropout
from tests.gpu import DEVICES
from tests.model.attention.reference import dense_mask, reference_attention

PIECES = ((300,), (100, 130, 70), (1, 1, 1, 255, 42))
PREFIXES = ((50,), (0, 130, 3), (1, 0, 0, 200, 5))
SQUARE, ACROSS = (3, 300, 300), (3, 200, 90)
MASKS: dict[str, tuple[tuple[int, int, int], AttentionMask]] = {
    "causal": (SQUARE, AttentionMask()),
    "causal, window": (SQUARE, AttentionMask(window=9)),
    "causal, documents": (SQUARE, AttentionMask(lengths=PIECES)),
    "causal, documents, window": (SQUARE, AttentionMask(lengths=PIECES, window=17)),
    "causal, documents, prefixes": (SQUARE, AttentionMask(lengths=PIECES, prefixes=PREFIXES)),
    "causal, prefixes, window": (SQUARE, AttentionMask(lengths=PIECES, prefixes=PREFIXES, window=40)),
    "causal, behind others": ((3, 140, 300), AttentionMask(lengths=PIECES)),
    "bidirectional": (SQUARE, AttentionMask("bidirectional")),
    "bidirectional, documents": (SQUARE, AttentionMask("bidirectional", PIECES)),
    "bidirectional, documents, window": (SQUARE, AttentionMask("bidirectional", PIECES, window=30)),
    "cross": (ACROSS, AttentionMask("cross")),
    "cross, keys": (ACROSS, AttentionMask("cross", None, ((80, 10), (90,), (1, 89)))),
    "cross, documents": (
        ACROSS,
        AttentionMask("cross", ((150, 50), (0, 200), (100, 100)), ((30, 60), (40, 50), (0, 90))),
    ),
}
CONFINED = ("causal, documents", "causal, window", "causal, documents, window", "bidirectional, documents")
CONFINED += ("bidirectional, documents, window", "cross, documents")
SCORES = {"plain": (), "softcap": ("softcap",), "bias": ("bias",), "sinks": ("sinks",)}
SCORES["all"] = ("softcap", "bias", "sinks")


EAGER_FLEX = torch.compile(
    flex_attention,
    backend="eager",
    fullgraph=True,
    dynamic=False,
    **compile_options(recompile_limit=256, isolate_recompiles=True),
)


def draw(shape: tuple[int, int, int], heads: int, kv_heads: int, device: torch.device, dim: int = 16) -> list[Tensor]:
    """Query, key and value that want gradients."""
    (batch, queries, keys), generator = shape, torch.Generator().manual_seed(0)
    sizes = (heads, queries), (kv_heads, keys), (kv_heads, keys)
    drawn = [torch.randn(batch, count, time, dim, generator=generator) for count, time in sizes]
    return [each.to(device).requires_grad_() for each in drawn]


def options(names: tuple[str, ...], heads: int, keys: int, device: torch.device) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    values = {
        "softcap": 2.0,
        "bias": torch.randn(heads, 2 * keys + 5, generator=generator).to(device).requires_grad_(),
        "sinks": torch.randn(heads, generator=generator).to(device).requires_grad_(),
    }
    return {name: values[name] for name in names}


def check(parts: list[Tensor], mask: AttentionMask, chosen: dict[str, Any], tolerance: float = 2e-5) -> None:
    """`attend` gives the values and gradients of the formula in float64, relative to their largest."""
    wanted = [*parts, *(each for each in chosen.values() if isinstance(each, Tensor))]
    exact = [each.detach().double().cpu().requires_grad_() for each in wanted]
    names = [name for name, each in chosen.items() if isinstance(each, Tensor)]
    wide = {**chosen, **dict(zip(names, exact[3:], strict=True))}
    scoring = Scoring(**{"scale": 0.3, **wide})
    want = reference_attention(*exact[:3], mask, scoring)
    device = parts[0].device
    shape = (len(parts[0]), parts[0].shape[2], parts[1].shape[2])
    got = attend(*parts, with_tables(mask, shape, device), scale=0.3, **chosen)
    grad = torch.randn(got.shape, generator=torch.Generator().manual_seed(2))
    pairs = [(got, want)]
    found = torch.autograd.grad(got, wanted, grad.to(device, got.dtype))
    pairs += zip(found, torch.autograd.grad(want, exact, grad.double()), strict=True)
    for one, true in pairs:
        assert one.shape == true.shape
        difference = float((one.detach().cpu() - true.detach()).abs().max())
        assert difference < tolerance * max(1.0, float(true.detach().abs().max()))


@contextmanager
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch, device: torch.device, *ways: str) -> Iterator[list[str]]:
    """Lets `attend` choose as it would on a GPU, and only among `ways`; gives the ways that it took."""
    taken: list[str] = []

    def choose(*args: Any) -> str:
        taken.append(choose_way(*args))
        return taken[-1]

    with monkeypatch.context() as patch:
        patch.setattr(attend_module, "choose_way", choose)
        patch.setattr(attend_module, "takes_blocks", lambda *_: "blocks" in ways)
        patch.setattr(attend_module, "takes_documents", lambda *_: "documents" in ways)
        if device.type == "cpu":
            patch.setattr(attend_module, "takes_tiles", lambda _: False)
            patch.setattr(device_attention, "_flex_attention", lambda _: EAGER_FLEX)
            patch.setattr(key_tables, "is_host", lambda _: False)
            patch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
            patch.setattr("torch.nn.attention.varlen.varlen_attn", document_by_document)
        key_tables.key_tables.cache_clear()
        yield taken
    key_tables.key_tables.cache_clear()


def document_by_document(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
) -> Tensor:
    """What `torch.nn.attention.varlen.varlen_attn` computes, as a loop."""
    assert enable_gqa == (query.shape[1] != key.shape[1])
    assert query_starts.dtype == key_starts.dtype == torch.int32
    found = []
    for i in range(len(query_starts) - 1):
        own, seen = (slice(int(each[i]), int(each[i + 1])) for each in (query_starts, key_starts))
        parts = [each.transpose(0, 1)[None] for each in (query[own], key[seen], value[seen])]
        queries, keys = parts[0].shape[2], parts[1].shape[2]
        assert queries <= longest_query
        assert keys <= longest_key
        distance = torch.arange(keys) - torch.arange(keys - queries, keys)[:, None]
        left, right = (keys + queries if each < 0 else each for each in window_size)
        allowed = (distance <= right) & (distance >= -left)
        bias = torch.where(allowed, 0.0, -torch.inf)
        groups = query.shape[1] // key.shape[1]
        scores = parts[0] @ parts[1].repeat_interleave(groups, 1).transpose(-1, -2) * scale + bias
        found.append((scores.softmax(-1) @ parts[2].repeat_interleave(groups, 1))[0].transpose(0, 1))
    return torch.cat(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("names", SCORES.values(), ids=list(SCORES))
@pytest.mark.parametrize(("shape", "mask"), MASKS.values(), ids=list(MASKS))
def test_flex_attention_equals_the_formula(
    shape: tuple[int, int, int],
    mask: AttentionMask,
    names: tuple[str, ...],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = tuple(name for name in names if mask.kind != "cross" or name != "bias")
    parts = draw(shape, 4, 2, device)
    with as_on_a_gpu(monkeypatch, device, "blocks") as taken:
        check(parts, mask, options(names, 4, shape[2], device))
    assert taken == ["whole" if mask == AttentionMask(mask.kind) and not names else "blocks"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("name", CONFINED)
def test_documents_behind_one_another_equal_the_formula(
    name: str, kv_heads: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, mask = MASKS[name]
    if name == "cross, documents":  # a document without keys is for the formula alone: the loop divides by nothing
        mask = replace(mask, key_lengths=((30, 60), (40, 50), (5, 85)))
    parts = draw(shape, 4, kv_heads, device)
    if device.type == "cuda":
        parts = [each.detach().bfloat16().requires_grad_() for each in parts]
    with as_on_a_gpu(monkeypatch, device, "documents", "blocks") as taken:
        check(parts, mask, {}, 2e-5 if device.type == "cpu" else 0.03)
    assert taken == ["documents"]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("names", SCORES.values(), ids=list(SCORES))
@pytest.mark.parametrize("name", ["causal, documents", "causal, behind others", "bidirectional, documents, window"])
def test_chunks_of_the_formula_equal_it(
    name: str, names: tuple[str, ...], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no kernel fits, memory stays below `MOST_PAIRS` scores; dropout falls where it would in one piece."""
    shape, mask = MASKS[name]
    monkeypatch.setattr(attend_module, "MOST_PAIRS", 3 * 4 * shape[2] * 9)
    hashes = (7 * torch.arange(3) + 5).to(device)
    for dropout in (None, AttentionDropout(hashes, 0.3)):
        parts, chosen = draw(shape, 4, 2, device), options(names, 4, shape[2], device)
        with as_on_a_gpu(monkeypatch, device) as taken:
            cpu = None if dropout is None else dropout._replace(hashes=hashes.cpu())
            check_dropped(parts, mask, chosen, dropout, cpu)
        assert taken == ["formula"]


def check_dropped(
    parts: list[Tensor], mask: AttentionMask, chosen: dict[str, Any], dropout: Any, cpu: AttentionDropout | None
) -> None:
    shape = (len(parts[0]), parts[0].shape[2], parts[1].shape[2])
    got = attend(*parts, with_tables(mask, shape, parts[0].device), **chosen, dropout=dropout)
    wide = {key: each.detach().double().cpu() if isinstance(each, Tensor) else each for key, each in chosen.items()}
    exact = [each.detach().double().cpu() for each in parts]
    want = reference_attention(*exact, mask, Scoring(**{"scale": exact[0].shape[-1] ** -0.5, **wide, "dropout": cpu}))
    assert float((got.detach().cpu() - want).abs().max()) < 1e-5


@pytest.mark.parametrize(("shape", "mask"), MASKS.values(), ids=list(MASKS))
def test_blocks_hold_what_is_seen(shape: tuple[int, int, int], mask: AttentionMask) -> None:
    """Full blocks see all, blocks left out nothing; of documents that follow one another no block is listed in vain."""
    batch, queries, keys = shape
    intervals = [mask.intervals(queries, keys, row) for row in range(batch)]
    starts, ends = (torch.stack(each).int() for each in zip(*intervals, strict=True))
    made = block_mask(starts, ends, keys, (starts, ends))
    seen = dense_mask(mask, batch, queries, keys).expand(batch, queries, keys)
    missing = (0, -keys % BLOCK, 0, -queries % BLOCK)
    blocks = torch.nn.functional.pad(seen, missing).unflatten(2, (-1, BLOCK)).unflatten(1, (-1, BLOCK))
    some, whole = blocks.any(4).any(2), blocks.all(4).all(2)
    assert torch.equal(listed(made.full_kv_num_blocks, made.full_kv_indices), whole)
    partial = listed(made.kv_num_blocks, made.kv_indices)
    assert not torch.any(partial & whole)
    assert torch.all(partial | whole | ~some)
    if mask.kind != "cross":
        assert torch.equal(partial, some & ~whole)
    assert torch.equal(listed(made.q_num_blocks, made.q_indices), partial.transpose(1, 2))
    assert made.seq_lengths == (queries, keys)


@pytest.mark.parametrize(("shape", "mask"), MASKS.values(), ids=list(MASKS))
def test_intervals_of_all_rows_are_those_of_each(shape: tuple[int, int, int], mask: AttentionMask) -> None:
    batch, queries, keys = shape
    rows = [mask.intervals(queries, keys, row) for row in range(batch)]
    for found, each in zip(mask.intervals_of_rows(queries, keys, batch), zip(*rows, strict=True), strict=True):
        assert torch.equal(found, torch.stack(each))


def test_rows_of_other_lengths_than_the_keys_are_refused() -> None:
    with pytest.raises(AssertionError, match="row 1"):
        AttentionMask(lengths=((3, 4), (3, 5))).intervals_of_rows(7, 7, 2)


@pytest.mark.parametrize(("shape", "mask"), MASKS.values(), ids=list(MASKS))
def test_blocks_are_as_torch_makes_them(shape: tuple[int, int, int], mask: AttentionMask) -> None:
    batch, queries, keys = shape
    starts, ends = (each.int() for each in mask.intervals_of_rows(queries, keys, batch))
    made = block_mask(starts, ends, keys, (starts, ends))
    given = made.kv_num_blocks, made.kv_indices, made.full_kv_num_blocks, made.full_kv_indices
    want = BlockMask.from_kv_blocks(*given, BLOCK, seq_lengths=(queries, keys))
    assert made.BLOCK_SIZE == want.BLOCK_SIZE
    for name in ("q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices"):
        found, theirs = getattr(made, name), getattr(want, name)
        assert (found.dtype, found.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(found, theirs)


def listed(numbers: Tensor | None, indices: Tensor | None) -> Tensor:
    """[batch, rows, columns]: True at the columns listed in each row."""
    assert numbers is not None
    assert indices is not None
    found = torch.zeros(indices.shape, dtype=torch.bool)
    for place in torch.cartesian_prod(*map(torch.arange, numbers.shape)).tolist():
        row = tuple(place)
        found[(*row, indices[row][: int(numbers[row])].long())] = True
    return found[:, 0]


def tables(mask: AttentionMask, shape: tuple[int, int, int]) -> KeyTables:
    made = with_tables(mask, shape, torch.device("meta"), [None])
    assert made.tables is not None
    return made.tables[mask.window]


@pytest.mark.parametrize(
    ("name", "names", "dtype", "way"),
    [
        ("causal", (), torch.bfloat16, "whole"),
        ("bidirectional", (), torch.float32, "whole"),
        ("causal, documents", (), torch.bfloat16, "documents"),
        ("causal, documents", (), torch.float32, "blocks"),
        ("causal, window", (), torch.float16, "documents"),
        ("causal, documents, prefixes", (), torch.bfloat16, "blocks"),
        ("causal", ("softcap",), torch.bfloat16, "blocks"),
        ("causal", ("bias",), torch.bfloat16, "blocks"),
        ("causal, documents", ("sinks",), torch.bfloat16, "blocks"),
        ("causal", ("dropout",), torch.bfloat16, "formula"),
        ("causal, documents", (), torch.float64, "masked"),
        ("causal", ("softcap",), torch.float64, "formula"),
    ],
)
def test_the_choice(
    name: str, names: tuple[str, ...], dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tensors that have shapes alone, as a GPU would be asked."""
    monkeypatch.setattr(device_attention, "_is_gpu", lambda _: True)
    monkeypatch.setattr(device_attention, "_compiles", lambda: True)
    shape, mask = MASKS[name]
    batch, queries, keys = shape
    heads = [torch.empty(batch, 4, time, 64, dtype=dtype, device="meta") for time in (queries, keys, keys)]
    given = {"softcap": 2.0, "bias": torch.empty(4, 601), "sinks": torch.empty(4)}
    given["dropout"] = AttentionDropout(torch.zeros(3, dtype=torch.int64), 0.1)
    scoring = Scoring(0.1, **{key: given[key] for key in names})
    assert choose_way(*heads, tables(mask, shape), scoring) == way


def test_no_mask_of_all_pairs_beyond_the_bound() -> None:
    """32k positions of a dtype without kernels: chunks, where a mask would be a gigabyte."""
    heads = [torch.empty(1, 4, 2**15, 64, dtype=torch.float64, device="meta") for _ in range(3)]
    mask = AttentionMask(lengths=((2**14, 2**14),))
    assert choose_way(*heads, tables(mask, (1, 2**15, 2**15)), Scoring(0.1)) == "formula"
