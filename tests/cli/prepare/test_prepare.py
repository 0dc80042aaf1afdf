"""hornbook prepare: what people and scripts see."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.prepare.prepare import is_recipe, name_sources
from hornbook.errors import Exit

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str | Path) -> tuple[int, str, str]:
        code = main(["prepare", *map(str, words)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    for name, text in (("a.txt", "one"), ("b.txt", "two"), ("c.md", "one"), ("d.txt", " ")):
        (folder / name).write_text(text)
    (folder / "rows.jsonl").write_text('{"text": "three"}\nbroken\n')
    return folder


def test_people_see_the_funnel_on_stderr(run: Run, notes: Path, tmp_path: Path):
    code, out, err = run(notes, "--out", tmp_path / "data")
    assert (code, out) == (Exit.DONE, "")
    assert "note: text.validation 0.01 holds out none of 3 documents, so nothing can be evaluated" in err
    assert "\x1b" not in err
    assert "\r" not in err
    words = err.split()
    for word in ("notes", "read", "kept", "duplicate", "empty", "damaged:"):
        assert word in words
    assert "1 skipped rows are listed in" in err
    assert f"hornbook tokenize {tmp_path / 'data'}" in err


def test_scripts_get_one_json_object(run: Run, notes: Path, tmp_path: Path):
    code, out, _ = run(notes, "--out", tmp_path / "data", "--json")
    assert code == Exit.DONE
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["data"] == str(tmp_path / "data")
    total = found["total"]
    assert (total["in"]["rows"], total["kept"]["rows"], total["files"]) == (6, 3, 5)
    dropped = sum(tally["rows"] for tally in total["dropped"].values())
    quarantined = sum(tally["rows"] for tally in total["quarantined"].values())
    assert total["in"]["rows"] == total["kept"]["rows"] + dropped + quarantined
    assert found["sources"]["notes"] == total
    assert run(notes, "--out", tmp_path / "data", "--json")[1] == out


def test_a_source_of_which_nothing_is_kept_is_named(run: Run, tmp_path: Path):
    """With the first row that could not be read and the remedy; tables without a text with rows, bytes and columns."""
    (tmp_path / "good.txt").write_text("a text")
    (tmp_path / "old.txt").write_bytes(b"caf\xe9")
    (tmp_path / "large.csv").write_text("key,body\n" + "a7,one text\n" * 1000)
    paths = [tmp_path / name for name in ("good.txt", "old.txt", "large.csv")]
    code, _, err = run(*paths, "--out", tmp_path / "data")
    assert code == Exit.DONE
    words = " ".join(err.split())
    assert "warning: source old keeps nothing" in words
    assert "old.txt:1: invalid UTF-8: byte 3 is 0xe9; for another encoding: --encoding NAME" in words
    assert "large.csv: 1,000 rows, 12.0 kB: missing text: no column 'text' (columns: 'key, body')" in words
    assert run(paths[1], "--encoding", "latin1", "--out", tmp_path / "other")[0] == Exit.DONE


def test_files_that_are_not_read_are_counted(run: Run, tmp_path: Path):
    folder = tmp_path / "mixed"
    (folder / ".git").mkdir(parents=True)
    (folder / "a.txt").write_text("a text")
    for name in ("a.epub", "b.epub", "c.odt"):
        (folder / name).write_text("x")
    for words in (("-n",), ()):
        _, out, err = run(folder, "--out", tmp_path / "data", *words)
        assert "mixed: not read: 2 .epub, 1 .odt, 1 hidden (name a file" in " ".join((out + err).split())
    found = json.loads(run(folder, "--out", tmp_path / "other", "-n", "--json")[1])
    assert found["sources"]["mixed"]["passed_over"] == {"hidden": 1, ".epub": 2, ".odt": 1}


def test_dry_run_writes_nothing(run: Run, notes: Path, tmp_path: Path):
    code, out, err = run(notes, "--out", tmp_path / "data", "-n")
    assert code == Exit.DONE
    assert "notes: 5 files" in out
    assert not (tmp_path / "data").exists()
    found = json.loads(run(notes, "--out", tmp_path / "data", "-n", "--json")[1])
    assert found["sources"]["notes"]["files"] == 5
    assert not err
    assert not (tmp_path / "data").exists()


def test_settings_in_any_place(run: Run, notes: Path, tmp_path: Path):
    steps = 'text.steps=[{kind="drop_empty"}]'
    code, out, _ = run("--text.validation", "0.5", notes, "--out", tmp_path / "data", steps, "--json")
    assert code == Exit.DONE
    assert set(json.loads(out)["total"]["dropped"]) == {"empty"}
    assert json.loads((tmp_path / "data" / "manifest.json").read_text())["text"]["validation"] == 0.5


def test_a_recipe_names_sources_and_settings(run: Run, notes: Path, tmp_path: Path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f'extends = "tiny"\n[text.sources.prose]\npaths = ["{notes}"]\n')
    code, out, _ = run(recipe, "--out", tmp_path / "data", "--json")
    assert code == Exit.DONE
    assert set(json.loads(out)["sources"]) == {"prose"}
    stored = json.loads((tmp_path / "data" / "manifest.json").read_text())["text"]
    assert stored["tokenizer"]["vocab"] == 4096


def test_a_recipe_with_paths_uses_its_settings_on_them(run: Run, notes: Path, tmp_path: Path):
    code, out, _ = run("tiny", notes / "a.txt", notes / "rows.jsonl", "--out", tmp_path / "data", "--json")
    assert code == Exit.DONE
    assert list(json.loads(out)["sources"]) == ["a", "rows"]


def test_strict_is_exit_code_3_and_names_the_row(run: Run, notes: Path, tmp_path: Path):
    code, out, err = run(notes, "--out", tmp_path / "data", "--strict", "--json")
    assert (code, out) == (Exit.INTEGRITY, "")
    assert f"{notes}/rows.jsonl:2: invalid JSON" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to prepare"),
        (["tiny"], "recipe tiny has no text.sources"),
        (["nowhere"], "nowhere does not exist"),
        (["nowhere.toml"], "nowhere.toml"),
        (["empty"], "empty holds no file"),
    ],
)
def test_usage_errors_are_exit_code_2(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    code, out, err = run(*words, "--out", "data")
    assert (code, out) == (Exit.USAGE, "")
    assert message in err
    assert not Path("data").exists()


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_column_of_another_name_is_found_at_the_second_try(run: Run, tmp_path: Path, ending: str):
    rows = {"csv": "key,body\na7,one text\n", "jsonl": '{"key": "a7", "body": "one text"}\n'}
    path, data = tmp_path / f"t.{ending}", tmp_path / "data"
    path.write_text(rows[ending])
    code, _, err = run(path, "--out", data)
    assert code == Exit.INTEGRITY
    for words in ("key, body", "--text-field NAME", str(data / "quarantine.jsonl")):
        assert words in err
    code, _, err = run(path, "--out", data, "--text-field", "body", "--id-field", "key")
    assert code == Exit.DONE, err
    stored = json.loads((data / "manifest.json").read_text())["text"]["sources"]["t"]
    assert (stored["text_field"], stored["id_field"]) == ("body", "key")
    assert [path.name for path in data.glob("un*")] == []


def test_rows_without_the_column_name_the_option(run: Run, tmp_path: Path):
    (tmp_path / "t.jsonl").write_text('{"text": "one"}\n{"body": "two"}\n')
    assert "--text-field NAME" in run(tmp_path / "t.jsonl", "--out", tmp_path / "data")[2]


def test_a_text_field_is_of_paths(run: Run, tmp_path: Path):
    code, _, err = run("tiny", "--out", tmp_path / "data", "--text-field", "body")
    assert (code, "text.sources.NAME.text_field" in err) == (Exit.USAGE, True)


def test_settings_of_a_source_that_is_a_path(run: Run, tmp_path: Path):
    (tmp_path / "a.b.csv").write_text("body\none text\n")
    words = ('text.sources."a.b".text_field=body', tmp_path / "a.b.csv")
    assert run(*words, "--out", tmp_path / "data")[0] == Exit.DONE


def test_out_is_required(run: Run, notes: Path):
    code, _, err = run(notes)
    assert code == Exit.USAGE
    assert "--out" in err


def test_another_configuration_needs_overwrite(run: Run, notes: Path, tmp_path: Path):
    assert run(notes, "--out", tmp_path / "data")[0] == Exit.DONE
    words = (notes, "--out", tmp_path / "data", "text.max_document_bytes=4096")
    code, _, err = run(*words)
    assert (code, "--overwrite" in err) == (Exit.USAGE, True)
    assert run(*words, "--overwrite")[0] == Exit.DONE


def test_which_words_are_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert is_recipe("tiny")
    assert is_recipe("x.toml")
    assert not is_recipe("unknown")
    Path("tiny").mkdir()
    assert not is_recipe("tiny")
    Path("tiny/recipe.toml").write_text("")
    assert is_recipe("tiny")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("books", "books"),
        ("data/books/", "books"),
        ("books.jsonl.gz", "books"),
        ("linux-doc-6.1.jsonl.zst", "linux-doc-6.1"),
        ("/home/me/my books/", "my-books"),
        ("books/**/*.txt", "books"),
        ("s3://bucket/web", "web"),
        ("*.txt", "text"),
        ("..", "text"),
        (".", "text"),
    ],
)
def test_names_of_sources(path: str, name: str):
    assert name_sources([path]) == {name: path}


def test_names_that_are_taken_are_numbered():
    assert name_sources(["a/x.txt", "b/x.md", "c/x"]) == {"x": "a/x.txt", "x-2": "b/x.md", "x-3": "c/x"}
