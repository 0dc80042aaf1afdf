"""Text on an emulated GPU (`tests.helpers.emulated_cuda`): that of the CPU, and at most one wait for a token."""

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.generate.beam import beam_search
from hornbook.model.generate.generate import generate
from hornbook.model.generate.sampling import score_token
from tests.helpers.emulated_tensor import CUDA, Waits

pytestmark = pytest.mark.slow
VOCAB, TOKENS = 90, 12
CONFIG = ModelConfig(layers=2, width=32, heads=4, attention=FullAttentionConfig(kv_heads=2), position=RopeConfig())
PROMPT = [5, 7, 11, 13]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"greedy": True},
    "sampling": {"seed": 3},
    "filters": {"seed": 3, "temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "nucleus": {"seed": 4, "top_p": 0.5},
    "penalties": {"seed": 3, "repetition_penalty": 1.3, "presence_penalty": 0.2, "frequency_penalty": 0.1},
    "greedy, penalties": {"greedy": True, "repetition_penalty": 1.3},
    "vocab": {"seed": 3, "vocab": 60},
    "long": {"greedy": True, "length": 8},
}
Models = Callable[..., Any]


def on_gpu(model: nn.Module) -> Any:
    return model.to(CUDA)


def counted(waits: Waits, make: Callable[[], list[Any]], tokens: int) -> list[Any]:
    """What is made, with at most one wait for each token."""
    waits.clear()
    found = make()
    places = waits.places(draining=False)
    assert 1 <= sum(places.values()) <= tokens, places
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_a_token_waits_once(way: dict[str, Any], random_model: Models, emulated_cuda: Waits) -> None:
    want = list(generate(random_model(CONFIG, VOCAB, 3), PROMPT, max_tokens=TOKENS, **way))
    model = on_gpu(random_model(CONFIG, VOCAB, 3))
    assert counted(emulated_cuda, lambda: list(generate(model, PROMPT, max_tokens=TOKENS, **way)), TOKENS) == want


@pytest.mark.parametrize("vocab", [None, 60])
def test_a_token_of_all_beams_waits_once(vocab: int | None, random_model: Models, emulated_cuda: Waits) -> None:
    def search(model: Any) -> list[Any]:
        found = beam_search(model, PROMPT, beams=3, max_tokens=TOKENS, stop=(), vocab=vocab)
        return [each.tokens for each in found]

    model = on_gpu(random_model(CONFIG, VOCAB, 3))
    assert counted(emulated_cuda, lambda: search(model), TOKENS) == search(random_model(CONFIG, VOCAB, 3))


def test_the_score_of_a_token_waits_once_more(random_model: Models, emulated_cuda: Waits) -> None:
    def scored(model: Any) -> list[Any]:
        found: list[Any] = []
        ids = generate(
            model,
            PROMPT,
            max_tokens=TOKENS,
            seed=3,
            observe=lambda logits, token: found.append(score_token(logits, token, 4)),
        )
        return [*zip(ids, [each.token for each in found], strict=False)]

    model = on_gpu(random_model(CONFIG, VOCAB, 3))
    assert counted(emulated_cuda, lambda: scored(model), 2 * TOKENS) == scored(random_model(CONFIG, VOCAB, 3))
