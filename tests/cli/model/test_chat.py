"""`hornbook chat`: turns of a template, or one text that grows; what ends an answer and what ends the session."""

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.generate import generate as generating
from hornbook.text.tokenizer.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}{{ m['role'][0] + ': ' + m['content'] + '\\n' }}{% endfor %}a: "
Talk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def talk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Talk:
    """talk(folder, "lines\n", words...) -> (exit code, stdout, stderr)."""

    def act(folder: Path, lines: str, *words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        capsys.readouterr()
        code = main(["chat", str(folder), *map(str, words)])
        return code, *capsys.readouterr()

    return act


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The tokens that each answer continued."""
    seen: list[list[int]] = []
    real = generating.generate

    def watched(model: Any, tokens: list[int], **rest: Any) -> Iterator[int]:
        seen.append(list(tokens))
        return real(model, tokens, **rest)

    monkeypatch.setattr(generating, "generate", watched)
    return seen


@pytest.fixture
def templated(checkpoint: Path, tmp_path: Path) -> Path:
    folder = shutil.copytree(checkpoint, tmp_path / "templated")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def answers(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_base_model_says_so_and_continues_one_text(checkpoint: Path, talk: Talk, prompts: list[list[int]]) -> None:
    code, out, err = talk(checkpoint, "the page\n\nand says\n", "--tokens", 5, "--json")
    assert code == Exit.DONE
    assert err.splitlines()[0].startswith("a base model: no chat template came with its tokenizer")
    assert "/reset" in err
    first, second, third = answers(out)
    assert (first["prompt"], first["tokens"], first["ended"]) == ("the page", 5, "length")
    tokenizer = Tokenizer.load(checkpoint)
    assert prompts[0] == [tokenizer.delimiter_id, *tokenizer.encode("the page")]
    assert prompts[1][: len(prompts[0])] == prompts[0]
    assert len(prompts[1]) == len(prompts[0]) + 5  # an empty line lets it go on
    assert prompts[2][len(prompts[1]) + 5 :] == tokenizer.encode("\nand says")
    assert second["prompt"] == ""
    assert third["text"]


def test_plain_answers_are_lines_on_stdout(checkpoint: Path, talk: Talk) -> None:
    code, out, err = talk(checkpoint, "the\n", "--tokens", 6, "--greedy")
    assert code == Exit.DONE
    generated = main(["generate", str(checkpoint), "-p", "the", "--tokens", "6", "--greedy"])
    assert generated == Exit.DONE
    assert out.endswith("\n")
    assert "6 tokens" in err


def test_the_first_answer_is_that_of_generate(checkpoint: Path, talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tokens", "12", "--seed", "5", "--top-p", "0.9", "--temperature", "1.1", "--top-k", "40")
    _, said, _ = talk(checkpoint, "the page\n", *words)
    assert main(["generate", str(checkpoint), "-p", "the page", *words]) == Exit.DONE
    assert capsys.readouterr().out == f"the page{said}"


def test_turns_follow_the_template(templated: Path, talk: Talk, prompts: list[list[int]]) -> None:
    code, out, err = talk(templated, " one \n\ntwo\n", "--system", "be kind", "--tokens", 4, "--json")
    assert code == Exit.DONE
    assert err.startswith("the model answers by its chat template; /reset")
    first, _ = answers(out)  # a blank line is no turn
    tokenizer = Tokenizer.load(templated)
    assert tokenizer.decode(prompts[0]) == "s: be kind\nu: one\na: "
    assert tokenizer.decode(prompts[1]) == f"s: be kind\nu: one\na: {first['text']}\nu: two\na: "


def test_reset_and_quit(templated: Path, checkpoint: Path, talk: Talk, prompts: list[list[int]]) -> None:
    code, out, err = talk(templated, "one\n/reset\ntwo\n/quit\nthree\n", "--tokens", 2, "--json")
    assert (code, len(answers(out))) == (Exit.DONE, 2)
    assert "a new conversation" in err
    assert Tokenizer.load(templated).decode(prompts[1]) == "u: two\na: "
    talk(checkpoint, "one\n/reset\ntwo\n", "--tokens", 2)
    assert Tokenizer.load(checkpoint).decode(prompts[-1]) == "<|endoftext|>two"


def test_the_same_seed_gives_the_same_conversation(checkpoint: Path, talk: Talk) -> None:
    lines = "the\nthe\n"
    once = talk(checkpoint, lines, "--tokens", 20, "--seed", 2)[1]
    assert talk(checkpoint, lines, "--tokens", 20, "--seed", 2)[1] == once
    assert talk(checkpoint, lines, "--tokens", 20, "--seed", 9)[1] != once


def test_an_interrupt_stops_the_answer_and_keeps_the_session(
    checkpoint: Path, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, prompts = generating.generate, []

    def interrupted(model: Any, tokens: list[int], **rest: Any) -> Iterator[int]:
        prompts.append(list(tokens))
        for number, token in enumerate(real(model, tokens, **rest)):
            if len(prompts) == 1 and number == 3:
                raise KeyboardInterrupt
            yield token

    monkeypatch.setattr(generating, "generate", interrupted)
    code, out, err = talk(checkpoint, "one\ntwo\n", "--tokens", 9, "--json")
    assert code == Exit.DONE
    first, second = answers(out)
    assert (first["tokens"], first["ended"]) == (3, "interrupted")
    assert second["tokens"] == 9
    assert "ended by interrupted" in err
    assert len(prompts[1]) == len(prompts[0]) + 3 + len("\ntwo")


def test_an_end_of_text_begins_another(checkpoint: Path, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = []

    def brief(model: Any, tokens: list[int], **rest: Any) -> Iterator[int]:
        del model, rest
        prompts.append(list(tokens))
        yield 40

    monkeypatch.setattr(generating, "generate", brief)
    _, out, _ = talk(checkpoint, "one\ntwo\n", "--json")
    assert [each["ended"] for each in answers(out)] == ["end of text", "end of text"]
    assert Tokenizer.load(checkpoint).decode(prompts[1]) == "<|endoftext|>two"


def test_a_stop_text_ends_the_answer_and_not_the_text(checkpoint: Path, talk: Talk, prompts: list[list[int]]) -> None:
    words = ("--greedy", "--tokens", 12, "--json")
    (whole,) = answers(talk(checkpoint, "one\n", *words)[1])
    stop = whole["text"][5:7]
    shown = whole["text"][: whole["text"].index(stop)]
    _, out, _ = talk(checkpoint, "one\ntwo\n", *words, "--stop", stop)
    assert [answers(out)[0][name] for name in ("text", "ended")] == [shown, "stop text"]
    assert Tokenizer.load(checkpoint).decode(prompts[2]) == f"<|endoftext|>one{shown}\ntwo"


def test_what_was_computed_for_earlier_turns_is_kept(
    checkpoint: Path, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, real = [], generating.next_logits

    def counted(model: Any, tokens: Any, *rest: Any) -> Any:
        sizes.append(len(tokens))
        return real(model, tokens, *rest)

    monkeypatch.setattr(generating, "next_logits", counted)
    talk(checkpoint, "the page\nab\n", "--tokens", 3)
    assert sizes == [9, 1, 1, 4, 1, 1]  # the last token of an answer, a line feed, two letters


class Terminal(io.StringIO):
    """A stdin that says it is a terminal, whose first line is given up with Ctrl-C."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.interrupts = 1

    def isatty(self) -> bool:
        return True

    def readline(self, *arguments: Any) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return super().readline(*arguments)


def test_at_the_prompt_an_interrupt_drops_the_line(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("one\n"))
    assert main(["chat", str(checkpoint), "--tokens", "1", "--json"]) == Exit.DONE
    printed = capsys.readouterr()
    assert len(answers(printed.out)) == 1
    assert printed.err.count("> ") == 3
    assert "/quit or Ctrl-D ends" in printed.err


def test_system_needs_a_template(checkpoint: Path, talk: Talk) -> None:
    code, _, err = talk(checkpoint, "", "--system", "be kind")
    assert (code, "no chat template" in err) == (Exit.USAGE, True)


@pytest.mark.parametrize(("lines", "message"), [("\udcff\n", "not UTF-8")])
def test_lines_that_are_no_text_are_refused(checkpoint: Path, talk: Talk, lines: str, message: str) -> None:
    code, _, err = talk(checkpoint, lines)
    assert (code, message in err) == (Exit.USAGE, True)


def test_a_bad_line_typed_at_a_terminal_is_left_out(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pipe with such a line ends the session; a person goes on."""
    stdin = Terminal("one\n\udcff\ntwo\n")
    stdin.interrupts = 0
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["chat", str(checkpoint), "--tokens", "1", "--json"]) == Exit.DONE
    printed = capsys.readouterr()
    assert [each["prompt"] for each in answers(printed.out)] == ["one", "two"]
    assert printed.err.count("not UTF-8 text; the line is left out") == 1
