import json
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.settings.recipes import short
from hornbook.errors import Exit
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve


def test_ls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "ls"]) == Exit.DONE
    printed = capsys.readouterr().out
    families = [[line.split()[0] for line in part.splitlines() if line[0] != " "] for part in printed.split("\n\n")[1:]]
    assert sorted(name for family in families for name in family) == sorted(shipped_recipes())
    assert families[0][0] == "tiny"
    assert all(len({name.partition("-")[0] for name in family}) == 1 for family in families)
    assert ["opt-125m", "opt-350m", "opt-1.3b"] in [family[:3] for family in families]  # by size
    assert max(len(line) for line in printed.splitlines()) <= 100
    assert any(line.split()[:3] == ["gpt2-124m", "124M", "10B"] for line in printed.splitlines())


def test_ls_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "ls", "--json"]) == Exit.DONE
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert set(found) == set(shipped_recipes())
    assert (found["gpt2-124m"]["parameters"], found["llama-1b"]["parameters"]) == (124_439_808, 1_235_814_400)
    assert all(row["about"] and row["tokens"] for row in found.values())


def test_a_preset_says_in_one_line_what_it_is() -> None:
    recipes = shipped_recipes().items()
    own = {name: text.splitlines()[0] for name, text in recipes if 'extends = "tiny' not in text and name != "tiny"}
    older = ("gpt2-124m", "llama-1b")
    assert [name for name, line in own.items() if len(line) > 64 and name not in older] == []


def test_show(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["recipes", "show", "llama-1b", "--model.head.tied", "false"]) == Exit.DONE
    text = capsys.readouterr().out
    assert text.startswith("# 1,498,482,688 parameters: embedding 262,668,288, ")
    (tmp_path / "x.toml").write_text(text, encoding="utf-8")
    assert resolve(str(tmp_path / "x.toml"), [], {}).recipe == resolve("llama-1b", ["model.head.tied=no"], {}).recipe
    assert main(["recipes", "show", "tiny", "--json"]) == Exit.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == sum(found["parameters"].values())
    assert found["state_bytes"] == {"weights": 4 * found["total"], "gradients": 4 * found["total"]} | {
        "moments": 8 * found["total"]
    }
    flops = found["flops_per_token"]["token"]
    assert flops["total"] == 6 * flops["weights"] + flops["attention"]
    assert main(["recipes", "show"]) == Exit.USAGE


def test_show_names_what_a_token_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "show", "gpt2-124m"]) == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    header = [line for line in lines if line.startswith("#")]
    assert max(map(len, header)) <= 100
    text = " ".join(line.lstrip("# ") for line in header)
    assert "798M FLOPs per token, forward and backward: 741M in matrices (6 x 124M), 56.7M in attention" in text
    assert "rows of 1,024; over all pairs, as PaLM counts: 113M" in text
    assert "1.99 GB of state: weights 0.498 GB, gradients 0.498 GB, moments 0.996 GB (float32)" in text
    words = ["--parallel.data", "8", "--parallel.shard", "everything"]
    assert main(["recipes", "show", "t5-v1.1-11b", *words]) == Exit.DONE
    text = capsys.readouterr().out
    assert "FLOPs per source token" in text
    assert "FLOPs per target token" in text
    assert "# 22.3 GB of state in each process: weights 5.57 GB, " in text


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
        "error my.toml already exists: name another file\n"
        "error there is no recipe tinny: did you mean tiny or tiny-t5?\n"
    )
    assert main(["recipes", "copy", "gpt2"]) == Exit.USAGE
    hint = "did you mean gpt2-1.5b or gpt2-124m or gpt2-355m?"
    assert capsys.readouterr().err == f"error there is no recipe gpt2: {hint}\n"
    assert main(["recipes", "copy", "zzz"]) == Exit.USAGE
    assert capsys.readouterr().err == "error there is no recipe zzz: `hornbook recipes ls` lists them\n"


def test_copy_to_where_nobody_can_write(capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs a file system that takes no files, as /proc")
    assert main(["recipes", "copy", "tiny", "/proc/self/recipe.toml"]) != Exit.DONE
    assert "/proc/self/recipe.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (999, "999"),
        (4096, "4.1k"),
        (124_439_808, "124M"),
        (1_235_814_400, "1.24B"),
        (10**10, "10B"),
        (1.4e12, "1.4T"),
    ],
)
def test_short_numbers(number: int | None, text: str) -> None:
    assert short(number) == text
