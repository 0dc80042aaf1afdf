"""The language model: equal to the plain formula, a distribution, repeatable, and a score that tells texts apart."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.scores import PerplexityConfig
from hornbook.text.refinery.scores.classifier import TrainedClassifier
from hornbook.text.refinery.scores.perplexity_model import LanguageModel
from hornbook.text.refinery.scores.perplexity_train import count_ngrams, estimate, sample, train
from tests.text.refinery.plain_kneser_ney import FALLBACK, PlainKneserNey
from tests.text.refinery.running import columns_of, judge, prepare

TEXTS = [
    "the model learns from text, and the text is what the model learns\n",
    "def learn(model, text):\n    return model.learn(text)\n",
    "\nle mod\u00e8le apprend du texte\n\n\n",
    "\u6a21\u578b\u4ece\u6587\u672c\u4e2d\u5b66\u4e60\u3002\u6587\u672c\u662f\u6a21\u578b\u5b66\u4e60\u7684\u3002",
    "\u043c\u043e\u0434\u0435\u043b\u044c \u0443\u0447\u0438\u0442\u0441\u044f",
    "a",
]
SUBJECTS = ["the kernel", "a process", "this module", "every driver", "the scheduler", "each thread"]
COMMANDS = ["reads", "writes", "maps", "frees", "locks", "returns"]
OBJECTS = ["a page of memory", "the buffer", "its own stack", "an error code", "the inode table", "two pointers"]


def sentences(count: int, seed: int) -> list[str]:
    """Documents of a small language."""
    draw = random.Random(seed)
    return [
        "\n".join(f"{draw.choice(SUBJECTS)} {draw.choice(COMMANDS)} {draw.choice(OBJECTS)}." for _ in range(12))
        for _ in range(count)
    ]


def invented(count: int, seed: int) -> str:
    """Words of syllables, some much more often than others: it has n-grams of all small counts."""
    draw = random.Random(seed)
    syllables = [a + b for a in "bdfglmnprst" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randrange(1, 5))) for _ in range(400)]
    return " ".join(draw.choices(words, [1 / rank for rank in range(1, 401)], k=count))


def counted(texts: Sequence[str], order: int, least: int = 1) -> LanguageModel:
    return estimate(count_ngrams(([text] for text in texts), order), least)


def probability(model: LanguageModel, byte: int, context: bytes) -> float:
    """By following the automaton's tables as their docstrings say."""
    state = 0
    for each in context:
        state = step(model, state, each)[0]
    return 2 ** -step(model, state, byte)[1]


def step(model: LanguageModel, state: int, byte: int) -> tuple[int, float]:
    bits = 0.0
    while True:
        below = range(int(model.first[state]), int(model.first[state + 1]))
        found = next((child for child in below if model.byte[child] == byte), None)
        if found is not None:
            longest = found >= len(model.rest_bits)
            return int(model.end[found]) if longest else found, bits + float(model.bits[found])
        bits += float(model.rest_bits[state])
        state = int(model.end[state])


def contexts(texts: Sequence[str], order: int, count: int) -> list[bytes]:
    """Some that stand in the texts, and some that do not."""
    draw, joined = random.Random(order), "\n".join(texts).encode()
    places = [draw.randrange(len(joined)) for _ in range(count)]
    seen = [joined[place : place + draw.randrange(order)] for place in places]
    return [*seen, *(draw.randbytes(draw.randrange(order)) for _ in range(count)), b"", b"\n" * (order - 1)]


@pytest.mark.parametrize("order", [2, 3, 5, 8])
def test_equal_to_the_plain_formula(order: int):
    texts = [*TEXTS, invented(600, 1)]
    model, plain = counted(texts, order), PlainKneserNey(texts, order)
    for context in contexts(texts, order, 12):
        found = [probability(model, byte, context) for byte in range(256)]
        wanted = [plain.probability(byte, context) for byte in range(256)]
        assert np.allclose(found, wanted, rtol=2e-6, atol=0)
    for text in [*texts, "unseen text\n", "\u00e9", ""]:
        data = b"\n" * (order - 1) + text.encode()
        places = range(order - 1, len(data))
        bits = [-np.log2(plain.probability(data[i], data[i - order + 1 : i])) for i in places]
        assert model.bits_per_byte([text])[0] == pytest.approx(np.mean(bits or [0]), rel=1e-6)


