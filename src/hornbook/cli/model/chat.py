"""`hornbook chat`: talk with a model turn by turn, or write a text together with a base model."""

import importlib
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.model.generate import MaxTokens, SamplingOptions, Stop, load_speaker, speed_text
from hornbook.cli.result import Json, Result, Results, write
from hornbook.cli.shell import Device, Target, read_utf8, require_utf8, say
from hornbook.errors import UsageError

if TYPE_CHECKING:
    from hornbook.model.generate.sampling import Sampling
    from hornbook.model.generate.text_stream import StopStrings
    from hornbook.model.storage.load import Loaded
    from hornbook.text.tokenizer.chat_template import ChatTemplate

_KEYS = "/reset starts anew, /quit or Ctrl-D ends, Ctrl-C stops an answer"
_ENDED, _STOPPED, _FULL, _CUT = "end of text", "interrupted", "length", "stop text"


def chat(
    target: Target,
    *,
    system: Annotated[str | None, typer.Option(help="A system message; needs a chat template.")] = None,
    tokens: MaxTokens = 256,
    options: SamplingOptions,
    stop: Stop = None,
    device: Device = "auto",
    as_json: Json = False,
) -> Results:
    """Talk with a model: each line is a turn, and the answer is printed while it is generated.

    A model whose tokenizer has a chat template answers by it. Any other decoder is a base model: it continues the one
    text that your lines and its answers form, and an empty line lets it continue.
    /reset starts anew, /quit or Ctrl-D ends, Ctrl-C stops an answer and keeps the session. stdout has the answers,
    stderr everything else. --json prints one object per turn.
    """
    sampling = options.sampling()
    loaded = load_speaker(target, device)
    if loaded.config.kind != "decoder":
        raise UsageError(
            f"{loaded.folder}: chat needs a decoder, and this is an {loaded.config.kind}: use `hornbook generate`"
        )
    conversation = _conversation(loaded, system)
    speaker = Speaker(loaded, conversation, tokens, sampling, tuple(stop or ()))
    say(f"{conversation.about}; {_KEYS}")
    for line in _lines():
        if line.strip() == "/quit":
            return
        if line.strip() == "/reset":
            conversation.reset()
            say("a new conversation")
        elif (heard := _understood(line)) is not None and conversation.hear(heard):
            yield speaker.take_turn(line, as_json=as_json)


def _understood(line: str) -> str | None:
    """The line, or None if it was typed at a terminal and is not UTF-8. From a pipe, that is a UsageError."""
    try:
        return require_utf8(line)
    except UsageError as error:
        if not sys.stdin.isatty():
            raise
        say(f"{error}; the line is left out")
        return None


class Turns:
    """A conversation by a chat template. `about` is the kind of model, for people; tokens in `stop` end an answer."""

    def __init__(self, loaded: "Loaded", template: "ChatTemplate", system: str | None) -> None:
        self._template, self._system = template, system
        ends = {*loaded.ends, template.turn_end()}
        self.about = "the model answers by its chat template"
        self.stop = frozenset(each for each in ends if each is not None)
        self.reset()

    def reset(self) -> None:
        """Forget all turns but the system message."""
        self._turns = [] if self._system is None else [("system", self._system)]

    def hear(self, line: str) -> bool:
        """Add a user's turn; returns whether it needs an answer. A blank line is ignored."""
        if line.strip():
            self._turns.append(("user", line.strip()))
        return bool(line.strip())

    def tokens(self) -> list[int]:
        """The tokens that the next answer continues: the conversation up to the assistant's turn."""
        from hornbook.text.tokenizer.chat_template import Message

        return self._template.encode([Message(role, text) for role, text in self._turns])

    def said(self, ids: list[int], text: str, ended: str) -> None:
        """Keep an answer, also a stopped one, because the next line may refer to it."""
        del ids, ended
        self._turns.append(("assistant", text))


class OneText:
    """The one text that a base model and a person write in turns; each line of the person starts a new line of it."""

    def __init__(self, loaded: "Loaded") -> None:
        self._tokenizer = loaded.require_tokenizer()
        self.about = (
            "a base model: no chat template came with its tokenizer, so it continues the text you write together "
            "(an empty line lets it continue)"
        )
        self.stop = frozenset({self._tokenizer.end_id, self._tokenizer.delimiter_id})
        self.reset()

    def reset(self) -> None:
        """Start a new text with the delimiter token, as documents start in training."""
        self._ids = [self._tokenizer.delimiter_id]

    def hear(self, line: str) -> bool:
        """Append the line, which needs an answer, to the text. The first line starts it."""
        if line:
            self._ids += self._tokenizer.encode(line if len(self._ids) == 1 else f"\n{line}")
        return True

    def tokens(self) -> list[int]:
        """The whole text."""
        return list(self._ids)

    def said(self, ids: list[int], text: str, ended: str) -> None:
        """Append what the model wrote; after an end-of-text token the next line starts another text.

        Of an answer that a text of --stop ended, what was shown: its last tokens have that text too.
        """
        self._ids += self._tokenizer.encode(text) if ended == _CUT else ids
        if ended == _ENDED:
            self.reset()


