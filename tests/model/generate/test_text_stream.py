"""Text of growing token ids; strings that end it, however its pieces are cut."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as Raw

from hornbook.model.generate.text_stream import StopStrings, TextStream
from hornbook.text.tokenizer.tokenizer import Tokenizer


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.data())
def test_a_text_ends_before_the_first_of_the_strings(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    ends, shown = StopStrings(stops), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        shown += ends.push(text[start:end])
        assert not any(stop in shown for stop in stops)
    places = [text.index(stop) for stop in stops if stop in text]
    assert (ends.found is not None) == bool(places)
    assert shown + ends.flush() == text[: min(places, default=len(text))]


def test_only_what_may_begin_a_string_is_held_back():
    ends = StopStrings(["\n\n", "END"])
    assert [ends.push(each) for each in ("one\n", "two EN", "d", "E", "N", "D more", "late")] == [
        "one",
        "\ntwo ",
        "ENd",
        "",
        "",
        "",
        "",
    ]
    assert (ends.found, ends.flush()) == ("END", "")


def test_an_empty_string_ends_nothing():
    ends = StopStrings([""])
    assert (ends.push("text"), ends.found) == ("text", None)


def write_byte_fallback(folder: Path) -> Tokenizer:
    """As LLaMA 2's: a mark for blanks, characters beyond the vocabulary as byte tokens, no blank before a text."""
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)] + list("\u2581abc")
    vocab = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    raw = Raw(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    raw.normalizer = normalizers.Replace(" ", "\u2581")
    raw.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken(each, special=True) for each in ("<unk>", "<s>", "</s>")])
    raw.save(str(folder / "tokenizer.json"))
    return Tokenizer.load(folder)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text("ab \u00e9\u3042\u6771\U0001f600", min_size=1), data=st.data())
def test_characters_of_byte_tokens_are_shown_whole(text: str, data: st.DataObject, tmp_path: Path) -> None:
    tokenizer = write_byte_fallback(tmp_path)
    cut = data.draw(st.integers(0, len(text)))
    before = tokenizer.encode(text[:cut])
    stream = TextStream(tokenizer, before)
    pieces = [stream.push(each) for each in tokenizer.encode(text[cut:])]
    whole = tokenizer.decode([*before, *tokenizer.encode(text[cut:])])
    assert (tokenizer.decode(before) + "".join(pieces), stream.flush()) == (whole, "")
    assert not any("\ufffd" in each for each in pieces)


def test_bytes_that_are_no_character_are_shown_when_others_follow(tmp_path: Path) -> None:
    tokenizer = write_byte_fallback(tmp_path)
    stream, (a, *rest) = TextStream(tokenizer), tokenizer.encode("a\u3042")
    assert [stream.push(each) for each in (a, *rest[:2], a, rest[0])] == ["a", "", "", "\ufffd\ufffda", ""]
    assert stream.flush() == "\ufffd"


def test_a_token_knows_its_bytes(tmp_path: Path, tokenizer_folder: Path) -> None:
    ours, byte_level = write_byte_fallback(tmp_path), Tokenizer.load(tokenizer_folder)
    for text in ("a b", " b\u3042\U0001f600"):
        for tokenizer in (ours, byte_level):
            found = [tokenizer.bytes_of(each) for each in tokenizer.encode(text)]
            assert b"".join(each for each in found if each is not None) == text.encode()
