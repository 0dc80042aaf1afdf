"""The two parts of a backward pass add up to the whole."""

import torch
from torch import Tensor, nn

from hornbook.parallel.axes.pipeline.split_backward import gradients_of_inputs


def outputs_of(x: Tensor, memory: Tensor, layers: list[nn.Linear], shared: nn.Parameter) -> list[Tensor]:
    """A plain layer, two whose weights are put together, one that is used twice, a shared weight, a loss of its own."""
    x = layers[4](x)
    both = torch.cat([layers[0].weight, layers[1].weight.to(torch.float64)])
    x = x + torch.tanh(x @ both.T)[:, :4] * shared
    x = x + layers[2](layers[2](x)) + memory
    return [x * shared.sum(), memory, (layers[3].weight * layers[0].weight).sum()]


def test_the_parts_of_backward_add_up() -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(4, 4).double() for _ in range(5)]
    shared = nn.Parameter(torch.randn(4, dtype=torch.float64))
    weights = [*(layer.weight for layer in layers), shared, layers[2].bias]
    x, memory = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    inputs = [x, memory]
    gradients = [torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64), torch.tensor(2.0)]
    gradients[2] = gradients[2].double()
    torch.autograd.backward(outputs_of(x, memory, layers, shared), gradients)
    expected = [each.grad for each in (*inputs, *weights)]
    for each in (*inputs, *weights):
        each.grad = None
    found, rest = gradients_of_inputs(outputs_of(x, memory, layers, shared), gradients, inputs)
    assert all(each.grad is None for each in weights), "the first part leaves weights alone"
    assert rest.branches, "the second part has something to do"
    rest.compute()
    for name, (mine, other) in enumerate(zip([*found, *(each.grad for each in weights)], expected, strict=True)):
        assert mine is not None
        torch.testing.assert_close(mine, other, msg=str(name))
