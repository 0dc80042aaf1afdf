"""Balance of experts: the losses at their known points, padding, and the bias that evens out loads."""

import pytest
import torch
from torch import Tensor

from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.forward_context import Context
from hornbook.model.mlp.balance import balance_loss, over_capacity, router_z_loss, row_loads
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.router import Routing, SigmoidRouter, load_direction

EXPERTS = 8


def routing(scores: Tensor, active: int = 1) -> Routing:
    weights, experts = scores.topk(active, -1)
    return Routing(experts, weights, scores, scores.log())


@pytest.mark.parametrize("active", [1, 2, 4])
def test_balance_loss_is_one_when_all_is_even(active: int) -> None:
    """Even scores and even choices, whatever the number of active experts."""
    experts = torch.arange(2 * EXPERTS * active).view(2, EXPERTS, active) % EXPERTS
    even = torch.full((2, EXPERTS, EXPERTS), 1 / EXPERTS)
    loss = balance_loss(Routing(experts, even[..., :active], even, even.log()))
    torch.testing.assert_close(loss, torch.ones(2), rtol=1e-6, atol=0)


def test_balance_loss_is_the_number_of_experts_when_one_takes_all() -> None:
    collapsed = torch.zeros(2, 5, EXPERTS)
    collapsed[..., 3] = 1.0
    assert balance_loss(routing(collapsed)).tolist() == [EXPERTS, EXPERTS]


def test_the_gradient_of_the_balance_loss_favours_experts_with_less_load() -> None:
    logits = torch.randn(1, 64, EXPERTS, generator=torch.Generator().manual_seed(1)) + torch.arange(EXPERTS) / 4
    logits.requires_grad_()
    found = routing(logits.softmax(-1), 2)
    (slope,) = torch.autograd.grad(balance_loss(found).sum(), logits)
    loads = row_loads(found)[0]
    assert slope.sum((0, 1))[loads.argmax()] > 0 > slope.sum((0, 1))[loads.argmin()]


def test_it_is_transformers_number_divided_by_active_experts_for_one_row_and_layer() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = torch.randn(1, 40, EXPERTS, generator=torch.Generator().manual_seed(2))
    token_mask = torch.arange(40)[None] < 29
    theirs = load_balancing_loss_func((logits[0],), EXPERTS, 2, token_mask)
    assert isinstance(theirs, Tensor)
    torch.testing.assert_close(balance_loss(routing(logits.softmax(-1), 2), token_mask)[0], theirs / 2)


def test_padding_does_not_count() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 20, EXPERTS, generator=generator)
    lengths = torch.tensor([20, 7, 0])
    token_mask = torch.arange(20) < lengths[:, None]
    changed = torch.where(token_mask[..., None], logits, 9 * torch.randn(3, 20, EXPERTS, generator=generator))
    for statistic in (balance_loss, router_z_loss, row_loads):
        found = [statistic(routing(each.softmax(-1), 2), token_mask) for each in (logits, changed)]
        torch.testing.assert_close(found[0], found[1])
        assert not found[0][2].any()
        alone = statistic(routing(logits[1:2, :7].softmax(-1), 2))
        torch.testing.assert_close(found[0][1:2], alone)


def test_z_loss_is_the_mean_squared_log_sum() -> None:
    logits = torch.randn(2, 6, EXPERTS, generator=torch.Generator().manual_seed(4))
    wanted = logits.exp().sum(-1).log().pow(2).mean(1)
    found = router_z_loss(Routing(torch.zeros(2, 6, 1), logits, logits.softmax(-1), logits))
    torch.testing.assert_close(found, wanted)


def test_capacity_counts_per_expert_and_row() -> None:
    experts = torch.tensor([[[0], [1], [0], [0], [1]], [[2], [2], [2], [0], [2]]])
    wanted = [[False, False, False, True, False], [False, False, True, False, True]]
    assert over_capacity(experts, 3, 2).squeeze(-1).tolist() == wanted


def toy(rate: float = 0.02) -> tuple[Experts, Tensor]:
    """Experts behind a router that likes some of them far better, and tokens."""
    generator = torch.Generator().manual_seed(5)
    router = config_mlp.SigmoidRouterConfig(balance_rate=rate)
    experts = Experts(16, 8, config_mlp.ExpertsConfig(count=EXPERTS, active=2, router=router, balance_loss=0), layer=0)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
        experts.router.get_parameter("bias").zero_()
    tokens = torch.randn(4, 64, 16, generator=generator)
    return experts, tokens + experts.router.weight[0].detach() + 0.5 * experts.router.weight[3].detach()


def test_the_bias_evens_out_loads_and_never_changes_weights_of_the_chosen() -> None:
    experts, x = toy()
    router = experts.router
    assert isinstance(router, SigmoidRouter)
    first = router(x, Context())

    def variation() -> float:
        loads = experts(x, Context())[1]["load.0"].double()
        assert loads.sum() == x.shape[0] * x.shape[1] * 2
        return float(loads.std() / loads.mean())

    before = variation()
    for _ in range(60):
        loads = experts(x, Context())[1]["load.0"]
        with torch.no_grad():
            router.bias.add_(router.rate * load_direction(loads))
    assert variation() < 0.25 * before
    last = router(x, Context())
    assert torch.equal(last.scores, first.scores)
    assert not torch.equal(last.experts, first.experts)
    raw = first.logits.sigmoid().gather(-1, last.experts)
    torch.testing.assert_close(last.weights, raw / raw.sum(-1, keepdim=True))


def test_the_bias_takes_no_gradient_and_moves_against_the_load() -> None:
    experts, x = toy()
    experts(x, Context())[0].sum().backward()
    assert experts.router.get_parameter("bias").grad is None
    assert load_direction(torch.tensor([1, 3, 2])).tolist() == [1.0, -1.0, 0.0]