def test_estimated_discounts_are_met():
    discounts = PlainKneserNey([*TEXTS, invented(600, 1)], 5).discounts
    assert [order for order, found in discounts.items() if found != FALLBACK] == [5, 4, 3]


@pytest.mark.parametrize("least", [1, 2, 5, 1000])
def test_bytes_behind_any_context_add_up_to_one(least: int):
    texts = [*TEXTS, *sentences(10, 2)]
    model = counted(texts, 6, least)
    for context in contexts(texts, 6, 20):
        assert sum(probability(model, byte, context) for byte in range(256)) == pytest.approx(1, abs=2e-6)


def test_what_is_left_out_is_the_rare():
    text = invented(3000, 3)
    whole, part = counted([text], 6), counted([text], 6, 3)
    assert len(part.bits) < 0.7 * len(whole.bits)
    for count, same in ((2, False), (3, True)):
        grams = {text[i : i + 6] for i in range(len(text) - 5)}
        gram = min(each for each in grams if text.count(each) == count)
        wholly, partly = (probability(model, ord(gram[-1]), gram[:-1].encode()) for model in (whole, part))
        assert (partly > 0.9 * wholly) == same


def test_its_own_language_is_more_predictable_than_anything_else():
    model, report = train(sentences(300, 5), 6, 10**6, 10**6)
    text = sentences(20, 6)
    draw = random.Random(7)
    shuffled = [" ".join(draw.sample(each.split(), len(each.split()))) for each in text]
    french = [TEXTS[2] * 3] * 20
    noise = ["".join(chr(draw.randrange(33, 127)) for _ in range(300)) for _ in range(20)]
    own, others = model.bits_per_byte(text), [model.bits_per_byte(each) for each in (shuffled, french, noise)]
    assert own.max() < others[0].min()
    assert others[0].max() < others[1].min()
    assert others[1].max() < others[2].min()
    assert own.mean() == pytest.approx(report.percentiles[50], rel=0.1)
    assert (report.held_out, report.documents) == (15, 285)


def test_noise_takes_eight_bits():
    model = counted(sentences(50, 8), 4)
    noise = random.Random(9).randbytes(20_000).decode("latin-1").encode("latin-1")
    ascii_noise = "".join(chr(byte % 128) for byte in noise)
    assert model.bits_per_byte([ascii_noise])[0] > 7.9


def test_a_score_is_of_the_document_alone():
    model = counted(TEXTS, 5)
    texts = [*TEXTS, "", *sentences(1100, 10)]
    together = model.bits_per_byte(texts)
    assert together[:8].tolist() == [model.bits_per_byte([text])[0] for text in texts[:8]]
    assert together[6] == 0


def test_the_same_texts_make_the_same_file_in_any_order_and_number(tmp_path: Path):
    texts = sentences(100, 11)
    train(texts, 5, 10**6, 10**6)[0].save(tmp_path / "a")
    train([*texts[::-1], *texts[:30]], 5, 10**6, 10**6)[0].save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = LanguageModel.load(tmp_path / "a")
    assert loaded.bits_per_byte(texts).tolist() == train(texts, 5, 10**6, 10**6)[0].bits_per_byte(texts).tolist()


