"""The loss of a GPU, written for one kernel: eager, compiled and on the device, beside torch's in float64."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.heads import head as head_module
from hornbook.model.heads.head import lm_head
from hornbook.model.heads.losses import LossTerms, loss_and_grad_
from hornbook.model.layers.embedding import Embedding
from tests.gpu import DEVICES

TERMS = {"plain": LossTerms(), "all": LossTerms(0.1, 1e-2, 5.0), "padded": LossTerms(0.1, 0.0, None, 37)}
ROWS, VOCAB = 21, 50


def check(compute: Callable[..., Any], terms: LossTerms, device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROWS, VOCAB, generator=generator)
    targets = torch.randint(37, (ROWS,), generator=generator)
    weights = torch.rand(ROWS, generator=generator)
    exact = logits.double().requires_grad_()
    capped = exact if terms.softcap is None else terms.softcap * torch.tanh(exact / terms.softcap)
    spread = capped[:, : terms.num_real_tokens]
    logsum = capped.logsumexp(1)
    plain = F.cross_entropy(capped, targets, reduction="none")
    losses = ((1 - terms.smoothing) * plain + terms.smoothing * (logsum - spread.mean(1))) * weights.double()
    squares = terms.z_loss * logsum.square() * weights.double()
    (losses + squares).sum().backward()
    given = logits.to(device)
    found, extra = compute(given, targets.to(device), weights.to(device), True, terms)
    assert exact.grad is not None
    assert torch.allclose(found.cpu().double(), losses.detach(), atol=1e-5)
    assert torch.allclose(given.cpu().double(), exact.grad, atol=1e-5)
    if extra is not None:
        assert torch.allclose(extra.cpu().double(), squares.detach(), atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_eager(terms: LossTerms, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.model.heads.losses.supports", lambda *_: False)  # as a GPU is answered
    check(loss_and_grad_, terms, device)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_compiled(terms: LossTerms, device: torch.device) -> None:
    """Here by the compiler's code for a CPU."""
    torch._dynamo.reset()
    check(torch.compile(loss_and_grad_, dynamic=False, fullgraph=True), terms, device)


@pytest.mark.parametrize("rows", [3, 8, 1000])
def test_chunks_of_a_device_give_the_same_loss(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    embedding = Embedding(VOCAB, 16)
    torch.nn.init.normal_(embedding.weight)
    head = lm_head(LMHead(), ModelConfig(width=16, heads=2, layers=1), VOCAB, embedding)
    hidden, targets = torch.randn(2, 11, 16), torch.randint(VOCAB, (2, 11))
    want = head.losses(hidden, targets, torch.ones(2, 11))["loss"]
    monkeypatch.setattr(head_module, "chunk_rows", lambda *_: rows)
    assert torch.allclose(head.losses(hidden, targets, torch.ones(2, 11))["loss"], want, rtol=1e-6)


@pytest.mark.parametrize("tokens", [1, 9, 4096, 32_768, 12_345, 10_007])
def test_chunks_of_a_device_are_bounded_by_bytes_and_of_one_size(tokens: int) -> None:
    """But for numbers of tokens without a divisor that is near: there the last chunk is smaller."""
    shapes = (1, tokens, 8), (128_256, 8)
    hidden, matrix = (torch.empty(shape, device="meta", dtype=torch.bfloat16) for shape in shapes)
    rows, most = head_module.chunk_rows(hidden, matrix), head_module.DEVICE_CHUNK_BYTES // (128_256 * 2)
    assert min(tokens, most / 2) <= rows <= most
    assert tokens % rows == 0 or tokens == 10_007  # a prime


def test_chunks_of_a_gpu_are_a_share_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def properties(device: torch.device) -> Any:
        asked.append(device)
        return SimpleNamespace(total_memory=80 * 2**30)

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    head_module.device_chunk_bytes.cache_clear()
    device = torch.device("cuda", 0)
    assert {head_module.device_chunk_bytes(device) for _ in range(3)} == {80 * 2**30 // head_module.DEVICE_SHARE}
    assert asked == [device]
    head_module.device_chunk_bytes.cache_clear()


def test_no_tokens_have_no_loss() -> None:
    hidden = torch.empty(0, 8, device="meta", dtype=torch.bfloat16)
    assert head_module.chunk_rows(hidden, torch.empty(50, 8, device="meta")) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_logits_begin_where_a_gpu_reads_fast(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all three products that read or write them, for any number of tokens in the vocabulary."""
    seen: list[torch.Tensor] = []

    def noted(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        seen.extend(each for each in (left, out) if VOCAB in each.shape and ROWS in each.shape)
        return torch.mm(left, right, out=out)

    monkeypatch.setattr(head_module, "mm_into", noted)
    with torch.device("meta"):
        head = lm_head(LMHead(), ModelConfig(width=16, heads=2, layers=1), VOCAB, Embedding(VOCAB, 16))
        hidden, targets = torch.randn(1, ROWS, 16, dtype=dtype, requires_grad=True), torch.zeros(1, ROWS).long()
        head.losses(hidden, targets, torch.ones(1, ROWS))["loss"].backward()
    assert len(seen) == (3 if dtype == torch.bfloat16 else 2)  # in float32 the third adds to the gradient
    assert all(max(each.stride()) * dtype.itemsize % head_module.ROW_UNIT == 0 for each in seen)


@pytest.mark.parametrize("terms", TERMS.values(), ids=list(TERMS))
def test_room_between_rows_changes_no_loss(terms: LossTerms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hornbook.model.heads.losses.supports", lambda *_: False)  # as a GPU is answered
    head = lm_head(LMHead(softcap=terms.softcap), ModelConfig(width=16, heads=2, layers=1), VOCAB, Embedding(VOCAB, 16))
    head.num_real_tokens = terms.num_real_tokens
    torch.nn.init.normal_(head.matrix, generator=torch.Generator().manual_seed(0))
    hidden, targets = torch.randn(2, 11, 16, requires_grad=True), torch.randint(37, (2, 11))
    settings = {"smoothing": terms.smoothing, "z_loss": terms.z_loss}

    def found() -> tuple[torch.Tensor, ...]:
        loss = head.losses(hidden, targets, torch.ones(2, 11), **settings)["loss"]
        return loss.detach(), *torch.autograd.grad(loss, [hidden, head.matrix])

    plain = found()
    monkeypatch.setattr(head_module, "row_values", lambda vocab, _: vocab + 14)
    assert all(map(torch.equal, plain, found()))
