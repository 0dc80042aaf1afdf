"""Gated attention to trained vectors, beside its formula written out and beside peft's."""

import pytest
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.config.surgery_config import LlamaAdapter, LlamaAdapterV2
from hornbook.model.generate.generate import generate
from hornbook.model.surgery.added_values import added_parameters
from hornbook.model.transformer import Transformer
from tests.model.surgery.conftest import CONFIGS, Operated, ids, logits, spoil

# peft asks transformers by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
ONE, TWO = LlamaAdapter(length=4, below=1), LlamaAdapterV2(length=4, below=1)


@pytest.mark.parametrize("base", CONFIGS)
@pytest.mark.parametrize("step", [ONE, TWO])
@torch.no_grad()
def test_at_first_it_changes_nothing(operated: Operated, base: str, step: LlamaAdapter) -> None:
    assert torch.equal(logits(operated(base, step), ids()), logits(operated(base), ids()))


def written_out(attention: torch.nn.Module, queries: Tensor) -> Tensor:
    """What a layer of LLaMA finds in its vectors: softmax(q (Wk A)^T / sqrt(d)) Wv A for each head, times its gate."""
    weights = dict(attention.named_parameters())
    vectors, found = weights["gated.weight"], []
    for head in range(4):
        of_head = slice(head // 2 * 8, head // 2 * 8 + 8)  # two heads share keys and values
        key, value = (vectors @ weights[f"{name}.weight"][of_head].T for name in ("key", "value"))
        share = (queries[:, head] @ key.T / 8**0.5).softmax(-1)
        found.append(share @ value * weights["gated.gate.weight"][head].tanh())
    return torch.stack(found, 1)


@torch.no_grad()
def test_heads_find_what_the_formula_says(operated: Operated) -> None:
    model: Transformer = spoil(operated("llama", ONE), size=0.5)
    attention, queries = (
        model.blocks["1"].attention,
        torch.randn(2, 4, 5, 8, generator=torch.Generator().manual_seed(1)),
    )
    assert isinstance(attention, torch.nn.Module)
    found = attention.get_submodule("gated")(attention, queries)
    torch.testing.assert_close(found, written_out(attention, queries), atol=1e-6, rtol=1e-5)
    assert model.blocks["0"].attention.gated is None


def test_peft_computes_the_same_where_its_one_gate_is_that_of_all_heads(operated: Operated, bases) -> None:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model: Transformer = spoil(operated("llama", ONE), size=0.5)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(bases["llama"], attn_implementation="eager").eval()
    theirs = peft.get_peft_model(
        theirs, peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=1, task_type="CAUSAL_LM")
    )
    gated = model.blocks["1"].attention.gated
    with torch.no_grad():
        gated.gate.weight.fill_(0.7)
        for name, parameter in theirs.named_parameters():
            if "adaption_gate" in name:
                parameter.fill_(gated.gate.weight[0].tanh())
            elif "adaption_prompt" in name:
                parameter.copy_(gated.weight[None])
        expected = theirs(input_ids=ids()).logits
        plain = logits(operated("llama"), ids())
    torch.testing.assert_close(logits(model, ids()), expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
    assert not torch.allclose(expected, plain, atol=0.05)


@torch.no_grad()
def test_generating_with_a_cache_is_reading_the_whole_text(operated: Operated) -> None:
    model, text = spoil(operated("gpt2", TWO), size=0.3), [5, 9, 2]
    for token in generate(model, list(text), max_tokens=12, greedy=True):
        assert token == int(logits(model, torch.tensor([text]))[0, -1].argmax())
        text.append(token)


def test_the_second_version_trains_norms_scales_and_biases(operated: Operated) -> None:
    model: Transformer = spoil(operated("llama", TWO), size=0.3)
    added = added_parameters(model)
    assert {name for name, each in model.named_parameters() if each.requires_grad} == set(added)
    own = {name for name in added if ".adapter." not in name and ".gated." not in name}
    assert own == {"norm.weight", *(f"blocks.{i}.norm{k}.weight" for i in range(2) for k in (1, 2))}
    layer, x = model.blocks["0"].mlp.down, torch.randn(3, 128, generator=torch.Generator().manual_seed(2))
    expected = layer.adapter.scale * (x @ layer.weight.T) + layer.adapter.shift
    torch.testing.assert_close(layer(x), expected)
    logits(model, ids()).square().sum().backward()
    assert all(bool(each.grad.any()) for each in added.values() if each.grad is not None)
    assert all(each.grad is not None for each in added.values())


def test_layers_must_be_left_above(operated: Operated) -> None:
    with pytest.raises(UsageError, match="llama_adapter below: 2 leaves none of 2 layers: take fewer"):
        operated("llama", LlamaAdapter())
