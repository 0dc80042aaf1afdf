"""The engine: a text is the same alone and beside others; places are freed however a text ends."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from hornbook.model.build_model import build_model
from hornbook.model.config.attention_config import DeltaAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.generate.generate import generate
from hornbook.model.generate.sampling import Sampling
from hornbook.model.init.init import initialize
from hornbook.model.storage.load import Loaded
from hornbook.serve.limits import Limits
from hornbook.serve.requests import Event, Failed, Finished, Piece, PromptScores, Request
from hornbook.serve.serving_engine import Closed, Engine, QueueFull
from tests.serve.conftest import LIMITS

Start = Callable[..., Engine]


class Asked:
    """A request and what came of it."""

    def __init__(self, prompt: Sequence[int], count: int = 1, **fields: Any) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        sampling = fields.pop("sampling", Sampling(greedy=True))
        samplings = [replace(sampling, seed=sampling.seed + number) for number in range(count)]
        self.request = Request(list(prompt), samplings, fields.pop("tokens", 10), self.events.put, **fields)

    def wait(self) -> list[Event]:
        """All events up to the last end."""
        found: list[Event] = []
        left = len(self.request.samplings)
        while left:
            found.append(self.events.get(timeout=60))
            left -= isinstance(found[-1], Finished)
            if isinstance(found[-1], Failed):
                break
        return found

    def text(self, choice: int = 0) -> str:
        """The text of a choice, once all are at their ends."""
        return "".join(each.text for each in self.wait() if isinstance(each, Piece) and each.choice == choice)


@pytest.fixture
def start(loaded: Loaded) -> Iterator[Start]:
    engines: list[Engine] = []

    def act(limits: Limits = LIMITS) -> Engine:
        engines.append(Engine(loaded, limits))
        engines[-1].start()
        return engines[-1]

    yield act
    for engine in engines:
        engine.close()


def expected(loaded: Loaded, prompt: Sequence[int], tokens: int, **sampling: Any) -> str:
    assert loaded.tokenizer is not None
    ids = generate(loaded.model, prompt, max_tokens=tokens, vocab=loaded.tokenizer.vocab_size, **sampling)
    return loaded.tokenizer.decode([*prompt, *ids])[len(loaded.tokenizer.decode(prompt)) :]


def is_idle(engine: Engine) -> bool:
    return engine.running == engine.waiting == 0


def settled(engine: Engine) -> bool:
    """Whether every place is free, or becomes so soon."""
    limit = time.monotonic() + 20
    while not is_idle(engine) and time.monotonic() < limit:
        time.sleep(0.01)
    return is_idle(engine) and engine._cache.lengths == []


def ways(seed: int) -> Sampling:
    """Ways to draw of every kind."""
    kinds = [
        Sampling(greedy=True),
        Sampling(seed=seed),
        Sampling(seed=seed, temperature=0.7, top_k=20, top_p=0.9),
        Sampling(seed=seed, min_p=0.1, repetition_penalty=1.3),
        Sampling(greedy=True, presence_penalty=0.5, frequency_penalty=0.2),
    ]
    return kinds[seed % len(kinds)]


def test_every_text_beside_others_is_that_of_generate_alone(loaded: Loaded, start: Start) -> None:
    """Many at once, of all lengths, joining at different times: each equals what `generate` makes of it."""
    engine, draw = start(), random.Random(0)
    asked = []
    for number in range(11):
        prompt = [0, *(draw.randrange(1, 250) for _ in range(draw.choice((1, 5, 7, 8, 16, 30))))]
        asked.append(Asked(prompt, tokens=draw.randrange(1, 30), sampling=ways(number)))
        engine.submit(asked[-1].request)
        time.sleep(draw.random() * 0.02)
    for each in asked:
        request = each.request
        text = expected(loaded, request.prompt, request.max_tokens, **vars(request.samplings[0]))
        assert each.text() == text
    assert settled(engine)


@pytest.mark.parametrize("recurrent", [False, True])
def test_short_prompts_are_read_in_one_pass(loaded: Loaded, monkeypatch: pytest.MonkeyPatch, recurrent: bool) -> None:
    """Those that fit into what a step reads and have a slot; each alone where a layer's state ends with its row."""
    if recurrent:
        config = ModelConfig(
            layers=1, width=16, heads=2, position=RopeConfig(length=64), attention=DeltaAttentionConfig()
        )
        model = build_model(config, 257, "cpu")
        initialize(model, config, seed=1)
        loaded = replace(loaded, model=model.eval())
    engine, passes = Engine(loaded, LIMITS), list[list[int]]()
    real = engine._reader.read
    monkeypatch.setattr(
        engine._reader, "read", lambda prompts: passes.append([len(p.request.prompt) for p in prompts]) or real(prompts)
    )
    sizes = [3, 4, 2, 17, 1, 1, 6, 1]
    asked = [Asked([0, *range(5, 4 + size)], tokens=6) for size in sizes]
    engine.submit(*(each.request for each in asked))
    engine.start()
    texts = [each.text() for each in asked]
    engine.close()
    assert texts == [expected(loaded, each.request.prompt, 6, greedy=True) for each in asked]
    together = [[3, 4], [2], [17], [17], [17], [1, 1, 6], [1]]
    assert passes == ([[3], [4], [2], [17], [17], [17], [1], [1], [6], [1]] if recurrent else together)


