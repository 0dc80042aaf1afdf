"""`hornbook plan` as a person uses it: the table, `--apply`, devices of one's own, wrong input."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.cli.plan.table import LETTERS, colored
from hornbook.errors import Exit
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import resolve


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_table_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = planned(capsys, "llama-1b", "--cluster", "8xH100", "--top", "3")
    assert code == Exit.DONE
    assert re.match(r"Fits: \d+\.\d hours and \$\d+ on 8 x H100 SXM\n", out)
    rows = [line for line in out.splitlines() if line.startswith(("> ddp", "  zero", "x "))]
    assert len(rows) == 4  # three that fit, and one that would be faster
    assert rows[-1].startswith("x ")
    assert "OOM" in rows[-1]
    assert rows[0].startswith("> ddp x 8 ")
    assert "ddp x 8 is listed first: zero-3 x 8 is less than 3 % faster and more complex" in out
    assert re.search(
        r"takes 2\.\d\d s but does not fit: \d+\.\d GiB \(activations \d+\.\d\); \d+\.\d GiB are usable", out
    )
    assert "Price: $3.00 per device-hour (2026-05" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["llama-1b", "--cluster", "4090"],
            "Does not fit on 1 x RTX 4090: 23.1 GiB needed, 22.1 usable; it fits with "
            "--parallel.offload.kind=cpu --parallel.offload.optimizer or on 2xRTX-4090\n",
        ),
        (["llama-7b", "--cluster", "4090"], "it fits on 8xRTX-4090\n"),
        (["llama-1b", "--cluster", "L40S"], "Fits: "),
        (["llama-1b", "--cluster", "H100", "--train.epochs", "1"], "tokens per second, 1 epoch; --data DATA"),
    ],
)
def test_the_answer_is_the_first_line(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    code, out, _ = planned(capsys, *words)
    first = out.splitlines(keepends=True)[0]
    assert said in first
    assert (code == Exit.DONE) == first.startswith("Fits")
    if "it fits with" in said:  # what it says is true
        setting = said.partition("it fits with ")[2].partition(" or on")[0].split()
        assert planned(capsys, *words, *setting)[1].startswith("Fits: ")


@pytest.mark.parametrize(
    ("words", "tokens", "epochs"),
    [
        (["llama-7b", 'surgery=["nf4","lora"]'], None, 1),
        (["llama-7b", "--data.objective.kind", "answer"], None, 3),
        (["llama-1b", "--data.objective.kind", "dpo"], None, 1),
        (["llama-1b", "--data.objective.kind", "dpo", "--train.tokens", "5M"], 5_000_000, None),
        (["sft-tiny"], 200_000, None),
        (["dpo-tiny"], 200_000, None),
        (["llama-1b"], 25_000_000_000, None),
    ],
)
def test_fine_tuning_has_a_length_of_its_own(words: list[str], tokens: int | None, epochs: int | None) -> None:
    """That of the recipe that it extends is of a pretraining."""
    train = resolve(words[0], words[1:], environ={}).recipe.train
    assert (train.tokens, train.epochs) == (tokens, epochs)


def test_the_length_of_epochs_is_that_of_the_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "llama-7b"\n[data.objective]\nkind = "answer"\n')
    (tmp_path / "tokens").mkdir()
    shards = [{"split": "train", "tokens": 7_000_000}, {"split": "validation", "tokens": 9}]
    (tmp_path / "tokens" / "index.json").write_text(json.dumps({"shards": shards}))
    words = str(mine), "--cluster", "8xH100"
    assert "3 epochs; --data DATA" in planned(capsys, *words)[1].splitlines()[0]
    for data in (["--data", str(tmp_path)], ["--data.path", str(tmp_path)]):
        found = json.loads(planned(capsys, *words, *data, "--json")[1])
        assert (found["name"], found["tokens"], found["epochs"]) == ("mine", 21_000_000, 3)
    for more, said in (
        (["llama-7b", "--cluster", "8xH100", "--data", str(tmp_path)], "--train.epochs N"),
        ([*words, "--data", "absent"], "absent/tokens/index.json"),
    ):
        code, _, err = planned(capsys, *more)
        assert code == Exit.USAGE
        assert said in " ".join(err.split())


def test_one_device_gets_the_rows_and_recomputation_that_fit_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A recipe's own stay on this machine, which trains it as it is, and where the command line sets them."""

    def best(*words: str) -> tuple[int, str, float]:
        found = json.loads(planned(capsys, "llama-1b", *words, "--json")[1])["layouts"][0]
        return found["micro_batch"], found["recompute"], sum(found["step"].values())

    own = best("--cluster", "H100", "--train.micro_batch", "2", "--parallel.recompute", "block")
    chosen = best("--cluster", "H100")
    assert own[:2] == (2, "block") == best("--cluster", "this")[:2]
    assert chosen[0] > 2
    assert chosen[1] == "none"
    assert chosen[2] < 0.85 * own[2]


