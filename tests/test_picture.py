"""The picture in the README: drawn from a screen, whole, and asking for nothing from anywhere."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.capture_console import moment, picture
from tests.terminal import Screen

ROOT = Path(__file__).parent.parent


def words_of(svg: str) -> str:
    """All text of a picture."""
    texts = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return "\n".join(text.text or "" for text in texts).replace("\xa0", " ")


def test_a_screen_is_drawn_with_its_colours_and_without_fonts_of_others() -> None:
    screen = Screen(30)
    screen.feed("\x1b[1mbold\x1b[0m and \x1b[31mred\x1b[0m\r\nsecond <line>\r\n")
    svg = picture("hornbook train", screen)
    assert re.findall(r"https?://\S+?(?=[\"\s<])", svg.replace("http://www.w3.org/2000/svg", "")) in ([], [RICH])
    assert {"hornbook train", "bold", " and ", "red"} <= set(words_of(svg).splitlines())
    assert "second <line>" in words_of(svg)
    assert "url(" not in re.sub(r"url\(#", "", svg)


RICH = "https://www.textualize.io"
"""A comment of rich, which nothing asks for."""


def test_the_moment_is_a_whole_panel_that_far() -> None:
    def panel(step: int) -> bytes:
        return f"\r\x1b[1A\x1b[2Kstep {step} / 9  left 3s\r\nmemory 1 GB".encode()

    parts = [b"\r\n", panel(3), panel(7)[:9], panel(7)[9:40], panel(7)[40:], panel(9)]
    assert "step 7 / 9" in moment(80, parts).text
    with pytest.raises(ValueError, match="never came so far"):
        moment(80, parts[:3])


def test_the_readme_shows_a_run_with_all_that_the_console_has() -> None:
    assert "(docs/console.svg)" in (ROOT / "README.md").read_text().split("What the demo prints")[0]
    words = words_of((ROOT / "docs" / "console.svg").read_text())
    for word in ("hornbook train tiny", "validation loss", "saved step-", "bpb ", "tok/s", "left ", "memory ", "peak "):
        assert word in words
