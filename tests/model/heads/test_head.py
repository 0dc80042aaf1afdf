"""The chunked loss equals the naive one; all logits are never held."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.heads import head as head_module
from hornbook.model.heads.head import ChunkedLoss, Head, Transform
from hornbook.model.heads.losses import LossTerms, loss_and_grad_
from hornbook.model.layers.embedding import Embedding
from hornbook.model.layers.norm import LayerNorm

VOCAB, WIDTH = 37, 8


def problem(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = (3 * torch.randn(3, 50, WIDTH, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(0, VOCAB, (3, 50), generator=generator)
    weights = torch.rand(3, 50, generator=generator) * (torch.rand(3, 50, generator=generator) > 0.3)
    return hidden, targets, weights


def random_head(tied: bool = False) -> Head:
    embedding = Embedding(VOCAB, WIDTH)
    head = Head(VOCAB, WIDTH, embedding if tied else None)
    torch.nn.init.normal_(head.matrix, generator=torch.Generator().manual_seed(1))
    return head


def naive(head: Head, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    logits = hidden.double() @ head.matrix.double().T
    return (F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none") * weights.flatten()).sum()


@pytest.mark.parametrize("chunk", [4, 28, 256, 600, 4096])
@pytest.mark.parametrize("tied", [True, False])
def test_chunked_loss_equals_the_naive_one(chunk: int, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "CHUNK_BYTES", chunk)
    head, (hidden, targets, weights) = random_head(tied), problem()
    loss = head.losses(hidden, targets, weights)["loss"]
    want = naive(head, hidden, targets, weights)
    assert loss.dtype == torch.float32
    assert abs(float(loss.detach() - want.detach())) < 1e-6 * float(want.detach())
    leaves = [hidden, head.matrix]
    grads, wanted = torch.autograd.grad(loss / 7, leaves), torch.autograd.grad(want / 7, leaves)
    for got, true in zip(grads, wanted, strict=True):
        assert float((got - true).abs().max()) < 1e-6 * float(true.abs().max())
    assert torch.all(grads[0][weights == 0] == 0)


def test_chunked_loss_in_bfloat16() -> None:
    """Logits of size up to 30 are rounded to 2^-9 of themselves, 0.06; over 150 tokens the errors cancel."""
    head, (hidden, targets, weights) = random_head(), problem(torch.bfloat16)
    loss, want = head.losses(hidden, targets, weights)["loss"], naive(head, hidden, targets, weights)
    assert abs(float(loss.detach() - want.detach())) < 0.01 * float(want.detach())
    leaves = [hidden, head.matrix]
    for got, true in zip(torch.autograd.grad(loss, leaves), torch.autograd.grad(want, leaves), strict=True):
        assert got.dtype == true.dtype
        assert float((got - true).abs().max()) < 0.05 * float(true.abs().max())


@pytest.mark.parametrize(
    "terms", [LossTerms(), LossTerms(smoothing=0.1), LossTerms(0.1, 0.0, 5.0), LossTerms(0.1, 0.0, None, 9)]
)
def test_gradients_by_finite_differences(terms: LossTerms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "CHUNK_BYTES", 40)  # 5 rows
    hidden, targets, weights = problem(torch.float64)
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(VOCAB, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
    bias = torch.randn(VOCAB, dtype=torch.float64, generator=generator).requires_grad_()
    flat = hidden.detach().flatten(0, 1)[:12].requires_grad_()
    rest = targets.flatten()[:12], weights.flatten()[:12].double(), terms, True, loss_and_grad_
    torch.autograd.gradcheck(lambda h, m, b: ChunkedLoss.apply(h, m, b, *rest)[0], (flat, matrix, bias))


@pytest.mark.parametrize(
    ("smoothing", "z_loss", "softcap"), [(0.1, 0.0, None), (0.0, 1e-2, None), (0.0, 0.0, 3.0), (0.2, 1e-2, 3.0)]
)
def test_added_terms_are_their_formulas(smoothing: float, z_loss: float, softcap: float | None) -> None:
    head, (hidden, targets, weights) = Head(VOCAB, WIDTH, None, bias=True, softcap=softcap), problem()
    assert head.bias is not None
    generator = torch.Generator().manual_seed(1)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    found = head.losses(hidden, targets, weights, smoothing=smoothing, z_loss=z_loss)
    logits = head.logits(hidden)
    plain = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing)
    wanted = {"loss": (plain * weights.flatten()).sum()}
    if z_loss:
        wanted["z_loss"] = (z_loss * logits.logsumexp(-1).square() * weights).sum()
    assert {name: float(each.detach()) for name, each in found.items()} == pytest.approx(
        {name: float(each.detach()) for name, each in wanted.items()}, rel=1e-5
    )
    leaves = [hidden, head.weight, head.bias]
    objectives = sum(found.values()), sum(wanted.values())
    for got, true in zip(*(torch.autograd.grad(each, leaves) for each in objectives), strict=True):
        assert float((got - true).abs().max()) < 1e-5 * float(true.abs().max())


def test_gradients_of_logits_are_never_subnormal() -> None:
    logits = torch.linspace(-120.0, 0.0, 500).repeat(3, 1)
    loss_and_grad_(logits, torch.tensor([499, 0, 250]), torch.ones(3), True, LossTerms(z_loss=1e-4))
    assert bool((logits[:, 499] != 0).all())
    small = logits.abs() < torch.finfo(torch.float32).tiny
    assert bool((logits[small] == 0).all())


def test_labels_are_smoothed_over_tokens_and_not_over_padding_rows() -> None:
    """As over the tokens alone with the padding's probability beside them: the target's share is the same."""
    head, (hidden, targets, weights) = Head(VOCAB, WIDTH, None), problem()
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(1))
    head.num_real_tokens, smoothing = VOCAB - 5, 0.1
    targets = targets % head.num_real_tokens
    spread = torch.zeros(*targets.shape, VOCAB)
    spread[..., : head.num_real_tokens] = smoothing / head.num_real_tokens
    wanted = spread.scatter_add(-1, targets[..., None], torch.full((*targets.shape, 1), 1 - smoothing))
    expected = -(head.logits(hidden).log_softmax(-1) * wanted).sum(-1).mul(weights).sum()
    found = head.losses(hidden, targets, weights, smoothing=smoothing)["loss"]
    assert torch.allclose(found, expected, rtol=1e-5)
    got, true = (torch.autograd.grad(each, head.weight)[0] for each in (found, expected))
    assert float((got - true).abs().max()) < 1e-5 * float(true.abs().max())


def test_every_part_may_be_trained_alone() -> None:
    """The bias behind a frozen matrix and frozen hidden states had no gradient and ended in a TypeError."""
    hidden, targets, weights = problem()
    for trained in ("bias", "weight", "hidden"):
        head = Head(VOCAB, WIDTH, None, bias=True)
        assert head.bias is not None
        leaves = {"hidden": hidden.detach().requires_grad_(), "weight": head.weight, "bias": head.bias}
        for parameter in head.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
        (whole,) = torch.autograd.grad(head.losses(leaves["hidden"], targets, weights)["loss"], leaves[trained])
        for name, leaf in leaves.items():
            leaf.requires_grad_(name == trained)
        head.losses(leaves["hidden"], targets, weights)["loss"].backward()
        assert torch.equal(leaves[trained].grad, whole)
        assert [name for name, leaf in leaves.items() if leaf.grad is not None] == [trained]


def test_a_head_with_a_step_before_it_counts_only_what_has_weight() -> None:
    norm = LayerNorm(WIDTH, LayerNormConfig())
    head = Head(VOCAB, WIDTH, None, Transform(WIDTH, True, "gelu", norm), bias=True)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    hidden, targets, weights = problem()
    loss, nll = head.losses(hidden, targets, weights)["loss"], head.token_losses(hidden, targets)
    assert torch.allclose(loss, (nll * weights).sum(), rtol=1e-5)
    assert torch.allclose(nll, -head.logits(hidden).log_softmax(-1).gather(-1, targets[..., None])[..., 0], atol=1e-5)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert torch.equal(gradient.abs().sum(-1) > 0, weights > 0)
    nothing = head.losses(hidden, targets, torch.zeros_like(weights))["loss"]
    assert float(nothing.detach()) == 0
    assert float(torch.autograd.grad(nothing, hidden)[0].abs().max()) == 0


def test_token_losses_sum_to_the_loss() -> None:
    head, (hidden, targets, weights) = random_head(), problem()
    losses = head.token_losses(hidden, targets)
    assert losses.shape == targets.shape
    assert not losses.requires_grad
    assert torch.allclose((losses * weights).sum(), head.losses(hidden, targets, weights)["loss"], rtol=1e-6)


def test_a_loss_without_gradients_computes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    head, (hidden, targets, weights) = random_head(), problem()
    monkeypatch.setattr(torch, "zeros_like", None)  # the matrix's gradient would begin with it
    with torch.no_grad():
        assert torch.isfinite(head.losses(hidden, targets, weights)["loss"])


def test_logits_are_float32() -> None:
    head, (hidden, _, _) = random_head(), problem(torch.bfloat16)
    assert head.logits(hidden).dtype == torch.float32
    assert head.logits(hidden).shape == (3, 50, VOCAB)


def test_never_all_logits_at_once() -> None:
    """The largest block of logits has a chunk's rows, whatever the number of tokens."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                largest = max(largest, result.numel())
            return result

    head = Head(4000, WIDTH, None)
    torch.nn.init.normal_(head.matrix)
    rows = head_module.CHUNK_BYTES // 4
    hidden = torch.randn(1, 3 * rows, WIDTH, requires_grad=True)
    targets = torch.zeros(hidden.shape[:2], dtype=torch.int64)
    with Watch():
        head.losses(hidden, targets, torch.ones(targets.shape))["loss"].backward()
    assert largest == rows * 4000


@pytest.mark.parametrize("total", [8192.0, 8100.0, 5_450_000.0])
def test_all_gradients_are_scaled_by_the_same_factor(total: float) -> None:
    """A factor rounded to bfloat16 scaled what lies below the head by 0.9964 of what it should (divisor 8100).

    Rounding each element instead changes the norm by some 1e-4.
    """
    torch.manual_seed(0)
    head = Head(32, 16, None)
    torch.nn.init.normal_(head.weight)
    hidden, targets = torch.randn(1, 64, 16), torch.randint(0, 32, (1, 64))
    norms = []
    for divisor in (1.0, total):
        leaf = hidden.bfloat16().requires_grad_()
        head.weight.grad = None
        (head.losses(leaf, targets, torch.ones(1, 64))["loss"] / divisor).backward()
        assert leaf.grad is not None
        assert head.weight.grad is not None
        norms.append((float(leaf.grad.double().norm()) * divisor, float(head.weight.grad.double().norm()) * divisor))
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
