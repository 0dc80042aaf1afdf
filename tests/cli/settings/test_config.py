import json
import os
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit
from hornbook.settings.resolve import resolve


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]):
    def call(*words: str) -> tuple[int, str, str]:
        code = main(["config", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


def test_show_is_a_recipe_that_gives_the_same(run, tmp_path: Path) -> None:
    code, text, _ = run("show", "tiny", "--optim.lr", "1e-3", "--no-checkpoint.best")
    assert code == Exit.DONE
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    again = resolve(str(tmp_path / "x.toml"), [], {}).recipe
    assert again == resolve("tiny", ["optim.lr=1e-3", "checkpoint.best=false"], {}).recipe
    assert run("show", str(tmp_path / "x.toml"))[0] == Exit.DONE


def test_show_as_json(run) -> None:
    code, text, _ = run("show", "seed=5", "--json")
    found = json.loads(text)
    assert (code, found["recipe"]["seed"], found["origins"]["seed"]) == (Exit.DONE, 5, "command line")
    assert set(found) == {"recipe", "origins"}


def test_explain(run) -> None:
    code, text, _ = run("explain", "optim.lr")
    assert (code, text) == (
        Exit.DONE,
        'optim.lr\n  where    optim.kind = "adamw"\n'
        "  about    Peak learning rate.\n  type     number\n  range    > 0\n  default  0.0003\n"
        "  value    0.0003  (default)\n",
    )
    assert "value    0.0006  (recipes/gpt2-124m.toml:" in run("explain", "optim.lr", "gpt2-124m")[1]
    assert "value    0.5  (command line)" in run("explain", "optim.lr", "--optim.lr", "0.5")[1]
    assert json.loads(run("explain", "optim.lr", "tiny", "--json")[1])["value"] == 0.0025


def test_explain_what_is_not_there(run) -> None:
    code, out, err = run("explain", "optim.learning_rate")
    assert (code, out) == (Exit.USAGE, "")
    assert err == "error there is no setting optim.learning_rate: did you mean optim.lr?\n"
    assert run("explain", "seed=3")[0] == Exit.USAGE


def test_schema(run) -> None:
    code, text, _ = run("schema")
    schema = json.loads(text)
    assert (code, schema["title"], "extends" in schema["properties"]) == (Exit.DONE, "Recipe", True)


def test_check(run) -> None:
    code, text, err = run("check", "tiny")
    assert (code, err) == (Exit.DONE, "")
    assert text.startswith("tiny is valid; ")
    assert json.loads(run("check", "tiny", "--json")[1])["ok"] is True
    assert run("check")[0] == Exit.USAGE


def test_check_tells_all_problems(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.toml").write_text("[train]\ntokns = 1\nsequence = 1\n", encoding="utf-8")
    code, out, err = run("check", "bad.toml")
    assert (code, out) == (Exit.USAGE, "")
    assert err == (
        "error 2 problems in the configuration\n"
        "  train.sequence  must be at least 2, not 1  (bad.toml:3)\n"
        "  train.tokns  no such setting  (bad.toml:2)\n"
        "      did you mean train.tokens?\n"
    )
    code, out, _ = run("check", "bad.toml", "--json")
    found = json.loads(out)
    assert (code, found["ok"], [problem["key"] for problem in found["problems"]]) == (
        Exit.USAGE,
        False,
        ["train.sequence", "train.tokns"],
    )


def test_mend_rewrites_former_names(run, tmp_path: Path) -> None:
    former = '[model]\r\nattention = { kind = "latent", plain_dim = 64 } # dims\r\n'
    path, link = tmp_path / "mine[1].toml", tmp_path / "link.toml"
    path.write_bytes(b"\xef\xbb\xbf" + former.encode())
    path.chmod(0o640)
    link.symlink_to(path)
    code, text, err = run("check", str(link))
    assert (code, err) == (Exit.DONE, "")  # the log says it
    code, text, err = run("check", str(link), "--mend")
    assert (code, text.split(" is valid")[0]) == (Exit.DONE, str(link))
    assert err == f"{path}:2  model.attention.plain_dim is now model.attention.nope_dim\n"
    assert path.read_bytes() == b"\xef\xbb\xbf" + former.replace("plain_dim", "nope_dim").encode()
    assert (link.is_symlink(), path.stat().st_mode & 0o777) == (True, 0o640)
    code, text, err = run("check", str(link), "--mend", "--json")
    assert (code, json.loads(text)["mended"], err) == (Exit.DONE, [], "")


@pytest.mark.parametrize("text", ["a = ", "\xff", "[model]\nplane_dim = 3\n"])
def test_mend_leaves_what_it_cannot_mend(run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode("latin-1"))
    code, _, err = run("check", str(path), "--mend")
    assert (code, path.read_bytes()) == (Exit.USAGE, text.encode("latin-1"))
    assert "bad.toml" in err


def test_mend_is_for_files(run, tmp_path: Path) -> None:
    for target in ("tiny", str(tmp_path)):
        code, _, err = run("check", target, "--mend")
        assert (code, err) == (Exit.USAGE, f"error --mend rewrites a recipe file, and {target} is not a file\n")


def test_the_environment_is_a_source(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORNBOOK_SET", "seed=77")
    assert "seed = 77                                       # environment HORNBOOK_SET" in run("show", "tiny")[1]


def test_a_recipe_whose_name_is_not_utf8(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff.toml")
    Path(name).write_text("seed = 5\n", encoding="utf-8")
    code, text, _ = run("show", name)
    assert code == Exit.DONE
    assert "# \\udcff.toml:1" in text
