"""A recipe written out reads back as the same recipe; settings explain themselves."""

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.errors import UsageError
from hornbook.settings.recipe_files import shipped_recipes
from hornbook.settings.resolve import Resolved, resolve
from hornbook.settings.schema import settings
from hornbook.settings.show import explain_text, explanation, json_schema, toml_value
from tests.settings.json_schema import problems

CHANGED = [
    "train.epochs=2.5",
    "optim.schedule=wsd",
    "optim.schedule.warmup=12.3456789%",
    'text.sources.my-docs.paths=["a\\"b", "c d"]',
    'text.sources."x.y".paths=["\\u2603"]',
    "data.weights.my-docs=0.1",
    "data.stages=[{from_tokens=5, weights={code=1e-7}}]",
    'eval.prompt="line\\nnext\\u007f # no comment"',
    "model.position=learned",
    "model.position.length=32768",
    "optim.lr=1e-5",
]


tiny = functools.cache(lambda: resolve("tiny", [], {}))
whole_schema = functools.cache(json_schema)


def again(resolved: Resolved, folder: Path) -> Resolved:
    path = folder / "again.toml"
    path.write_text(resolved.to_toml(), encoding="utf-8")
    return resolve(str(path), [], {})


@pytest.mark.parametrize("name", [None, *shipped_recipes()])
@pytest.mark.parametrize("words", [[], CHANGED], ids=["as it is", "changed"])
def test_a_written_recipe_resolves_to_the_same(name: str | None, words: list[str], tmp_path: Path) -> None:
    resolved = resolve(name, words, {})
    read = again(resolved, tmp_path)
    assert read.recipe == resolved.recipe
    assert set(read.origins) == set(resolved.origins)


def test_what_a_list_holds_is_written_briefly_and_read_back(tmp_path: Path) -> None:
    pattern = "[{ attention = { kind = 'latent', query_rank = 'none', kv_rank = 32 } }, {}]"
    resolved = resolve(None, [f"model.pattern={pattern}"], {})
    assert (
        'pattern = [{ attention = { kind = "latent", query_rank = "none", kv_rank = 32 } }, {}]' in resolved.to_toml()
    )
    (latent, _) = again(resolved, tmp_path).recipe.model.pattern
    assert (latent.attention.query_rank, latent.attention.kv_rank, latent.mlp) == (None, 32, None)


@given(
    prompt=st.text("ab\"'\\#=[]{}\n\t\r\x00\x7f\x85\u2603\U0001f600 ", max_size=12),
    lr=st.floats(1e-300, 1e300),
    seed=st.integers(0, 2**63 - 1),
    name=st.text("ab.-_ \"'\\\n\u2603", min_size=1, max_size=6),
)
def test_any_value_reads_back(prompt: str, lr: float, seed: int, name: str, tmp_path_factory: Any) -> None:
    resolved = resolve("tiny", [], {})
    recipe = resolved.recipe.model_copy(
        update={
            "seed": seed,
            "eval": resolved.recipe.eval.model_copy(update={"prompt": prompt}),
            "optim": resolved.recipe.optim.model_copy(update={"lr": lr}),
            "data": resolved.recipe.data.model_copy(update={"weights": {name: 0.5}}),
        }
    )
    assert again(Resolved(recipe, {}), tmp_path_factory.mktemp("read")).recipe == recipe


def test_every_value_has_its_origin() -> None:
    lines = resolve("tiny", ["optim.lr=1"], {"HORNBOOK_SET": "seed=2"}).to_toml().splitlines()
    values = [line for line in lines if "=" in line]
    assert all("  # " in line or "} # " in line or "] # " in line for line in values)
    assert "lr = 1.0                                        # command line" in lines
    assert "seed = 2                                        # environment HORNBOOK_SET" in lines
    (order,) = [line for line in lines if line.startswith("order = ")]
    assert order.endswith("# default")
    (sequence,) = [line for line in lines if line.startswith("sequence = 256")]  # parallel.sequence is another
    number = int(sequence.rpartition("# recipes/tiny.toml:")[2])
    assert shipped_recipes()["tiny"].splitlines()[number - 1].startswith("sequence = 256")


