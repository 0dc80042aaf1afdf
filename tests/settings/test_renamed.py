"""Former names of settings and values keep working."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.settings import renamed
from hornbook.settings import resolve as resolving
from hornbook.settings.recipe import Recipe
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.renamed import mend, present_path, renamed_settings
from hornbook.settings.resolve import ConfigError, resolve
from hornbook.settings.show import find_setting

TABLE = {
    "train.rows": "micro_batch",
    "optimizer": "optim",
    "optim.warmup_schedule": "schedule",
    "checkpoint.keep_best": "best",
    "data.stages.*.start": "from_tokens",
    "text.sources.*.files": "paths",
    "data.order": {"random": "shuffled"},
    "optim.schedule.kind": {"trapezoid": "wsd"},
    "data.stages.*.weights": {},
}
FORMER = """\
# a recipe of before
name = "x"  # rows = 3

[train]
rows = 4 # of a microbatch
[optimizer]
lr = 1e-3
[ optimizer . warmup_schedule ]
kind = 'trapezoid'   # stays, and falls
[data]
"order"="random"
stages = [
  # the first
  { start = 0, weights = { rows = 1 } },
]
[[text.steps]]
kind = "normalize"
[text.sources."a.b"]
files = ["files"]
"""
PRESENT = """\
# a recipe of before
name = "x"  # rows = 3

[train]
micro_batch = 4 # of a microbatch
[optim]
lr = 1e-3
[ optim . schedule ]
kind = "wsd"   # stays, and falls
[data]
"order"="shuffled"
stages = [
  # the first
  { from_tokens = 0, weights = { rows = 1 } },
]
[[text.steps]]
kind = "normalize"
[text.sources."a.b"]
paths = ["files"]
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another table of renamed settings."""
    monkeypatch.setattr(renamed, "renamed_settings", lambda: TABLE)
    monkeypatch.setattr(renamed, "entry_of", renamed.entry_of.__wrapped__)  # remembers nothing


@pytest.fixture(autouse=True)
def _told_nothing_yet() -> None:
    resolving._say.cache_clear()


def recipe_of(tmp_path: Path, text: str, *words: str, environ: dict[str, str] | None = None) -> Recipe:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return resolve(str(path), words, environ or {}).recipe


@pytest.mark.usefixtures("table")
def test_a_recipe_of_former_names_gives_the_same_and_a_line_for_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert recipe_of(tmp_path, FORMER) == recipe_of(tmp_path, PRESENT)
    assert caplog.messages == [
        f"{text} ({tmp_path}/recipe.toml:{line})"
        for text, line in [
            ("train.rows is now train.micro_batch", 5),
            ("optimizer is now optim", 7),
            ("optim.warmup_schedule is now optim.schedule", 9),
            ('optim.schedule.kind: "trapezoid" is now "wsd"', 9),
            ('data.order: "random" is now "shuffled"', 11),
            ("data.stages.0.start is now data.stages.0.from_tokens", 14),
            ('text.sources."a.b".files is now text.sources."a.b".paths', 19),
        ]
    ]


@pytest.mark.usefixtures("table")
def test_the_environment_and_the_command_line_know_former_names(caplog: pytest.LogCaptureFixture) -> None:
    words = [
        "--train.rows",
        "4",
        "--no-checkpoint.keep-best",
        "optim.schedule=trapezoid",
        "data.stages=[{start=0,weights={a=1}}]",
    ]
    found = resolve("tiny", words, {"HORNBOOK__DATA__ORDER": "random"}).recipe
    new = [
        "train.micro_batch=4",
        "checkpoint.best=false",
        "optim.schedule=wsd",
        "data.stages=[{from_tokens=0,weights={a=1}}]",
    ]
    assert found == resolve("tiny", new, {}).recipe
    assert caplog.messages == [
        'data.order: "random" is now "shuffled" (environment HORNBOOK__DATA__ORDER)',
        "train.rows is now train.micro_batch (command line)",
        "checkpoint.keep-best is now checkpoint.best (command line)",
        'optim.schedule.kind: "trapezoid" is now "wsd" (command line)',
        "data.stages.0.start is now data.stages.0.from_tokens (command line)",
    ]


@pytest.mark.usefixtures("table")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[train]\nrows = 4\nmicro_batch = 4\n", "train.rows  is now micro_batch, which is given too"),
        ("[train]\nrowz = 4\n", "train.rowz  no such setting"),
        ("[model]\nrows = 4\n", "model.rows  no such setting"),
        ('[data]\norder = "randomly"\n', 'data.order  must be "shuffled", "sequential" or "replacement"'),
        ("[train]\nrows = 0\n", "train.micro_batch  must be at least 1, not 0"),
    ],
)
def test_what_is_no_former_name_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_of(tmp_path, text)
    assert problem in str(caught.value)


@pytest.mark.usefixtures("table")
def test_a_later_source_overrides_a_former_name(tmp_path: Path) -> None:
    assert recipe_of(tmp_path, "[train]\nrows = 4\n", "train.micro_batch=2").train.micro_batch == 2
    assert recipe_of(tmp_path, "[train]\nmicro_batch = 4\n", "train.rows=2").train.micro_batch == 2


@pytest.mark.usefixtures("table")
def test_a_mended_recipe_keeps_its_layout() -> None:
    mended, changes = mend(FORMER)
    assert mended == PRESENT
    assert [line for line, _ in changes] == [5, 6, 8, 8, 9, 11, 14, 19]
    assert mend(FORMER.replace("\n", "\r\n"))[0] == PRESENT.replace("\n", "\r\n")
    assert mend(PRESENT) == (PRESENT, [])
    both = "[train]\nrows = 4\nmicro_batch = 4\n"
    assert mend(both) == (both, [])


@pytest.mark.parametrize("name", ["tiny", "gpt2-124m", "bert-base"])
def test_shipped_recipes_use_present_names(name: str) -> None:
    assert mend(shipped_recipes()[name]) == (shipped_recipes()[name], [])


def test_the_table_leads_from_no_setting_to_a_setting() -> None:
    """Every entry names a present setting, and none of `text` and `data.objective`.

    These are in digests that data folders are compared by (`config_key`, the key of tokens/index.json, cached shards of
    fill-in-the-middle): whoever renames there must have the digests accept the former spelling too.
    """
    for key, entry in renamed_settings().items():
        assert not key.startswith(("text.", "data.objective."))
        path = tuple(key.split("."))
        if isinstance(entry, str):
            with pytest.raises(UsageError, match="no setting"):
                find_setting(path)
            path = (*path[:-1], entry)
            assert present_path(path) == path
        assert find_setting(path)


def test_latent_attention_of_before(tmp_path: Path) -> None:
    text = (
        '[model.attention]\nkind = "latent"\nNAME = 32\n[[model.pattern]]\nattention = { kind = "latent", NAME = 16 }\n'
    )
    model = recipe_of(tmp_path, text.replace("NAME", "plain_dim")).model
    assert model == recipe_of(tmp_path, text.replace("NAME", "nope_dim")).model
    assert model.pattern[0].attention == model.attention.model_copy(update={"nope_dim": 16})
    stored: dict[str, Any] = tomllib.loads(text.replace("NAME", "plain_dim"))["model"]
    assert ModelConfig.model_validate(stored) == ModelConfig.model_validate_json(
        ModelConfig(attention=model.attention, pattern=model.pattern).model_dump_json().replace("nope_dim", "plain_dim")
    )
    assert "plain_dim" in stored["attention"]  # nothing of the caller's is changed
