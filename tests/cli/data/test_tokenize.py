"""hornbook tokenize: what people and scripts see."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.data.corpus import Corpus
from hornbook.errors import Exit

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str | Path) -> tuple[int, str, str]:
        code = main([*map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def data(run: Run, tmp_path: Path) -> Path:
    rows = [{"text": f"the model reads page {number} of the book again and again"} for number in range(60)]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("prepare", "tiny", tmp_path / "notes.jsonl", "--out", tmp_path / "data", "--text.tokenizer.vocab", "300")
    assert run(*words)[0] == Exit.DONE
    return tmp_path / "data"


def test_the_recipe_of_prepare_is_used(run: Run, data: Path):
    code, out, err = run("tokenize", data)
    assert (code, out) == (Exit.DONE, "")
    assert "\x1b" not in err
    assert "notes" in err
    assert f"hornbook train RECIPE --data {data}" in err
    index = json.loads((data / "tokens" / "index.json").read_text())
    assert (index["validation"], index["vocab_size"] <= 300) == (0.03, True)


def test_scripts_get_one_json_object(run: Run, data: Path):
    code, out, _ = run("tokenize", data, "--json", "--text.validation", "0.2")
    assert code == Exit.DONE
    found = json.loads(out)
    corpus = Corpus.open(data)
    assert found["train"]["tokens"] == corpus.train["notes"].tokens
    assert found["validation"]["documents"] == corpus.validation["notes"].documents > 0
    assert found["sources"]["notes"]["train"] == found["train"]
    assert found["vocab"] == corpus.vocab_size


def test_vocab_and_tokenizer_options(run: Run, data: Path, tmp_path: Path):
    code, out, _ = run("tokenize", data, "--vocab", "0.26k", "--json")
    assert (code, json.loads(out)["vocab"]) == (Exit.DONE, 260)
    (data / "tokenizer").rename(tmp_path / "given")
    code, _, err = run("tokenize", data, "--tokenizer", tmp_path / "given")
    assert (code, "--overwrite" in err) == (Exit.USAGE, True)
    code, out, _ = run("tokenize", data, "--tokenizer", tmp_path / "given", "--overwrite", "--json")
    assert (code, json.loads(out)["trained"], json.loads(out)["vocab"]) == (Exit.DONE, False, 260)


def test_vocab_keeps_the_kind_of_the_recipe(run: Run, data: Path):
    words = ("tokenize", data, "-n", "--json", "--vocab", "700", "--text.tokenizer.kind", "unigram")
    code, out, _ = run(*words, "--text.tokenizer.objectives", '["masked"]')
    made = json.loads(out)["tokenizer"]
    assert (code, made["kind"], made["vocab"], made["objectives"]) == (Exit.DONE, "unigram", 700, ["masked"])


def test_dry_run_writes_nothing(run: Run, data: Path):
    code, out, _ = run("tokenize", data, "-n")
    assert code == Exit.DONE
    assert "train bpe, 300 tokens" in out
    assert json.loads(run("tokenize", data, "-n", "--json", "--tokenizer", "x")[1])["tokenizer"]["path"] == "x"
    assert not (data / "tokens").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the folder"),
        (["nowhere"], "nowhere is not prepared"),
        (["DATA", "--vocab", "1k", "--tokenizer", "x"], "give one of them"),
        (["DATA", "--vocab", "3"], "text.tokenizer.vocab"),
        (["DATA", "--vocab", "300", "--text.tokenizer.objectives", '["span"]'], "take at least 358"),
        (["DATA", "--text.tokenizer.objectives", '["spam"]'], "did you mean span"),
        (["DATA", "--tokenizer", "nowhere"], "does not exist"),
        (["DATA", "--text.tokeniser.vocab", "300"], "text.tokenizer"),
    ],
)
def test_usage_errors_are_exit_code_2(run: Run, data: Path, words: list[str], message: str):
    code, out, err = run("tokenize", *[str(data) if word == "DATA" else word for word in words])
    assert (code, out) == (Exit.USAGE, "")
    assert message in err


def test_compare_shows_a_table_and_gives_one_json_object(run: Run, data: Path, tmp_path: Path):
    assert run("tokenize", data)[0] == Exit.DONE
    tree = sorted(data.rglob("*"))
    (tmp_path / "plain.txt").write_text("the model reads \u6570\u5b66")
    (tmp_path / "half.jsonl").write_text('{"text": "the model"}\n{"content": "reads"}\n')
    words = ("tokenize", "--compare", data, "bpe:260", "wordpiece:300", "unigram:400", tmp_path / "plain.txt")
    code, out, err = run(*words, "--json")
    assert code == Exit.DONE
    assert "\x1b" not in err
    assert all(name in err for name in ("bpe:260", "wordpiece:300", "unigram:400", "notes", "plain", "MB/s"))
    found = {(each["tokenizer"], each["corpus"]): each for each in json.loads(out)["figures"]}
    assert {corpus for _, corpus in found} == {"notes", "plain", "all"}
    assert {name for name, _ in found} == {"data", "bpe:260", "wordpiece:300", "unigram:400"}
    assert found["bpe:260", "notes"]["bytes_per_token"] < found["data", "notes"]["bytes_per_token"]
    assert found["wordpiece:300", "plain"]["unknown_share"] > 0 == found["unigram:400", "plain"]["unknown_share"]
    assert sorted(data.rglob("*")) == tree
    for folder in ("x", "y"):
        shutil.copytree(data / "tokenizer", tmp_path / folder / "tok")
    pair = (tmp_path / "x" / "tok", tmp_path / "y" / "tok" / "tokenizer.json")
    code, out, err = run("tokenize", "--compare", *pair, tmp_path / "half.jsonl", "--json")
    assert json.loads(out)["skipped"]["reasons"] == {"missing text": 1}
    assert "left out: 1: missing text (1); the first: " in " ".join(err.split())
    code, out, err = run("tokenize", "--compare", *pair, tmp_path / "plain.txt")
    assert (code, out) == (Exit.DONE, "")
    assert "tok-2" in err


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        ([], Exit.USAGE, "name the tokenizers to compare"),
        (["bpe:300"], Exit.USAGE, "name the text to compare them on"),
        (["bpe:300", "TEXT"], Exit.USAGE, "name one folder that `hornbook prepare` wrote"),
        (["bpe:3", "DATA"], Exit.USAGE, "text.tokenizer.vocab"),
        (["bpe:many", "DATA"], Exit.USAGE, "text.tokenizer.vocab"),
        (["nowhere/tokenizer.json", "TEXT"], Exit.USAGE, "nowhere/tokenizer.json does not exist"),
        (["BROKEN", "TEXT"], Exit.INTEGRITY, "is not a tokenizer.json"),
        (["bpe:300", "DATA", "nowhere"], Exit.USAGE, "nowhere does not exist"),
        (["bpe:300", "DATA", "EMPTY"], Exit.USAGE, "holds no text"),
        (["bpe:300", "DATA", "--text.validation", "0.1"], Exit.USAGE, "no settings: text.validation"),
        (["bpe:300", "DATA", "--vocab", "1k", "--overwrite"], Exit.USAGE, "--vocab, --overwrite: of no use"),
        (["bpe:300", "DATA", "--proxy-bytes", "1M"], Exit.USAGE, "give both, or neither"),
        (["bpe:300", "DATA", "--train-proxy", "--proxy-bytes", "some"], Exit.USAGE, "--proxy-bytes some"),
    ],
)
def test_bad_words_for_compare(run: Run, data: Path, tmp_path: Path, words: list[str], exit_code: Exit, message: str):
    paths = {"DATA": data, "TEXT": tmp_path / "notes.jsonl"}
    paths |= {"BROKEN": tmp_path / "broken.json", "EMPTY": tmp_path / "empty.txt"}
    paths["BROKEN"].write_text('{"model": {"type": "BPE"')
    paths["EMPTY"].touch()
    code, out, err = run("tokenize", "--compare", *[paths.get(word, word) for word in words])
    assert (code, out) == (exit_code, "")
    assert message in err


@pytest.mark.slow
def test_small_models_are_trained_on_each_and_the_same_twice(run: Run, data: Path, tmp_path: Path):
    rows = [{"text": " ".join(f"Page {number * step % 97}" for step in range(60))} for number in range(120)]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("tokenize", "--train-proxy", "--proxy-bytes", "60k", "--json", data, "bpe:260", "wordpiece:300")
    first, second = (run(*words, tmp_path / "more.jsonl") for _ in range(2))
    assert first[0] == second[0] == Exit.DONE
    found, again = (json.loads(each[1])["proxy"] for each in (first, second))
    assert found == again
    assert [model["tokenizer"] for model in found["models"]] == ["bpe:260", "wordpiece:300"]
    for model in found["models"]:
        assert 0 < model["bits_per_byte"] < 8
        assert model["by_seed"][0] != model["by_seed"][1]
        assert model["bits_per_byte"] == pytest.approx(sum(model["by_seed"]) / 2)
    assert found["noise"] > 0
    assert "differences below" in first[2]
    assert "wordpiece:300 loses some of the text" in first[2]
    assert "bpe:260 loses" not in first[2]


def test_the_tokenizer_of_a_run_is_that_of_its_newest_checkpoint(
    run: Run, data: Path, tmp_path: Path, launch_run: Callable[..., Exit]
) -> None:
    assert launch_run(tmp_path / "run") == Exit.DONE
    code, _, err = run("tokenize", data, "--tokenizer", tmp_path / "run")
    assert code == Exit.DONE, err
    made, ours = ((folder / "tokenizer.json").read_text() for folder in (data / "tokenizer", newest(tmp_path / "run")))
    assert made == ours
    (tmp_path / "empty" / "checkpoints").mkdir(parents=True)
    code, _, err = run("tokenize", data, "--tokenizer", tmp_path / "empty", "--overwrite")
    assert (code, "has no checkpoint yet" in err) == (Exit.USAGE, True)


def newest(path: Path) -> Path:
    return max((path / "checkpoints").glob("step-*"))
