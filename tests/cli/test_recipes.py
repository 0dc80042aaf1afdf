import json
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.recipes import short
from hornbook.errors import Exit
from hornbook.recipe_files import shipped_recipes
from hornbook.resolve import resolve


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "ls"]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(shipped_recipes())
    assert any("124M parameters" in line and "10B tokens" in line for line in lines)
    assert main(["recipes", "ls", "--json"]) == Exit.DONE
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert (found["gpt2-124m"]["parameters"], found["llama-1b"]["parameters"]) == (124_439_808, 1_235_814_400)
    assert all(row["about"] and row["tokens"] for row in found.values())


def test_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["recipes", "show", "llama-1b", "--model.head.tied", "false"]) == Exit.DONE
    text = capsys.readouterr().out
    assert text.startswith("# 1,498,482,688 parameters: embedding 262,668,288, ")
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    assert resolve(str(tmp_path / "x.toml"), [], {}).recipe == resolve("llama-1b", ["model.head.tied=no"], {}).recipe
    assert main(["recipes", "show", "tiny", "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == sum(found["parameters"].values())
    assert main(["recipes", "show"]) == Exit.USAGE


def test_copy(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipes", "copy", "tiny", "-n"]) == Exit.DONE
    assert list(tmp_path.iterdir()) == []
    assert main(["recipes", "copy", "tiny"]) == Exit.DONE
    assert Path("tiny.toml").read_text(encoding="utf-8") == shipped_recipes()["tiny"]
    Path("folder").mkdir()
    assert main(["recipes", "copy", "tiny", "folder"]) == main(["recipes", "copy", "tiny", "my.toml"]) == Exit.DONE
    assert (
        resolve("folder/tiny.toml", [], {}).recipe
        == resolve("my.toml", [], {}).recipe
        == resolve("tiny", [], {}).recipe
    )
    assert capsys.readouterr().err == ""
    assert main(["recipes", "copy", "tiny", "my.toml"]) == Exit.USAGE
    assert main(["recipes", "copy", "tinny"]) == Exit.USAGE
    assert capsys.readouterr().err == (
        "error my.toml is there already: name another file\n"
        f"error there is no shipped recipe tinny; there are {', '.join(shipped_recipes())}\n"
    )


def test_copy_to_where_nobody_can_write(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs a file system that takes no files, as /proc")
    assert main(["recipes", "copy", "tiny", "/proc/self/recipe.toml"]) != Exit.DONE
    assert "/proc/self/recipe.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (999, "999"), (4096, "4.1k"), (124_439_808, "124M"), (1_235_814_400, "1.24B"), (10**10, "10B")],
)
def test_short_numbers(number: int | None, text: str) -> None:
    assert short(number) == text