def test_bars_have_colours_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(capsys, "llama-1b", "--cluster", "8xH100")[1].rstrip("\n")
    shown = colored(text)
    assert len(shown.plain) == len(text)
    bar = next(line for line in text.splitlines() if line.startswith("> ddp")).split()[6].rstrip(".")
    assert set(bar) <= set(LETTERS.values())
    assert "█" * len(bar) in shown.plain
    assert len({str(span.style) for span in shown.spans}) >= 5


def test_a_terminal_gets_colour_and_no_color_takes_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "█" in planned(capsys, "llama-1b", "--cluster", "8xH100")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "█" not in planned(capsys, "llama-1b", "--cluster", "8xH100")[1]


@pytest.mark.parametrize(("width", "no_color"), [(80, "1"), (80, ""), (120, "")])
@pytest.mark.parametrize("more", [["--explain"], ["--scale", "64..128"]])
def test_lines_end_at_the_edge_of_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, no_color: str, more: list[str]
) -> None:
    """Long names of layouts are folded, sentences too; a table that is wider than the terminal becomes two."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("COLUMNS", str(width))
    out = planned(capsys, "llama-65b", "--cluster", "4x8xH100", "--top", "3", *more)[1]
    lines = [re.sub("\x1b[^m]*m", "", line) for line in out.splitlines()]
    assert max(map(len, lines)) <= width
    assert any("pipeline" in line for line in lines)
    legend = {word for line in lines for word in line.split()} & set(LETTERS)
    assert legend == set(LETTERS) or more[0] == "--scale"


# ---- --apply


def test_the_layout_is_written_into_the_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(shipped_recipes()["llama-7b"])
    words = str(file), "--cluster", "2x8xA100"
    code, out, _ = planned(capsys, *words, "--apply", str(file), "--json")
    best = json.loads(out)["layouts"][0]
    assert code == Exit.DONE
    recipe = resolve(str(file), environ={}).recipe
    assert recipe.parallel.model_dump(mode="json") == best["parallel"]
    assert recipe.train.micro_batch == best["micro_batch"]
    before, after = shipped_recipes()["llama-7b"].splitlines(), file.read_text().splitlines()
    assert [line for line in before if line.startswith("#")] == [line for line in after if line.startswith("#")]
    assert len(set(before) - set(after)) <= 2  # micro_batch, recompute
    again = json.loads(planned(capsys, *words, "--json")[1])
    assert [each["name"] for each in again["layouts"]] == [best["name"]]
    assert list(tmp_path.iterdir()) == [file]


def test_a_new_file_extends_the_recipe(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    assert planned(capsys, "llama-65b", "--cluster", "8x8xH100", "--apply", str(file))[0] == Exit.DONE
    recipe = resolve(str(file), environ={}).recipe
    assert recipe.parallel.world == 64
    assert recipe.model == resolve("llama-65b", environ={}).recipe.model


def test_a_folder_is_made_and_settings_of_the_command_line_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "a[1]" / "new.toml"
    code, _, err = planned(capsys, "llama-1b", "--cluster", "8xH100", "--model.layers", "3", "--apply", str(file))
    assert code == Exit.DONE
    assert "model.layers" not in file.read_text()
    said = "".join(err.split())
    assert f"written:{file}" in said
    assert "withoutmodel.layers=3" in said


@pytest.mark.parametrize(
    ("recipe", "cluster", "words"),
    [
        ("llama-1b", "8xH100", ["--float8"]),
        ("llama-1b", "8xH100", ["--train.micro_batch", "4", "--parallel.recompute", "block"]),
        ("llama-65b", "4x8xH100", ["--search", "--parallel.pipeline", "4"]),
        ("t5-v1.1-3b", "2x8xA100", []),
        ("mixtral-8x7b", "8x8xH100", []),
    ],
)
def test_what_was_applied_is_planned_again_as_it_was(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, recipe: str, cluster: str, words: list[str]
) -> None:
    """The file alone has all of the layout, with the precision that was chosen."""
    file = tmp_path / "new.toml"
    code, out, err = planned(capsys, recipe, "--cluster", cluster, *words, "--apply", str(file), "--json")
    assert (code, err) == (Exit.DONE, "")
    best = json.loads(out)["layouts"][0]
    (again,) = json.loads(planned(capsys, str(file), "--cluster", cluster, "--json")[1])["layouts"]
    assert again | {"pareto": best["pareto"]} == best


def test_what_the_command_line_sets_of_a_layout_stays(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def layouts(*words: str) -> list[dict[str, Any]]:
        return json.loads(planned(capsys, *words, "--top", "20", "--json")[1])["layouts"]

    words = "--cluster", "8xH100", "--train.micro_batch", "4", "--parallel.recompute", "block"
    found = layouts("llama-1b", *words)
    assert len(found) > 5
    assert {(each["micro_batch"], each["recompute"]) for each in found} == {(4, "block")}

    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "llama-1b"\nparallel.data = 4\nparallel.tensor = 2\n')
    (own,) = layouts(str(mine), "--cluster", "8xH100")
    assert (own["parallel"]["data"], own["parallel"]["tensor"]) == (4, 2)
    pinned = layouts(str(mine), "--cluster", "8xH100", "--search", "--parallel.pipeline", "2")
    assert {each["parallel"]["pipeline"]["stages"] for each in pinned} == {2}
    assert {each["parallel"]["data"] for each in pinned} >= {2, 4}
    assert len({each["parallel"]["pipeline"]["schedule"] for each in pinned}) > 1
    pipeline = "--parallel.pipeline.stages=2", "--parallel.pipeline.schedule=1f1b"
    named = layouts("llama-1b", "--cluster", "8xH100", *pipeline)
    assert {each["parallel"]["pipeline"]["schedule"] for each in named} == {"1f1b"}
    free = layouts(str(mine), "--cluster", "8xH100", "--search")
    assert free == layouts("llama-1b", "--cluster", "8xH100")


def test_scaling_keeps_what_the_command_line_sets(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--cluster", "8xH100", "--scale", "8..16", "--parallel.tensor", "2", "--json"
    curves = json.loads(planned(capsys, "llama-1b", *words)[1])["curves"]
    assert {point["layout"]["parallel"]["tensor"] for curve in curves for point in curve["points"]} == {2}


def test_ends_of_lines_stay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    before = b'extends = "llama-1b"\r\n\r\n[train]\r\n# few\r\nmicro_batch = 1 # row\r\n'
    file.write_bytes(before)
    assert planned(capsys, str(file), "--cluster", "8xH100", "--apply", str(file))[0] == Exit.DONE
    after = file.read_bytes()
    head, _, tail = after.partition(b" # row\r\n")
    assert head.rpartition(b" = ")[0] == before.rpartition(b" = ")[0]
    assert b"[parallel]\r\ndata = 8\r\n" in tail
    assert after.count(b"\n") == after.count(b"\r\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("llama-65b", "--cluster", "8xH100"), Exit.DOES_NOT_FIT, "nothing was written"),
        (("llama-7b", "--cluster", "8xH100"), Exit.USAGE, "is not the recipe llama-7b"),
    ],
)
def test_nothing_is_written_where_it_does_not_belong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...], code: Exit, text: str
) -> None:
    file = tmp_path / "other.toml"
    file.write_text('name = "other"\n')
    found, _, err = planned(capsys, *words, "--apply", str(file))
    assert (found, file.read_text()) == (code, 'name = "other"\n')
    assert text in err


def test_a_form_that_cannot_be_changed_is_left_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, text = tmp_path / "mine.toml", 'extends = "llama-7b"\nparallel.bucket_mb = 50\n'
    file.write_text(text)
    code, _, err = planned(capsys, str(file), "--cluster", "8xH100", "--apply", str(file))
    assert (code, file.read_text()) == (Exit.USAGE, text)
    assert "name a new file" in err
    assert list(tmp_path.iterdir()) == [file]


# ---- Devices of one's own

DEVICE = """[[device]]
name = "Foo 9"
bf16 = 500.0
fp32 = 40.0
memory = 96.0
bandwidth = 3000.0
node = 4
domain = 4
link = 300.0
network = 50.0
hour = 2.5