Conversation = Turns | OneText


def _conversation(loaded: "Loaded", system: str | None) -> Conversation:
    from hornbook.text.tokenizer.chat_template import read_chat_template

    template = read_chat_template(loaded.tokenizer_folder, loaded.require_tokenizer())
    if template is not None:
        return Turns(loaded, template, None if system is None else require_utf8(system))
    if system is not None:
        raise UsageError(
            f"{loaded.folder} has no chat template, so it takes no --system: write that text as the first line"
        )
    return OneText(loaded)


class Speaker:
    """Generates answers, and keeps the keys and values computed for earlier turns."""

    def __init__(
        self,
        loaded: "Loaded",
        conversation: Conversation,
        max_tokens: int,
        sampling: "Sampling",
        stop: tuple[str, ...] = (),
    ) -> None:
        from hornbook.model.generate.generate import Past

        self._loaded, self._conversation = loaded, conversation
        self._max_tokens, self._sampling, self._stop = max_tokens, sampling, stop
        self._turns, self._past = 0, Past()

    def take_turn(self, line: str, *, as_json: bool) -> Result:
        """Answer, showing the text piece by piece unless `as_json`, until the end of a turn, the limit, or Ctrl-C."""
        from hornbook.model.generate.text_stream import StopStrings

        ids: list[int] = []
        pieces: list[str] = []
        start, ended, ends = time.perf_counter(), _ENDED, StopStrings(self._stop)
        try:
            for piece in self._stream(ids, ends):
                pieces.append(piece)
                if not as_json:
                    write(piece)
            ended = _CUT if ends.found is not None else _FULL if len(ids) == self._max_tokens else _ENDED
        except KeyboardInterrupt:
            ended = _STOPPED
        text, seconds = "".join(pieces), time.perf_counter() - start
        self._conversation.said(ids, text, ended)
        self._turns += 1
        value = {"prompt": line, "text": text, "tokens": len(ids), "ended": ended, "seconds": round(seconds, 3)}
        return Result(value, "", report=[speed_text(len(ids), seconds, ended)])

    def _stream(self, ids: list[int], ends: "StopStrings") -> Iterator[str]:
        """Pieces of the answer as they are generated; appends their token ids to `ids`. Each turn has its own seed."""
        from hornbook.model.generate.generate import generate, stream_text

        tokenizer, before = self._loaded.require_tokenizer(), self._conversation.tokens()
        sampling = replace(self._sampling, seed=(self._sampling.seed + self._turns) % 2**63)
        made = generate(
            self._loaded.model,
            before,
            max_tokens=self._max_tokens,
            **asdict(sampling),
            stop=self._conversation.stop,
            vocab=tokenizer.vocab_size,
            length=self._loaded.config.position.length,
            past=self._past,
        )

        def collected() -> Iterator[int]:
            for token in made:
                ids.append(token)
                yield token

        return stream_text(collected(), tokenizer, before, ends)


def _lines() -> Iterator[str]:
    """Lines of stdin without line ends; on a terminal, with line editing, and Ctrl-C drops the line."""
    read_utf8()
    terminal = sys.stdin.isatty()
    if terminal and sys.stdout.isatty():
        with suppress(ImportError):  # arrow keys and the history of lines, if Python was built with it
            importlib.import_module("readline")
    while True:
        try:
            line = _ask() if terminal else sys.stdin.readline()
        except KeyboardInterrupt:
            if not terminal:
                raise
            say("\n/quit or Ctrl-D ends")
            continue
        if not line:
            return
        yield line.rstrip("\r\n")


def _ask() -> str:
    """A line, or "" at the end of input. The prompt goes to stderr unless line editing writes it to stdout."""
    if not sys.stdout.isatty():
        sys.stderr.write("> ")
        sys.stderr.flush()
        return sys.stdin.readline()
    try:
        return input("> ") + "\n"
    except EOFError:
        write("\n")
        return ""
