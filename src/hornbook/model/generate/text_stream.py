"""Text as it grows token by token: characters split over tokens, and strings that end a text."""

from collections.abc import Collection, Sequence

from hornbook.text.tokenizer.tokenizer import Tokenizer

_WINDOW = 8
"""Tokens that are decoded again with each new one, at least."""
_PART = "\ufffd"
"""What part of a character decodes to."""


class TextStream:
    """Text of token ids as soon as it is certain: a character split over tokens waits for its last byte.

    The pieces join to what decoding everything at once gives behind what it gives for `before`, the ids that the text
    continues. (But for bytes that are no text behind a character spelled in bytes: the latter is shown when it is
    whole, and decoding everything gives U+FFFD for all of them.)
    """

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window = list(before[-_WINDOW:])
        parts = (self._window[start:] for start in range(len(self._window)))  # it may begin within a character
        self._window = next((each for each in parts if not tokenizer.decode(each).startswith(_PART)), self._window)
        self._context, self._shown = len(self._window), len(tokenizer.decode(self._window))

    def push(self, token: int) -> str:
        """What one more token makes certain."""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        # An unfinished character decodes to one replacement character at the end, or to one for each byte token before
        # it. So does a byte that will never be finished; then the next token moves it away from the end, and it is
        # shown.
        certain = len(text.rstrip(_PART)) if self._tokenizer.has_byte_fallback else len(text) - text.endswith(_PART)
        piece = text[self._shown : certain]
        self._shown = max(certain, self._shown)
        if certain == len(text) and len(self._window) >= self._context + _WINDOW:
            # Some decoders treat the first token apart, so tokens already shown stay in front.
            self._window = self._window[self._context :]
            self._context, self._shown = len(self._window), len(self._tokenizer.decode(self._window))
        return piece

    def flush(self) -> str:
        """The rest, at the end of the text."""
        return self._tokenizer.decode(self._window)[self._shown :]


class StopStrings:
    """Ends a growing text before the first of some strings, and holds back what may be the beginning of one."""

    def __init__(self, strings: Collection[str] = ()) -> None:
        self._strings = tuple(filter(None, strings))
        self._held = ""
        self.found: str | None = None
        """The string that ended the text."""

    def push(self, piece: str) -> str:
        """What is certain to stand before any of the strings, now that `piece` has come; "" after the end."""
        if self.found is not None:
            return ""
        text = self._held + piece
        places = [(at, each) for each in self._strings if (at := text.find(each)) >= 0]
        if places:
            end, self.found = min(places, key=lambda place: place[0])
            self._held = ""
            return text[:end]
        held = max((_overlap(text, each) for each in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back, at the end of a text that none of the strings ended."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Number of characters at the end of `text` that begin `string`."""
    sizes = range(min(len(text), len(string) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(string[:size])), 0)