[[device]]
name = "H100 SXM"
hour = 1.0
"""


def test_devices_and_prices_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(DEVICE)
    found = json.loads(planned(capsys, "llama-1b", "--cluster", "2x4xfoo9", "--hardware", str(file), "--json")[1])
    assert (found["cluster"]["count"], found["cluster"]["node"], found["price"]) == (8, 4, 2.5)
    assert found["layouts"][0]["fits"]
    own = json.loads(planned(capsys, "llama-1b", "--cluster", "8xH100", "--hardware", str(file), "--json")[1])
    theirs = json.loads(planned(capsys, "llama-1b", "--cluster", "8xH100", "--json")[1])
    assert own["layouts"][0]["step_seconds"] == theirs["layouts"][0]["step_seconds"]
    assert (own["price"], theirs["price"]) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("device = 3", "[[device]]"),
        ('[[device]]\nname = "Foo"', "memory: Field required"),
        ('[[device]]\nname = "Foo"\nmemory = -1\nfp32 = 1\nbandwidth = 1', "memory: Input should be greater than 0"),
        ('[[device]]\nname = "H100 SXM"\nmemroy = 5', "memroy: Extra inputs are not permitted"),
        ("[[device", "--hardware"),
    ],
)
def test_a_wrong_file_is_named_with_the_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    code, _, err = planned(capsys, "tiny", "--cluster", "Foo", "--hardware", str(file))
    assert code == Exit.USAGE
    assert str(file) in err
    assert said in err


# ---- Wrong input


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("tiny", "--cluster", "8xH900"), Exit.USAGE, "--hardware FILE"),
        (("tiny", "--cluster", "0xH100"), Exit.USAGE, "no devices"),
        (("tiny", "--cluster=-8xH100"), Exit.USAGE, "write 8xH100"),
        (
            ("llama-1b", "--cluster", "8xT4", "--train.sequence", "1Mi", "--model.position.length", "1Mi"),
            Exit.USAGE,
            "tensor ranks of one machine (up to 4)",
        ),
        (("llama-1b", "--cluster", "8xH100", "--search", "--parallel.tensor", "16"), Exit.USAGE, "tensor is 16"),
        (("tiny", "--cluster", "8xH100", "--top", "0"), Exit.USAGE, "--top"),
        (("tiny", "--cluster", "8xH100", "--price", "-1"), Exit.USAGE, "--price"),
        (("llama-7b", "--cluster", "8xA100", "--train.precision", "float8"), Exit.USAGE, "A100 has no products in fp8"),
        (
            ("tiny", "--cluster", "this", "--train.precision", "float8", "--train.float8.emulate", "true"),
            Exit.USAGE,
            "or fp32, or another device; products that train.float8.emulate makes take at least the time of fp32",
        ),
        (("llama-7b", "--cluster", "8xA100", "--float8"), Exit.USAGE, "take --train.precision bf16 or fp16 or fp32"),
        (
            ("llama-7b", "--cluster", "8xV100", "--train.precision", "bf16"),
            Exit.USAGE,
            "V100 SXM2 has no products in bf16",
        ),
        (
            ("llama-7b", "--cluster", "41xH100"),
            Exit.USAGE,
            "no layout of llama-7b fills 41",
        ),
        (("llama-7b", "--cluster", "8xH100", "--parallel.tensor", "5"), Exit.USAGE, "32 heads"),
        (("--budget", "3d", "--apply", "new.toml", "--all"), Exit.USAGE, "no use for --apply and --all"),
        (("tiny", "--scale", "1..2", "--verify"), Exit.USAGE, "--scale has no use for --verify"),
        (("tiny", "--scale", "1..2", "--price", "0"), Exit.USAGE, "--scale has no use for --price"),
        (("--budget", "1e40", "--cluster", "8xH100"), Exit.USAGE, "more than 1e+28"),
        (("tiny", "--serve", "1T"), Exit.USAGE, "give --budget too"),
        (("gpt3-175b", "--cluster", "8xH100"), Exit.DOES_NOT_FIT, "it fits on"),
        (("gpt3-175b", "--cluster", "2xT4"), Exit.DOES_NOT_FIT, "it fits on"),
    ],
)
def test_wrong_input(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: Exit, said: str) -> None:
    found, out, err = planned(capsys, *words)
    assert said in (out if code == Exit.DOES_NOT_FIT else err)
    assert found == code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("gpt2-124m", "--cluster", "8xH100", "--model.vocab", "50257"), "--model.vocab 50304"),
        (("gpt2-1.5b", "--cluster", "8xH100"), "25 heads do not divide among 2 tensor ranks"),
        (("llama-7b", "--cluster", "6xH100"), "rows of a step do not divide among 6 devices"),
        (("llama-7b", "--cluster", "8xH100", "--train.precision", "fp16"), "--train.precision bf16"),
        (("llama-1b", "--cluster", "8xV100"), "fp32 at 16 TFLOP/s and fp16 at 125: --train.precision fp16"),
        (("llama-1b", "--cluster", "8xA100", "--train.precision", "fp32"), "--train.precision bf16"),
        (("tiny", "--train.epochs", "9"), "9 epochs"),
        (("llama-1b", "--cluster", "2x8xH100", "--parallel.tensor", "16"), "tensor ranks cross machines"),
        (
            ("llama-7b", "--cluster", "8xH100", "--parallel.pipeline", "8", "--train.batch_tokens", "16Ki"),
            "8 microbatches for 8 stages",
        ),
    ],
)
def test_warnings_have_a_remedy(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(planned(capsys, *words)[2].split())


@pytest.mark.parametrize(
    "words",
    [
        ("gpt2-124m", "--cluster", "24xH100", "--parallel.tensor", "3"),  # a layout of its own
        ("gpt3-175b", "--cluster", "16x8xL40S"),  # the best of all has tensor ranks
        ("llama-1b", "--cluster", "8xH100"),
    ],
)
def test_nothing_is_advised_that_the_plan_rules_out(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    said = planned(capsys, *words)[2]
    assert "data ranks need less" not in said
    assert "smaller micro-batch" not in said
    assert "--parallel.tensor" not in words or ("heads do not divide" not in said and "rows of a step" not in said)


def test_the_answer_to_a_budget_says_whose_size_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--budget", "3h", "--cluster", "H100"
    assert "1.24 B parameters (this model): 16 layers" in planned(capsys, "llama-1b", *words)[1]
    assert "parameters (besiroglu): " in planned(capsys, *words)[1]


def test_what_is_not_a_file_or_does_not_fit_says_what_to_write(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, err = planned(capsys, "tiny", "--hardware", str(tmp_path / "H1000"))
    assert code == 2
    assert "No such file" in err
    assert "[[device]]" in err
    assert "Errno" not in err
    code, out, _ = planned(capsys, "gpt3-175b", "--cluster", "1xL40S", "--scale", "1..2")
    assert code == 4
    assert "no point fits L40S: --cluster" in out


def test_a_budget_for_one_device_is_spent_in_its_best_layout(capsys: pytest.CaptureFixture[str]) -> None:
    """As the table of layouts says: the recipe's own rows and recomputation take a quarter longer."""
    found = json.loads(planned(capsys, "llama-1b", "--cluster", "H100", "--budget", "1d", "--json")[1])
    plain = json.loads(planned(capsys, "llama-1b", "--cluster", "H100", "--json")[1])["layouts"][0]
    assert found["main"]["tokens"] == pytest.approx(86400 * plain["tokens_per_second"], rel=0.02)