def test_choices_share_a_prompt_and_differ_by_their_seeds(loaded: Loaded, start: Start) -> None:
    engine = start()
    asked = Asked([0, 5, 6, 7], count=7, sampling=Sampling(seed=3))
    engine.submit(asked.request)
    found = asked.wait()
    texts = ["".join(e.text for e in found if isinstance(e, Piece) and e.choice == number) for number in range(7)]
    assert texts == [expected(loaded, [0, 5, 6, 7], 10, seed=3 + number) for number in range(7)]
    assert len(set(texts)) == 7
    assert settled(engine)


def test_log_probabilities_are_those_of_the_model(loaded: Loaded, start: Start) -> None:
    engine, prompt = start(), [0, *range(40, 60)]
    asked = Asked(prompt, logprobs=3, score_prompt=True, tokens=6)
    engine.submit(asked.request)
    found = asked.wait()
    (read,) = (each.scores for each in found if isinstance(each, PromptScores))
    made = [scored.score for each in found if isinstance(each, Piece) for scored in each.scores]
    tokens = [*prompt, *(each.token for each in made)]
    with torch.no_grad():
        hidden, _ = loaded.model(torch.tensor([tokens]))
        assert loaded.model.head is not None
        wanted = loaded.model.head.logits(hidden[0])[:, : loaded.tokenizer.vocab_size].log_softmax(-1)
    assert [each.token for each in (*read, *made)] == tokens[1:]
    for scored, row in zip((*read, *made), wanted, strict=False):
        assert scored.log_probability == pytest.approx(float(row[scored.token]), abs=1e-5)
        assert [token for token, _ in scored.top] == row.topk(3).indices.tolist()
    assert made[0].top[0][0] == made[0].token


def test_a_bias_bans_and_forces_tokens(loaded: Loaded, start: Start) -> None:
    engine = start()
    (best,) = generate(loaded.model, [0, 1], max_tokens=1, greedy=True)
    forced = Asked([0, 1], bias={66: 100.0}, logprobs=0)
    banned = Asked([0, 1], bias={best: -100.0}, logprobs=1, tokens=1)
    engine.submit(forced.request, banned.request)
    chosen = [scored.score for each in forced.wait() if isinstance(each, Piece) for scored in each.scores]
    assert [each.token for each in chosen] == [66] * 10
    assert chosen[0].log_probability < -0.1  # that of the model, without the bias
    (((_, score),),) = (each.scores for each in banned.wait() if isinstance(each, Piece))
    assert score.top[0][0] == best != score.token


