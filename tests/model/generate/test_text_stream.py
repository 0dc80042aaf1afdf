"""Strings that end a text, however its pieces are cut."""

from hypothesis import given
from hypothesis import strategies as st

from hornbook.model.generate.text_stream import StopStrings


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
