"""`hornbook generate`: text on stdout, speed on stderr, one object under --json."""

import io
import json
import shutil
import sys

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.model.generate import generate as generating
from hornbook.text.tokenizer.tokenizer import Tokenizer


@pytest.fixture
def run(capsys):
    """`run(words...)` -> (exit code, stdout, stderr)."""

    def act(*words):
        code = main(["generate", *map(str, words)])
        return code, *capsys.readouterr()

    return act


def test_a_prompt_is_continued(checkpoint, run):
    code, out, err = run(checkpoint, "-p", "the page", "--tokens", 20)
    assert code == Exit.DONE
    assert out.startswith("the page")
    assert out.endswith("\n")
    assert len(out) > len("the page\n")
    assert "tok/s" in err
    assert "20 tokens" in err or "ended by end of text" in err


def test_json_says_everything(checkpoint, run):
    code, out, _ = run(checkpoint, "-p", "the page", "--tokens", 20, "--seed", 3, "--top-k", 7, "--json")
    record = json.loads(out)
    assert code == Exit.DONE
    assert (record["prompt"], record["seed"], record["top_k"]) == ("the page", 3, 7)
    assert record["tokens"] == len(record["ids"]) <= 20
    assert record["ended"] in ("length", "end of text")
    _, text, _ = run(checkpoint, "-p", "the page", "--tokens", 20, "--seed", 3, "--top-k", 7)
    assert text == "the page" + record["text"] + "\n"


def test_same_seed_same_text(checkpoint, run):
    def text(*words):
        return json.loads(run(checkpoint, "-p", "a", "--tokens", 30, "--json", *words)[1])["text"]

    assert text("--seed", 1) == text("--seed", 1)
    assert text("--seed", 1) != text("--seed", 2)
    assert text("--greedy", "--seed", 1) == text("--greedy", "--seed", 2) == text("--temperature", 0)


def test_only_ids_of_the_tokenizer_are_chosen(checkpoint, run):
    """The embedding has 320 rows, the tokenizer 257 ids."""
    record = json.loads(run(checkpoint, "-p", "", "--tokens", 200, "--temperature", 50, "--top-k", 0, "--json")[1])
    assert max(record["ids"]) < 257


def test_a_run_stands_for_its_newest_checkpoint(run_with_checkpoints, checkpoint, run):
    words = ("-p", "the", "--tokens", 8, "--greedy")
    assert run(run_with_checkpoints, *words)[1] == run(checkpoint, *words)[1]
    assert run(run_with_checkpoints / "checkpoints" / "step-00000010", *words)[0] == Exit.DONE


class Terminal(io.StringIO):
    """A stdin that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_lines_of_stdin_are_prompts(checkpoint, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo"))
    _, out, _ = run(checkpoint, "--tokens", 4, "--json")
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("one\n"))
    assert run(checkpoint, "--tokens", 0)[1] == "one\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert run(checkpoint)[:2] == (Exit.DONE, "")


def test_on_a_terminal_it_asks_and_does_not_repeat_the_prompt(checkpoint, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal("one\n"))
    code, out, err = run(checkpoint, "--tokens", 0)
    assert (code, out) == (Exit.DONE, "\n")
    assert "Ctrl-D" in err
    assert err.count("> ") == 2


def test_pieces_are_shown_as_they_come(checkpoint, monkeypatch):
    flushed = []

    class Watched(io.StringIO):
        def flush(self) -> None:
            flushed.append(len(self.getvalue()))

    monkeypatch.setattr(sys, "stdout", Watched())
    main(["generate", str(checkpoint), "-p", "the", "--tokens", "12", "--greedy"])
    assert len(set(flushed)) > 5


WRONG = [
    (["--temperature", "-1"], "temperature"),
    (["--top-p", "0"], "top-p"),
    (["--device", "abacus"], "abacus"),
    (["--tokens", "-3"], "--tokens"),
    (["-p", "\udcff"], "not UTF-8"),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_wrong_requests_are_usage_errors(words, message, checkpoint, run):
    code, out, err = run(checkpoint, *(["-p", "a"] if words[0] != "-p" else []), *words)
    assert code == Exit.USAGE
    assert message in err
    assert out == ""


def test_lines_that_are_no_text_are_refused(checkpoint, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\n"), encoding="utf-8"))
    code, _, err = run(checkpoint, "--tokens", 1)
    assert (code, "not UTF-8" in err) == (Exit.USAGE, True)


def test_a_checkpoint_without_tokenizer_is_refused(checkpoint, run, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    code, _, err = run(tmp_path / "model", "-p", "a")
    assert code == Exit.USAGE
    assert "no tokenizer.json" in err


def test_a_place_without_checkpoints_is_refused(run, tmp_path):
    assert run(tmp_path / "nowhere", "-p", "a")[0] == Exit.USAGE
    assert run(tmp_path, "-p", "a")[0] in (Exit.USAGE, Exit.INTEGRITY)


def test_stop_strings_penalties_and_log_probabilities(checkpoint, capsys):
    words = ["generate", str(checkpoint), "-p", "the", "--tokens", "30", "--json", "--seed", "3"]

    def made(*more):
        assert main([*words, *more]) == Exit.DONE
        return json.loads(capsys.readouterr().out)

    whole = made("--logprobs", "2")
    assert [each["id"] for each in whole["logprobs"]] == whole["ids"]
    assert all(each["logprob"] <= each["top"][0]["logprob"] < 0 and len(each["top"]) == 2 for each in whole["logprobs"])
    stop = whole["text"][8:10]
    ended = made("--stop", stop, "--stop", "no such")
    assert ended["text"] == whole["text"][: whole["text"].index(stop)]
    assert ended["ended"] == made("--stop", stop, "--tokens", str(ended["tokens"]))["ended"] == "stop text"
    assert len(set(made("--frequency-penalty", "100")["ids"])) == 30
    assert made("--min-p", "1")["ids"] == made("--greedy")["ids"]
    assert main([*words, "--beams", "2", "--min-p", "0.5"]) == Exit.USAGE


def test_a_chat_template_asks_where_wanted(checkpoint, run, tmp_path, monkeypatch):
    asked = []
    real = generating.generate
    monkeypatch.setattr(
        generating, "generate", lambda model, ids, **rest: asked.append(ids) or real(model, ids, **rest)
    )
    words = ["--chat", "-p", "the page", "--greedy", "--tokens", 8]
    code, _, err = run(checkpoint, *words)
    assert code == Exit.USAGE
    assert "has no chat template, and --chat asks a decoder by its template: leave it out" in err
    folder = shutil.copytree(checkpoint, tmp_path / "templated")
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ 'Q: ' + m['content'] }}{% endfor %} A:")
    code, out, _ = run(folder, *words)
    assert asked == [Tokenizer.load(folder).encode("Q: the page A:")]
    assert not out.startswith("the page"), "an answer is told without what was asked"
    assert json.loads(run(folder, *words, "--json")[1])["prompt"] == "the page"


def test_a_prompt_that_is_cut_is_said(checkpoint, run):
    """64 positions: the end of a longer prompt is read, in silence until now."""
    code, _, err = run(checkpoint, "-p", "a b " * 40, "--tokens", "2")
    assert code == 0
    assert "note: of the prompt's 161 tokens the last 32 are read: the model has 64 positions" in err
    code, _, err = run(checkpoint, "-p", "a b", "--tokens", "2")
    assert "are read" not in err
