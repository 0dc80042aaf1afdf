"""Generation: cached equals uncached, greedy equals transformers, the window slides, text streams whole characters."""

import json
import shutil
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.errors import IntegrityError, UsageError
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.generate.generate import Past, generate, next_logits, stream_text
from hornbook.model.hf.hf import write_hf
from hornbook.model.storage.load import load_model
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.model.likenesses import gpt2_like

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")

VOCAB = 90
CONFIGS = {
    "gpt2": gpt2_like(length=40),
    "llama": ModelConfig(
        layers=2, width=32, heads=4, attention=FullAttentionConfig(kv_heads=2), position=RopeConfig(length=40)
    ),
    "qwen3": ModelConfig(
        layers=2,
        width=32,
        heads=4,
        attention=FullAttentionConfig(kv_heads=1, head_dim=12, qk_norm="head"),
        head=LMHead(tied=False),
        position=RopeConfig(length=40),
    ),
}


@pytest.fixture(params=CONFIGS)
def model(request, random_model):
    return random_model(CONFIGS[request.param], VOCAB, 3)


def uncached(model, tokens):
    with torch.no_grad():
        return model.head.logits(model(torch.tensor([tokens]))[0])[0, -1]


def test_cached_logits_equal_uncached_ones(model):
    tokens = torch.randint(0, VOCAB, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    cache, start = KVCache(), 0
    for end in (7, 8, 9, 10, 20, 21, 30):
        cached = next_logits(model, tokens[start:end], cache)
        expected = uncached(model, tokens[:end])
        assert float((cached - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
        start = end


def test_greedy_is_that_of_transformers(model, tmp_path, request):
    import transformers

    config = CONFIGS[request.node.callspec.params["model"]]
    write_hf(tmp_path, model, config, VOCAB, None)
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    for prompt in ([1], [5, 6, 7, 8], list(range(20))):
        expected = theirs.generate(
            torch.tensor([prompt]),
            max_new_tokens=15,
            do_sample=False,
            pad_token_id=0,
            attention_mask=torch.ones(1, len(prompt)),
        )[0, len(prompt) :].tolist()
        assert list(generate(model, prompt, max_tokens=15, greedy=True)) == expected


def test_same_seed_same_text(model):
    first = list(generate(model, [1, 2], max_tokens=20, seed=4))
    assert list(generate(model, [1, 2], max_tokens=20, seed=4)) == first
    assert list(generate(model, [1, 2], max_tokens=9, seed=4)) == first[:9]
    assert list(generate(model, [1, 2], max_tokens=20, seed=5)) != first


def test_it_stops_before_a_stop_token_and_takes_no_padding(model):
    whole = list(generate(model, [1], max_tokens=30, greedy=True))
    assert list(generate(model, [1], max_tokens=30, greedy=True, stop=[whole[4]])) == whole[: whole.index(whole[4])]
    assert max(generate(model, [1], max_tokens=30, vocab=10, temperature=3)) < 10
    assert list(generate(model, [1], max_tokens=0)) == []


def test_it_is_an_iterator_that_computes_only_what_is_asked_for(model, monkeypatch):
    calls = []
    forward = type(model).forward
    monkeypatch.setattr(type(model), "forward", lambda *a, **k: calls.append(1) or forward(*a, **k))
    stream = generate(model, [1], max_tokens=10**9)
    assert calls == []
    next(stream)
    next(stream)
    assert len(calls) == 2


def test_a_text_longer_than_the_positions_goes_on_from_its_last_half(model):
    """The reference computes every token anew from the window that the rule names."""
    room, history, expected, start = 10, [3, 1, 4], [], 0
    for _ in range(25):
        if len(history) - start > room:
            start = len(history) - room // 2
        token = int(uncached(model, history[start:]).argmax())
        history.append(token)
        expected.append(token)
    assert list(generate(model, [3, 1, 4], max_tokens=25, greedy=True, length=room)) == expected


def test_learned_positions_are_never_exceeded(random_model):
    model = random_model(CONFIGS["gpt2"], VOCAB)
    assert len(list(generate(model, [1] * 100, max_tokens=50))) == 50


def test_nothing_to_continue_is_a_usage_error(model):
    with pytest.raises(UsageError, match="no token to continue"):
        generate(model, [], max_tokens=1)


TEXTS = [
    "the page says",
    "\u00e9t\u00e9 \U0001f600\U0001f469\u200d\U0001f4bb \u6771\u4eac",
    "a\ufffdb\ufffd",
    "\ufffd" * 40,
    "x" * 100 + "\u20ac" * 30,
]


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_join_to_the_text(text, tokenizer_folder):
    tokenizer = Tokenizer.load(tokenizer_folder)
    pieces = list(stream_text(tokenizer.encode(text), tokenizer))
    assert "".join(pieces) == text
    assert len(pieces) > 1
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_bytes_that_are_no_text_are_shown_as_such(tokenizer_folder):
    tokenizer = Tokenizer.load(tokenizer_folder)
    lone = [token for token in range(1, 257) if tokenizer.decode([token]) == "\ufffd"]
    ids = (lone * 3)[:200]
    assert "".join(stream_text(ids, tokenizer)) == tokenizer.decode(ids)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_ids_stream_to_what_they_decode_to(data, tokenizer_folder):
    tokenizer = Tokenizer.load(tokenizer_folder)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=80))
    cut = data.draw(st.integers(0, len(ids)))
    before = ids[:cut]
    if tokenizer.decode(before).endswith("\ufffd"):
        before = [*before, *tokenizer.encode("a")]  # a prompt ends with a whole character
    streamed = "".join(stream_text(ids[cut:], tokenizer, before))
    assert tokenizer.decode(before) + streamed == tokenizer.decode(before + ids[cut:])


def test_a_piece_comes_with_the_token_that_completes_it(tokenizer_folder):
    tokenizer = Tokenizer.load(tokenizer_folder)
    shown = []

    def ids():
        for token in tokenizer.encode("ab\u6771c"):
            yield token
            shown.append("".join(pieces))

    pieces: list[str] = []
    for piece in stream_text(ids(), tokenizer):
        pieces.append(piece)
    assert shown[0] == "a"
    assert all(len(after) >= len(before) for before, after in pairwise(shown))
    assert "".join(pieces) == "ab\u6771c"


def test_text_goes_on_behind_its_prompt(tmp_path):
    """A decoder that drops the blank of the first token must not drop that of the first new one."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    vocab = {"</s>": 0, "<s>": 1, "\u2581hello": 2, "\u2581world": 3}
    library = Library(models.WordLevel(vocab, unk_token="<s>"))
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens(["<s>", "</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert "".join(stream_text([3] * 30, tokenizer, before=[2])) == " world" * 30
    assert "".join(stream_text([3] * 30, tokenizer)) == "world" + " world" * 29


def test_a_checkpoint_is_loaded_with_its_tokenizer(tmp_path, random_model, tokenizer_folder):
    model = random_model(CONFIGS["llama"], 320)
    write_hf(tmp_path / "a", model, CONFIGS["llama"], 320, tokenizer_folder)
    loaded = load_model(tmp_path / "a")
    assert (loaded.vocab, loaded.config, loaded.model.training) == (320, CONFIGS["llama"], False)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.digest == Tokenizer.load(tokenizer_folder).digest
    assert all(torch.equal(p, model.get_parameter(name)) for name, p in loaded.model.named_parameters())
    write_hf(tmp_path / "b", model, CONFIGS["llama"], 320, None)
    assert load_model(tmp_path / "b").tokenizer is None


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path, random_model, tokenizer_folder):
    write_hf(tmp_path, random_model(CONFIGS["llama"], 90), CONFIGS["llama"], 90, None)
    shutil.copy(tokenizer_folder / "tokenizer.json", tmp_path)
    size = len(json.loads((tokenizer_folder / "tokenizer.json").read_text())["model"]["vocab"])
    with pytest.raises(IntegrityError, match=f"tokenizer has {size} ids, its model only 90 rows"):
        load_model(tmp_path)


def test_a_text_that_goes_on_costs_only_what_is_new(model, monkeypatch):
    sizes = []

    def counted(model, tokens, *rest):
        sizes.append(len(tokens))
        return next_logits(model, tokens, *rest)

    monkeypatch.setattr("hornbook.model.generate.generate.next_logits", counted)
    past, text = Past(), [1, 2, 3]
    for more in ([7, 8], [9], []):
        made = list(generate(model, text, max_tokens=4, greedy=True, past=past))
        assert made == list(generate(model, text, max_tokens=4, greedy=True))
        text += [*made, *more]
    assert sizes == [3, 1, 1, 1, 3, 1, 1, 1, 3, 1, 1, 1, 9, 1, 1, 1, 2, 1, 1, 1, 14, 1, 1, 1]


def test_another_text_begins_anew(model):
    past = Past()
    list(generate(model, [1, 2, 3, 4], max_tokens=4, greedy=True, past=past))
    for tokens in ([1, 2], [5, 6, 7], list(range(30)), list(range(60))):
        expected = list(generate(model, tokens, max_tokens=20, greedy=True))
        assert list(generate(model, tokens, max_tokens=20, greedy=True, past=past)) == expected
        assert list(generate(model, tokens, max_tokens=20, greedy=True, past=past)) == expected


def test_an_interrupted_answer_spoils_nothing(model, monkeypatch):
    past = Past()
    real = KVCache.advance

    def interrupted(self, positions):
        real(self, positions)
        if self.length == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(KVCache, "advance", interrupted)
    text = [1, 2, 3]

    def read():
        for token in generate(model, [1, 2, 3], max_tokens=4, greedy=True, past=past):
            text.append(token)

    with pytest.raises(KeyboardInterrupt):
        read()
    monkeypatch.undo()
    assert len(text) == 5  # the cache has one token more than was noted
    expected = list(generate(model, [*text, 9], max_tokens=20, greedy=True))
    assert list(generate(model, [*text, 9], max_tokens=20, greedy=True, past=past)) == expected