def test_memory_is_bound_by_what_is_asked():
    texts = invented(40_000, 12).split("a b")
    model, report = train(texts, 6, sum(map(len, texts)) // 3, 3000)
    assert report.bytes <= sum(map(len, texts)) // 3
    assert report.documents > 20
    assert 1500 < report.ngrams == len(model.bits) - 1 <= 3000
    assert report.least > 1
    assert train(texts, 6, 10**6, 10**6)[1].least == 1


def test_a_sample_is_drawn_by_content():
    texts = sentences(400, 13)
    found = [sample(order, 50_000) for order in (texts, texts[::-1] + texts[:50])]
    assert found[0] == found[1]
    assert 12_000 < sum(map(len, found[0])) <= 50_000


def test_bad_requests_and_files_are_named(tmp_path: Path):
    with pytest.raises(UsageError, match="3 different documents: at least 20"):
        train(["x", "y", "z", "x", ""], 4, 10**6, 10**6)
    with pytest.raises(UsageError, match="an order of 9: it is from 2 to 8"):
        train(sentences(30, 1), 9, 10**6, 10**6)
    with pytest.raises(UsageError, match="no such language model"):
        LanguageModel.load(tmp_path / "absent")
    counted(TEXTS, 4).save(tmp_path / "good")
    whole = (tmp_path / "good").read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "noise").write_bytes(b"x" * 100)
    TrainedClassifier(np.zeros(4, np.float32), 0.0, "cjk").save(tmp_path / "classifier")
    for name in ("cut", "noise", "classifier"):
        with pytest.raises(IntegrityError, match=f"{name} is not a language model"):
            judge([PerplexityConfig(model=str(tmp_path / name))], TEXTS)
    (tmp_path / "later").write_bytes(whole.replace(b'version\\": 1', b'version\\": 2'))
    with pytest.raises(IntegrityError, match="later is of version 2, and this hornbook reads version 1"):
        LanguageModel.load(tmp_path / "later")


def test_a_flipped_bit_is_damage(tmp_path: Path):
    counted(TEXTS, 4).save(tmp_path / "bad")
    data = bytearray((tmp_path / "bad").read_bytes())
    data[-1000] ^= 1
    (tmp_path / "bad").write_bytes(data)
    with pytest.raises(IntegrityError, match="bad is damaged: train it again"):
        LanguageModel.load(tmp_path / "bad")


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [("end", -1, 2**32 - 1), ("end", 300, 300), ("first", 5, 2**32 - 1), ("bits", 9, np.nan)],
)
def test_numbers_that_lead_nowhere_are_damage(tmp_path: Path, name: str, place: int, value: float):
    counted(TEXTS, 4).save(tmp_path / "good")
    arrays = load_file(tmp_path / "good")
    arrays[name][place] = value
    LanguageModel(**arrays, order=4).save(tmp_path / "bad")
    with pytest.raises(IntegrityError, match="bad is damaged: train it again"):
        LanguageModel.load(tmp_path / "bad")


def test_as_a_step(tmp_path: Path):
    model = train(sentences(300, 5), 6, 10**6, 10**6)[0]
    model.save(tmp_path / "lm.safetensors")
    own, strange = sentences(5, 20), [TEXTS[3], TEXTS[4]]
    boilerplate = ["the kernel reads a page of memory.\n" * 30]
    scores = model.bits_per_byte([*own, *strange, *boilerplate])
    config = {"model": str(tmp_path / "lm.safetensors"), "maximum": 2.0, "minimum": scores[:5].min()}
    assert scores[-1] < scores[:5].min()
    kept, signals = prepare(tmp_path, [PerplexityConfig.model_validate(config)], [*own, *strange, *boilerplate])
    assert kept == own
    high, low = "perplexity of lm too high", "perplexity of lm too low"
    assert signals["reason"].to_pylist() == ["kept"] * 5 + [high] * 2 + [low]
    assert signals["perplexity.bits_per_byte"].to_pylist() == scores.tolist()


def test_any_spread_over_tasks_gives_the_same(tmp_path: Path):
    counted(sentences(50, 8), 4).save(tmp_path / "lm")
    step = PerplexityConfig(model=str(tmp_path / "lm"), maximum=1.2)
    texts = [*sentences(30, 21), *TEXTS]
    assert judge([step], texts)[0] == judge([step], texts[:7], texts[7:20], texts[20:])[0]
    assert len(set(judge([step], texts)[0])) == 2
    assert columns_of(step, texts)["perplexity.bits_per_byte"].dtype == np.float64


def test_without_thresholds_only_noise_goes(tmp_path: Path):
    counted(sentences(50, 8), 4).save(tmp_path / "lm")
    noise = "".join(chr(code) for code in random.Random(1).sample(range(0x4E00, 0x9FFF), 300))
    reasons, _ = judge([PerplexityConfig(model=str(tmp_path / "lm"))], [*sentences(3, 1), "", noise])
    assert reasons == [*["kept"] * 4, "perplexity of lm too high"]