@given(
    st.recursive(
        st.integers() | st.booleans() | st.floats(allow_nan=False) | st.text('a"\\\n\x01\x7f\u2603', max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab "', max_size=3), inner, max_size=3),
        max_leaves=6,
    )
)
def test_values_are_toml(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value


def explain(resolved: Resolved, key: str) -> str:
    return explain_text(explanation(resolved.recipe, resolved.origins, key))


def test_explain() -> None:
    resolved = resolve("tiny", ["optim.schedule.floor=0.2"], {})
    assert (
        explain(resolved, "optim.schedule.floor")
        == """\
optim.schedule.floor
  where    optim.schedule.kind = "cosine"
  about    Factor at the end of the run.
  type     number
  range    >= 0, <= 1
  default  0.1
  value    0.2  (command line)"""
    )
    assert explain(resolved, "optim.schedule.decay-share").splitlines()[-1] == (
        "  value    not in use: the recipe has chosen another kind"
    )


def test_explain_named_entries() -> None:
    resolved = resolve(None, ["text.sources.my-docs.paths=a", "data.weights.my-docs=2"], {})
    assert "value    2.0  (command line)" in explain(resolved, "data.weights.my-docs")
    assert 'value    ["a"]  (command line)' in explain(resolved, "text.sources.my-docs.paths")
    assert "value" not in explain(resolved, "data.weights.other")


@pytest.mark.parametrize("key", list(settings()))
def test_every_setting_is_documented(key: str) -> None:
    resolved = tiny()
    known = explanation(resolved.recipe, resolved.origins, key.replace("*", "x"))
    for variant in known["variants"]:
        assert key.endswith(".kind") or len(variant["doc"]) > 5, key
        assert variant["type"]
    assert sum(variant["in_use"] for variant in known["variants"]) <= 1 or key.endswith(".kind")


def test_explain_what_an_item_of_a_list_may_say() -> None:
    resolved = resolve(None, [], {})
    kept = explain(resolved, "text.steps.gopher_quality.min_words").splitlines()
    assert kept[0] == "text.steps.gopher_quality.min_words"
    assert kept[-1] == "  default  50"
    assert "type     list of [string, string]" in explain(resolved, "text.steps.swap.pairs")
    with pytest.raises(UsageError, match=r"its settings are text\.steps\.gopher_quality\.name, "):
        explain(resolved, "text.steps.gopher_quality")


def test_explain_what_is_not_there() -> None:
    resolved = resolve(None, [], {})
    with pytest.raises(UsageError, match=r"there is no setting optim\.learning_rate: did you mean optim\.lr\?"):
        explain(resolved, "optim.learning_rate")
    with pytest.raises(UsageError, match=r"optim\.schedule is a section; its settings are optim\.schedule\.kind, "):
        explain(resolved, "optim.schedule")


def test_the_schema_speaks_toml() -> None:
    schema = json_schema()
    train = schema["$defs"]["TrainConfig"]["properties"]
    assert train["tokens"]["anyOf"][0]["minimum"] == 1
    assert train["tokens"]["anyOf"][1] == {"const": "none"}
    assert "null" not in str(schema)
    assert schema["$defs"]["Duration"]["type"] == ["string", "number"]
    assert schema["properties"]["extends"]["type"] == "string"
    assert schema["additionalProperties"] is False


def refused(text: str) -> list[str]:
    schema = whole_schema()
    return sorted(problems(tomllib.loads(text), schema, schema))


def test_every_shipped_recipe_is_valid_by_the_schema() -> None:
    schema = json_schema()
    for name, text in shipped_recipes().items():
        assert not list(problems(tomllib.loads(text), schema, schema)), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[optim]\nlrr = 1", [".optim anyOf"]),
        ("[optim]\nlr = true", [".optim anyOf"]),
        ("[optim]\nlr = -1", [".optim anyOf"]),
        ("optim = 'adamm'", [".optim anyOf"]),
        ("[optim]\nkind = 'sgd'\nbeta1 = 0.9", [".optim anyOf"]),
        ("[optim]\nbeta1 = 0.9\nmomentum = 0.9", [".optim anyOf"]),
        ("[model]\nlayer = 4", [".model.layer enum"]),
        ("[model]\nlayers = 1.5", [".model.layers anyOf"]),
        ("[model.mlp]\nkind = 'my.parts'\nanything = 1", [".model.mlp anyOf"]),
        ("[[text.steps]]\nwindow = 50", [".text.steps[] required"]),
        ("[[text.steps]]\nkind = 'span_dedup'\nwindows = 50", [".text.steps[] anyOf"]),
        ("extends = 1\nother = 1", [".extends type", ".other enum"]),
    ],
)
def test_the_schema_refuses_what_no_parent_can_make_right(text: str, expected: list[str]) -> None:
    assert refused(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "[optim]\nbeta1 = 0.9",
        "[optim]\nmomentum = 0.9",
        "optim = 'muon'",
        "[optim.schedule]\nwarmup = '1%'",
        "[optim]\nclip = 0.5\nschedule = 'wsd'",
        "[text.sources.mine]\ntext_field = 'body'",
        "[train.loss.anchor]\nweight = 2",
        "[model.mlp]\nkind = 'my.parts:Gate'\nanything = 1",
        "[[text.steps]]\nkind = 'span_dedup'\nwindow = '50'",
        "[train]\ntokens = 'none'\nbatch_tokens = '32k'",
    ],
)
def test_the_schema_knows_that_a_parent_may_say_the_rest(text: str) -> None:
    assert refused(text) == []


def test_a_setting_is_explained_once_for_each_condition() -> None:
    """`model.norm.kind` was told once per kind of norm."""
    for key, variants in settings().items():
        assert len(variants) == len(set(map(repr, variants))), key
    assert len(settings()["model.norm.kind"]) == 1
    assert "optim.schedule.kind" in settings()