def test_a_text_ends_before_a_stop_string_and_at_a_stop_token(loaded: Loaded, start: Start) -> None:
    engine = start()
    whole = expected(loaded, [0, 5], 30, seed=8)
    stop = whole[10:13]
    asked = Asked([0, 5], sampling=Sampling(seed=8), tokens=30, stop=("no such", stop), logprobs=0)
    engine.submit(asked.request)
    found = asked.wait()
    assert "".join(each.text for each in found if isinstance(each, Piece)) == whole[: whole.index(stop)]
    assert isinstance(found[-1], Finished)
    assert found[-1].reason == "stop"
    shown = [scored.start for each in found if isinstance(each, Piece) for scored in each.scores]
    assert max(shown) < whole.index(stop)
    assert len(shown) < found[-1].tokens  # tokens of the string itself have no scores
    (first,) = generate(loaded.model, [0, 5], max_tokens=1, seed=8, vocab=257)
    ended = Asked([0, 5], sampling=Sampling(seed=8), tokens=30, stop_ids=frozenset([first]))
    engine.submit(ended.request)
    assert ended.wait() == [Finished(0, "stop", 1)]


def test_places_are_freed_by_cancelled_and_late_requests(start: Start) -> None:
    engine = start()
    cancelled = [Asked([0, 9], tokens=60) for _ in range(9)]
    engine.submit(*(each.request for each in cancelled))
    cancelled[0].events.get(timeout=60)
    engine.cancel(*(each.request for each in cancelled))
    assert settled(engine)
    late = [Asked([0, 9], tokens=60, deadline=time.monotonic()) for _ in range(6)]
    engine.submit(*(each.request for each in late))
    for each in late:
        (failed,) = each.wait()
        assert isinstance(failed, Failed)
        assert failed.status == 503
    assert settled(engine)
    after = Asked([0, 9], tokens=3)
    engine.submit(after.request)
    assert len(after.text()) > 0


def test_a_full_queue_refuses_all_or_nothing(loaded: Loaded) -> None:
    engine = Engine(loaded, replace(LIMITS, slots=1, queue=3))  # not started: nothing leaves
    engine.submit(*(Asked([0]).request for _ in range(3)))
    with pytest.raises(QueueFull):
        engine.submit(Asked([0]).request, Asked([0]).request)
    assert engine.waiting == 3
    engine.submit(Asked([0]).request)
    engine.start()
    engine.close()
    with pytest.raises(Closed):
        engine.submit(Asked([0]).request)


def test_a_failing_model_ends_what_is_under_way_and_serves_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = start()
    real, broken = engine._model.forward, threading.Event()

    def forward(*args: Any, **options: Any) -> Any:
        if broken.is_set():
            raise RuntimeError("no memory")
        return real(*args, **options)

    monkeypatch.setattr(engine._model, "forward", forward)
    running, waiting = Asked([0, 3], tokens=60), Asked([0, 4], tokens=60)
    engine.submit(running.request)
    running.events.get(timeout=60)
    broken.set()
    engine.submit(waiting.request)
    assert running.wait()[-1] == Failed(500, "the model failed: RuntimeError")
    broken.clear()
    after = Asked([0, 4], tokens=60)
    engine.submit(after.request)
    assert after.text()
    assert settled(engine)
    assert "no memory" in capsys.readouterr().err


def test_the_size_of_the_cache_is_known_before_it_is_full(loaded: Loaded) -> None:
    """Two layers of keys and values of two heads of 8 numbers, in float32, of 4 slots of 64 positions."""
    assert Engine(loaded, LIMITS).cache_bytes() == 2 * 2 * 2 * 8 * 4 * 4 * 64


def test_closing_ends_what_is_under_way(loaded: Loaded) -> None:
    engine = Engine(loaded, LIMITS)
    engine.start()
    asked = [Asked([0, 9], tokens=60) for _ in range(8)]
    engine.submit(*(each.request for each in asked))
    engine.close()
    for each in asked:
        assert isinstance(each.wait()[-1], Failed | Finished)
