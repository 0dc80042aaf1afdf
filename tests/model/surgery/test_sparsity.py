"""Single weights taken out: which, how many, and what the outputs lose by it."""

import pytest
import torch
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.sparsity import Pattern, parse_pattern, sparsify
from hornbook.model.transformer import Transformer
from tests.model.surgery.conftest import Operated, ids, logits, spoil

TWO_OF_FOUR, HALF = Pattern(keep=2, of=4), Pattern(share=0.5)


def linears(model: nn.Module) -> dict[str, Linear]:
    found = {name: each for name, each in model.named_modules() if isinstance(each, Linear)}
    return {name: each for name, each in found.items() if name.startswith("blocks.")}


def uneven(operated: Operated) -> Transformer:
    """A model whose blocks read inputs of very different size."""
    model = spoil(operated("llama"), size=0.05)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "norm" in name:
                each.mul_(10 ** (2 * torch.rand(each.shape, generator=draw) - 1))
    return model


def test_weights_of_the_least_score_become_zero() -> None:
    scores = torch.tensor([[4.0, 1, 3, 2, 1, 2, 9, 8], [1, 2, 3, 4, 5, 6, 7, 8]])
    groups = [[0, 1, 0, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0]]
    rows = [[0, 1, 0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0]]
    assert TWO_OF_FOUR.least(scores).int().tolist() == groups
    assert HALF.least(scores).int().tolist() == rows
    assert Pattern(share=0.25).least(scores).sum(1).tolist() == [2, 2]
    assert Pattern(share=0.99).least(scores).sum(1).tolist() == [7, 7]


@pytest.mark.parametrize("pattern", [TWO_OF_FOUR, HALF])
def test_inputs_that_are_large_keep_their_weights(operated: Operated, pattern: Pattern) -> None:
    tokens = ids(4, 32)
    expected = logits(uneven(operated), tokens)
    sizes, wanda = uneven(operated), uneven(operated)
    assert sparsify(sizes, pattern) == sparsify(wanda, pattern, [{"tokens": tokens}]) == 0.5
    lost = [float((logits(each, tokens) - expected).detach().norm()) for each in (sizes, wanda)]
    assert lost[1] < 0.8 * lost[0]
    for model in (sizes, wanda):
        for name, layer in linears(model).items():
            zero = (layer.weight == 0).unflatten(1, (-1, 4 if pattern.of else layer.weight.shape[1]))
            assert (zero.sum(-1) == zero.shape[-1] // 2).all(), name


def test_the_score_is_the_weight_times_the_norm_of_its_input(operated: Operated) -> None:
    """Of the second block, whose inputs come from a sparse first one."""
    model, dense, seen = uneven(operated), uneven(operated), list[Tensor]()
    sparsify(model, HALF, [{"tokens": ids(2, 32)}])
    layer = model.get_submodule("blocks.1.attention.query")
    model.get_submodule("blocks.1.norm1").register_forward_hook(lambda *found: seen.append(found[-1]))
    logits(model, ids(2, 32))
    weight = dense.get_parameter("blocks.1.attention.query.weight")
    score = weight.abs() * seen[0].flatten(0, 1).norm(dim=0)
    assert torch.equal(layer.get_parameter("weight") == 0, HALF.least(score))


@pytest.mark.parametrize("text", ["4:2", "2", "1", "0", "0.0", "--out", "2:4:8", "-1"])
def test_patterns_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write 2:4 or 4:8"):
        parse_pattern(text)


def test_patterns_are_read_and_must_fill_rows(operated: Operated) -> None:
    assert (parse_pattern("2:4"), parse_pattern("0.5"), parse_pattern(".25")) == (
        TWO_OF_FOUR,
        HALF,
        Pattern(share=0.25),
    )
    with pytest.raises(UsageError, match=r"--sparse 2:5: blocks.0.attention.query has rows of 32.* as 0.5"):
        sparsify(operated("llama"), Pattern(keep=2, of=5))
