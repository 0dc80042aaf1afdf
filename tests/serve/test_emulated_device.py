"""The server's engine on an emulated GPU: the texts of the CPU, and one wait for a token of all texts that run."""

import queue
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hornbook.model.generate.sampling import Sampling
from hornbook.model.storage.load import Loaded, load_model
from hornbook.serve.requests import Event, Failed, Finished, Piece, Request
from hornbook.serve.serving_engine import Engine
from tests.helpers.emulated_tensor import CUDA, Waits
from tests.serve.conftest import LIMITS

ASKED: dict[str, Sequence[Sampling]] = {
    "greedy": [Sampling(greedy=True)],
    "two texts": [Sampling(seed=1, top_k=40), Sampling(seed=2, top_p=0.9)],
    "penalties": [Sampling(greedy=True, repetition_penalty=1.3, presence_penalty=0.1)],
}
TOKENS = 10
pytestmark = pytest.mark.slow


def answer(loaded: Loaded, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling]) -> list[list[str]]:
    """Texts of all choices of all prompts."""
    engine, found = Engine(loaded, LIMITS), list[list[Event]]()
    bias = {17: 3.0, 40: -2.0}
    queues = [queue.SimpleQueue[Event]() for _ in prompts]
    requests = [
        Request(list(prompt), [replace(each) for each in samplings], TOKENS, events.put, bias=bias)
        for prompt, events in zip(prompts, queues, strict=True)
    ]
    engine.submit(*requests)
    engine.start()
    for events in queues:
        mine, ends = list[Event](), len(samplings)
        while ends:
            mine.append(events.get(timeout=60))
            assert not isinstance(mine[-1], Failed), mine[-1]
            ends -= isinstance(mine[-1], Finished)
        found.append(mine)
    engine.close()
    return [
        [
            "".join(each.text for each in mine if isinstance(each, Piece) and each.choice == choice)
            for choice in range(len(samplings))
        ]
        for mine in found
    ]


@pytest.mark.parametrize("name", ASKED)
def test_a_token_of_all_texts_waits_once(name: str, folder: Path, loaded: Loaded, emulated_cuda: Waits) -> None:
    prompts = [[3, 4, 5], [9, 8, 7, 6, 5]]
    want = answer(loaded, prompts, ASKED[name])
    there = load_model(folder, device=CUDA)
    emulated_cuda.clear()
    assert answer(there, prompts, ASKED[name]) == want
    waits = emulated_cuda.places(draining=False, thread="engine")
    assert sum(waits.values()) == TOKENS, waits
