"""Sources, precedence, unions, and the errors as people read them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.errors import Exit
from hornbook.optim.config.clipping_config import NormClip
from hornbook.optim.config.schedules import WSD, Cosine
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import ConfigError, Resolved, resolve


def made(*words: str, target: str | None = None, **environ: str) -> Resolved:
    return resolve(target, words, environ)


def problems(*words: str, target: str | None = None, **environ: str) -> list[tuple[str, str, str, str]]:
    with pytest.raises(ConfigError) as caught:
        resolve(target, words, environ)
    return [(problem.key, problem.text, problem.origin, problem.hint) for problem in caught.value.problems]


def keys(*words: str, target: str | None = None) -> list[str]:
    return [key for key, *_ in problems(*words, target=target)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: str, text: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")
    return path


# --- precedence


@pytest.mark.usefixtures("folder")
def test_a_key_of_any_length_is_compared_with_known_ones_in_no_time() -> None:
    write("long.toml", f'extends = "tiny"\noptim.{"l" * 50_000} = 1\n')
    begun = time.process_time()
    assert problems(target="long.toml")[0][1] == "no such setting"
    assert time.process_time() - begun < 1.5


def test_without_anything_the_defaults() -> None:
    resolved = made()
    assert resolved.recipe == Recipe()
    assert set(resolved.origins.values()) == {"default"}


@pytest.mark.usefixtures("folder")
def test_every_layer_wins_over_the_one_below() -> None:
    write("base.toml", "[optim]\nlr = 1\nbeta1 = 0.1\nbeta2 = 0.1\neps = 1\nclip = 1\nweight_decay = 1\n")
    write("middle.toml", 'extends = "base.toml"\n[optim]\nbeta1 = 0.2\nbeta2 = 0.2\neps = 2\nclip = 2\n')
    write("recipe.toml", 'extends = "./middle.toml"\n[optim]\nbeta2 = 0.3\neps = 3\nclip = 3\n')
    resolved = made("optim.clip=5", target="recipe.toml", HORNBOOK_SET="optim.eps=4 optim.clip=4")
    optim = resolved.recipe.optim
    assert (optim.lr, optim.beta1, optim.beta2, optim.eps, optim.clip) == (1, 0.2, 0.3, 4, NormClip(limit=5))
    assert {key: resolved.origins[f"optim.{key}"] for key in ("lr", "beta1", "beta2", "eps", "clip.limit", "kind")} == {
        "lr": "base.toml:2",
        "beta1": "middle.toml:3",
        "beta2": "recipe.toml:3",
        "eps": "environment HORNBOOK_SET",
        "clip.limit": "command line",
        "kind": "default",
    }


@pytest.mark.usefixtures("folder")
def test_extends_is_relative_to_the_file_that_says_it() -> None:
    write("lab/shared/base.toml", "seed = 5")
    write("lab/mine.toml", 'extends = "shared/base.toml"')
    resolved = made(target="lab/mine.toml")
    assert (resolved.recipe.seed, resolved.origins["seed"]) == (5, "lab/shared/base.toml:1")


@pytest.mark.usefixtures("folder")
def test_extends_names_a_shipped_recipe() -> None:
    write("mine.toml", 'extends = "gpt2-124m"\n[optim]\nlr = 1e-3')
    resolved = made(target="mine.toml")
    assert (resolved.recipe.model.layers, resolved.recipe.optim.lr) == (12, 1e-3)
    assert resolved.origins["model.norm.kind"].startswith("recipes/gpt2-124m.toml:")


@pytest.mark.usefixtures("folder")
def test_layers_that_no_machine_holds_are_judged_without_repeating_the_pattern() -> None:
    layers = ("--model.layers", "5", "--model.first", "[{}]", "--model.pattern", "[{}, {}]")
    ((key, text, *_),) = problems("--model.width", "16Mi", "--model.heads", "1", *layers)
    assert (key, text[:19]) == ("model", "3 of its layers hav")


def test_a_run_directory_is_a_recipe() -> None:
    write("runs/a/recipe.toml", made("seed=9").to_toml())
    assert made(target="runs/a").recipe.seed == 9


def test_the_later_word_wins() -> None:
    assert made("optim.lr=1", "--optim.lr", "2", "--optim.lr=3").recipe.optim.lr == 3


def test_environment_variables() -> None:
    resolved = made(HORNBOOK_SET='optim.lr=1 eval.prompt="two words" seed=3', HORNBOOK__OPTIM__LR="2")
    assert (resolved.recipe.optim.lr, resolved.recipe.eval.prompt, resolved.recipe.seed) == (2, "two words", 3)
    assert resolved.origins["optim.lr"] == "environment HORNBOOK__OPTIM__LR"
    assert made(HORNBOOK__TRAIN__BATCH_TOKENS="32Ki").recipe.train.batch_tokens == 32_768
    assert made(HORNBOOK_SET="data.weights={a = 1, b = 2}").recipe.data.weights == {"a": 1, "b": 2}


@pytest.mark.usefixtures("folder")
def test_alternatives_take_each_other_back() -> None:
    write("base.toml", "[train]\ntokens = 1000")
    train = made("train.epochs=2", target="base.toml").recipe.train
    assert (train.tokens, train.epochs) == (None, 2)
    again = made("train.tokens=5", target="base.toml", HORNBOOK_SET="train.epochs=2").recipe.train
    assert (again.tokens, again.epochs) == (5, None)
    assert keys("train.epochs=2", "train.tokens=5") == ["train.epochs"]


# --- words


@pytest.mark.parametrize(
    "words",
    [
        ["--optim.weight-decay", "0.2"],
        ["--optim.weight_decay=0.2"],
        ["optim.weight_decay=0.2"],
        ["optim.weight-decay=2e-1"],
        ["--optim.weight-decay=.2"],
    ],
)
def test_all_forms_of_a_word_are_equal(words: list[str]) -> None:
    assert made(*words).recipe.optim.weight_decay == 0.2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--train.compile"], True),
        (["--train.compile", "--seed", "3"], True),
        (["--train.compile", "false"], False),
        (["--train.compile", "on"], True),
        (["--train.compile=no"], False),
        (["--no-train.compile"], False),
        (["--train.no-compile"], False),
        (["--train.compile", "--train.no-compile"], False),
    ],
)
def test_booleans(words: list[str], expected: bool) -> None:
    assert made(*words).recipe.train.compile is expected


def test_a_boolean_takes_no_word_that_is_not_its_value() -> None:
    assert keys("--train.compile", "tiny") == ["tiny"]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("train.tokens=1.5M", 1_500_000),
        ("train.tokens=64Ki", 65_536),
        ("train.tokens=2_000", 2000),
        ("train.tokens=none", None),
    ],
)
def test_numbers(word: str, value: int | None) -> None:
    assert made(word).recipe.train.tokens == value


@pytest.mark.parametrize(
    ("word", "prompt"),
    [
        ("eval.prompt=", ""),
        ("eval.prompt=12", "12"),
        ("eval.prompt=a=b", "a=b"),
        ("eval.prompt=[x", "[x"),
        ("eval.prompt=[1]", "[1]"),
        ("eval.prompt=true", "true"),
        ('eval.prompt="quoted \\n"', "quoted \n"),
        ('eval.prompt="half', '"half'),
        ("eval.prompt=none", "none"),
        ("eval.prompt={", "{"),
    ],
)
def test_text_stays_text(word: str, prompt: str) -> None:
    assert made(word).recipe.eval.prompt == prompt


def test_a_negative_number_is_a_value() -> None:
    assert problems("--optim.lr", "-3")[0][:2] == ("optim.lr", "must be more than 0, not -3")


def test_lists_and_named_tables() -> None:
    resolved = made(
        'text.sources.code.paths=["a", "b"]',
        "--text.sources.my-docs.paths",
        "docs",
        "--text.sources.code.text-field",
        "content",
        "data.weights.code=0.3",
        "data.weights.my-docs=7e-1",
        'text.sources."a.b"={paths = ["c"], text_field = "x"}',
    )
    sources = resolved.recipe.text.sources
    assert {name: (source.paths, source.text_field) for name, source in sources.items()} == {
        "code": (["a", "b"], "content"),
        "my-docs": (["docs"], "text"),
        "a.b": (["c"], "x"),
    }
    assert resolved.recipe.data.weights == {"code": 0.3, "my-docs": 0.7}
    assert resolved.origins['text.sources."a.b".paths'] == "command line"


def test_lists_of_tables_are_replaced_whole() -> None:
    recipe = made('text.steps=[{kind="normalize", form="NFKC"}]', "data.stages=[{from_tokens=5}]").recipe
    assert [step.model_dump() for step in recipe.text.steps] == [{"kind": "normalize", "form": "NFKC"}]
    assert recipe.data.stages[0].from_tokens == 5


@pytest.mark.usefixtures("folder")
def test_a_named_entry_can_be_taken_back() -> None:
    write("base.toml", '[text.sources]\na.paths = ["x"]\nb.paths = ["y"]\n[data]\nweights = {a = 1, b = 2}')
    recipe = made("data.weights.a=none", "text.sources.a=none", target="base.toml").recipe
    assert (list(recipe.text.sources), recipe.data.weights) == (["b"], {"b": 2})


# --- unions


@pytest.mark.usefixtures("folder")
def test_another_kind_starts_from_its_own_defaults() -> None:
    write("base.toml", '[optim.schedule]\nkind = "cosine"\nfloor = 0.5\nwarmup = "9 steps"')
    assert made("optim.schedule.kind=wsd", target="base.toml").recipe.optim.schedule == WSD()
    assert made("optim.schedule.kind=wsd", "optim.schedule.floor=0.3").recipe.optim.schedule == WSD(floor=0.3)


@pytest.mark.usefixtures("folder")
def test_the_same_kind_is_edited() -> None:
    write("base.toml", '[optim.schedule]\nkind = "cosine"\nfloor = 0.5\nwarmup = "9 steps"')
    for words in (["optim.schedule.floor=0.2"], ["optim.schedule.kind=cosine", "optim.schedule.floor=0.2"]):
        schedule = made(*words, target="base.toml").recipe.optim.schedule
        assert isinstance(schedule, Cosine)
        assert (schedule.floor, str(schedule.warmup.model_dump())) == (0.2, "9 steps")


def test_editing_an_unnamed_default_kind() -> None:
    assert made("optim.schedule.floor=0.2").recipe.optim.schedule == Cosine(floor=0.2)
    assert made("model.norm.eps=1e-3").recipe.model.norm.kind == "rms"


def test_the_order_of_words_in_one_layer_does_not_matter() -> None:
    words = ["optim.schedule.decay_share=0.4", "optim.schedule.kind=wsd", "optim.schedule.floor=0.1"]
    for order in (words, words[::-1], words[1:] + words[:1]):
        assert made(*order).recipe.optim.schedule == WSD(decay_share=0.4, floor=0.1)


@pytest.mark.parametrize("word", ["optim.schedule=wsd", 'optim.schedule={kind = "wsd"}', "optim.schedule.kind=wsd"])
def test_a_bare_word_names_the_kind(word: str) -> None:
    assert made(word, "optim.schedule.floor=0.3").recipe.optim.schedule == WSD(floor=0.3)
    assert made("optim.schedule.floor=0.3", word).recipe.optim.schedule == WSD(floor=0.3)


@pytest.mark.usefixtures("folder")
def test_origins_of_a_kind_that_is_gone_are_gone() -> None:
    write("base.toml", "[optim.schedule]\nfloor = 0.5")
    origins = made("optim.schedule.kind=wsd", target="base.toml").origins
    assert (origins["optim.schedule.kind"], origins["optim.schedule.floor"]) == ("command line", "default")


@pytest.mark.usefixtures("folder")
def test_a_kind_that_needs_a_value_says_so() -> None:
    write("mine.toml", '\n[text.tokenizer]\nkind = "file"\n')
    assert problems(target="mine.toml") == [("text.tokenizer.path", "is required", "default", "")]
    assert made("text.tokenizer.path=x.json", target="mine.toml").recipe.text.tokenizer.kind == "file"


SOURCE = st.fixed_dictionaries(
    {}, optional={"kind": st.sampled_from(["linear", "cosine", "wsd"]), "floor": st.sampled_from([0.1, 0.2, 0.3])}
)


@given(st.lists(SOURCE, max_size=4))
def test_the_rule_of_unions_over_any_sources(given_sources: list[dict[str, Any]]) -> None:
    """Against the rule as DESIGN states it, applied by hand to one union."""
    from hornbook.settings.merge import Merge
    from hornbook.settings.sources import Given, Source

    trees = [{key: Given(value, "x") for key, value in each.items()} for each in given_sources]
    merge = Merge().add([Source({"optim": {"schedule": tree}}) for tree in trees])
    kind, floor = "cosine", 0.1
    for each in given_sources:
        if each.get("kind", kind) != kind:
            kind, floor = each["kind"], 0.0 if each["kind"] != "cosine" else 0.1
        floor = each.get("floor", floor)
    schedule = Recipe.model_validate(merge.tree).optim.schedule
    assert (schedule.kind, getattr(schedule, "floor", None)) == (kind, floor)


# --- problems


@pytest.mark.usefixtures("folder")
def test_the_text_of_many_problems() -> None:
    write(
        "bad.toml",
        'seed = -1\n\n[model]\nlayers = "twelve"\n  heads = 7\nwidht = 3\n\n[optim.schedule]\nkind = "cosin"\n'
        'warmpu = "3 steps"\n\n[train]\nprecision = "fp8"\ncompile = "maybe"\n',
    )
    with pytest.raises(ConfigError) as caught:
        resolve(
            "bad.toml",
            ["--optim.learning_rate", "1e-3", "train.sequence=4096", "model.norm.bias=true", "data.weights.a=x"],
            {"HORNBOOK__OPTIM__CLIP": "-1"},
        )
    assert caught.value.exit_code == Exit.USAGE
    assert (
        str(caught.value)
        == """\
13 problems in the configuration
  data.weights.a  must be a number, not 'x'  (command line)
  model.heads  width 768 does not divide into 7 heads: change one, or set model.attention.head_dim  (bad.toml:5)
  model.layers  must be an integer (32k, 1.5M and 64Ki are read too), not 'twelve'  (bad.toml:4)
  model.norm.bias  not a setting of kind "rms", but of "layer"  (command line)
      model.norm.kind = "layer" chooses it
  model.widht  no such setting  (bad.toml:6)
      did you mean model.width?
  optim.clip.limit  must be at least 0, not -1  (environment HORNBOOK__OPTIM__CLIP)
  optim.learning_rate  no such setting  (command line)
      did you mean optim.lr?
  optim.schedule.kind  must be "constant", "linear", "cosine", "wsd", "inverse_sqrt", "power", "step", "exponential", \
"polynomial", "cosine_restarts", "cyclic", "one_cycle" or "piecewise", not 'cosin'  (bad.toml:9)
      did you mean cosine?
  optim.schedule.warmpu  no such setting  (bad.toml:10)
      did you mean optim.schedule.warmup?
  seed  must be at least 0, not -1  (bad.toml:1)
  train.compile  must be true or false, not 'maybe'  (bad.toml:14)
  train.precision  must be "auto", "bf16", "bf16-pure", "float8", "fp16" or "fp32", not 'fp8'  (bad.toml:13)
      did you mean fp32?
  train.sequence  4096 is longer than the 2048 positions of model.position.length  (command line)"""
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr", "optim.lr"),
        ("optim.learning_rate", "optim.lr"),
        ("learning-rate", "optim.lr"),
        ("batch_size", "train.batch_tokens"),
        ("model.n_layer", "model.layers"),
        ("train.seq_len", "train.sequence"),
        ("optim.schedule.decay_shar", "optim.schedule.decay_share"),
        ("schedule.kind", "optim.schedule.kind"),
        ("model.mlp.hiden", "model.mlp.hidden"),
        ("checkpoints.every", "checkpoint.every"),
        ("text.tokeniser.vocab", "text.tokenizer.vocab"),
        ("train.tokens_", "train.tokens"),
    ],
)
def test_did_you_mean(word: str, meant: str) -> None:
    ((key, text, origin, hint),) = problems(f"{word}=1")
    assert (key, text, origin) == (word, "no such setting", "command line")
    assert hint.startswith(f"did you mean {meant}"), hint


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("train.tokens=1.5", "must be an integer (32k, 1.5M and 64Ki are read too), not 1.5"),
        ("train.tokens=", "must be an integer (32k, 1.5M and 64Ki are read too), not ''"),
        ("optim.lr=nan", "must be a finite number, not 'nan'"),
        ("optim.lr=0", "must be more than 0, not 0"),
        ("optim.beta1=1", "must be less than 1, not 1"),
        ("parallel.replicas=0", "must be at least 1, not 0"),
        ("optim.schedule.warmup=soon", 'cannot read "soon" as a duration: write "200 steps", "375M tokens" or "1%"'),
        ("text.sources.a.paths=[]", "needs at least 1 items"),
        ('text.sources.a.paths=["x"', "cannot read '[\"x\"' as a list"),
        ('surgery={kind="lora"}', 'must be a list such as [{ kind = "lora" }]'),
        ("data.weights={a=x}", "must be a table, not '{a=x}'"),
        ("eval.prompt=\udcff", "is not UTF-8 text: '\\udcff'"),
        ("text.steps=x", "must be a table, not 'x'"),
        ("train=5", "must be a table, not '5'"),
        ("guard.swaps=optim.clipp=0.3", "'optim.clipp' is no setting"),
        ("guard.swaps=optim.clip", "'optim.clip' is no change"),
    ],
)
def test_texts(word: str, text: str) -> None:
    ((key, said, origin, _),) = problems(word)
    assert (key.removesuffix(".0"), said, origin) == (word.partition("=")[0], text, "command line")


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("span,masked", ["span", "masked"]),
        ("span", ["span"]),
        ("[span, masked]", ["span", "masked"]),
        ('["span", "masked"]', ["span", "masked"]),
        ('"span",masked', ["span", "masked"]),
        ("", []),
    ],
)
def test_a_list_is_written_with_commas_or_as_in_toml(text: str, items: list[str]) -> None:
    assert resolve("tiny", [f"text.tokenizer.objectives={text}"], {}).recipe.text.tokenizer.objectives == items
    assert resolve("tiny", ["--text.tokenizer.objectives", text], {}).recipe.text.tokenizer.objectives == items


def test_commas_inside_of_an_item_are_quoted() -> None:
    paths = resolve("tiny", ['text.sources.a.paths="a, b.txt",c.txt'], {}).recipe.text.sources["a"].paths
    assert paths == ["a, b.txt", "c.txt"]
    steps = resolve("tiny", ['surgery=lora,{kind="freeze", names=["a","b"]}'], {}).recipe.surgery
    assert [step.kind for step in steps] == ["lora", "freeze"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("surgery=[{kind=lora}]", "write 'surgery=[{ kind = \"lora\" }]'"),
        ("data.stages={from_tokens=1,", "write 'data.stages=[{ from_tokens = ... }]'"),
        ('text.sources.a.paths=["x"', 'write \'text.sources.a.paths=["a", "b"]\''),
    ],
)
def test_a_list_that_cannot_be_read_is_shown_how(word: str, hint: str) -> None:
    ((key, text, _, said),) = problems(word)
    assert said == hint
    assert text == f"cannot read {word.partition('=')[2]!r} as a list"
    assert key == word.partition("=")[0]


def test_a_text_of_another_form_is_named() -> None:
    """The form has braces, as what is filled into other messages has."""
    ((key, text, _, _),) = problems('eval.tasks=[{kind = "choices", path = "a.jsonl", digest = "0123"}]')
    assert (key, text) == ("eval.tasks.0.digest", "String should match pattern \"^([0-9a-f]{32})?$\", not '0123'")


@pytest.mark.usefixtures("folder")
def test_lines_inside_lists() -> None:
    write(
        "bad.toml",
        '[[text.steps]]\nkind = "normalize"\nform = "NFX"\n[[text.steps]]\nkind = "near_dedup"\nkepe = 1\n'
        "[data]\nstages = [\n  { from_tokns = 1 },\n  { from_tokens = -2 },\n]\n",
    )
    assert problems(target="bad.toml") == [
        ("data.stages.0.from_tokens", "is required", "bad.toml:9", ""),
        ("data.stages.0.from_tokns", "no such setting", "bad.toml:9", "did you mean from_tokens?"),
        ("data.stages.1.from_tokens", "must be at least 0, not -2", "bad.toml:10", ""),
        ("text.steps.0.form", 'must be "NFC", "NFKC" or "none", not \'NFX\'', "bad.toml:3", "did you mean NFC?"),
        ("text.steps.1.kepe", "no such setting", "bad.toml:6", "did you mean keep?"),
    ]


@pytest.mark.usefixtures("folder")
def test_values_of_the_wrong_type_in_a_file() -> None:
    write(
        "bad.toml", 'name = 5\nseed = true\ntrain = "x"\n[text]\nsources = 3\nsteps = {a = 1}\n[data]\nweights = [1]\n'
    )
    assert problems(target="bad.toml") == [
        ("data.weights", "must be a table, not [1]", "bad.toml:8", ""),
        ("name", "must be text, in quotes in a TOML file, not 5", "bad.toml:1", ""),
        ("seed", "must be a number, not true or false", "bad.toml:2", ""),
        ("text.sources", "must be a table, not 3", "bad.toml:5", ""),
        ("text.steps", 'must be a list such as [{ kind = "normalize" }]', "bad.toml:6", ""),
        ("train", "must be a table, not 'x'", "bad.toml:3", ""),
    ]


@pytest.mark.parametrize("words", [["--optim.lr"], ["--optim.lr", "--seed=3"]])
def test_a_missing_value(words: Sequence[str]) -> None:
    assert problems(*words) == [("optim.lr", "needs a value", "command line", "write --optim.lr VALUE")]


def test_words_that_are_no_settings() -> None:
    text = "not a setting: write --section.key value or section.key=value"
    assert problems("stray") == [("stray", text, "command line", "")]
    assert problems(HORNBOOK_SET="stray") == [
        ("stray", "write key=value in HORNBOOK_SET", "environment HORNBOOK_SET", "")
    ]
    assert problems("=3")[0][0] == "=3"


@pytest.mark.usefixtures("folder")
def test_a_target_that_is_not_there() -> None:
    ((key, text, origin, hint),) = problems(target="tinny")
    assert (key, text) == ("", "there is no recipe tinny: no such file, and no shipped recipe of that name")
    assert (origin, hint) == ("", "did you mean tiny?")
    assert problems(target="zzz.toml")[0][1] == "there is no file zzz.toml"
    assert problems(target="zzz")[0][3] == "`hornbook recipes ls` lists the shipped ones"
    write("mine.toml", '\nextends = "other.toml"')
    assert problems(target="mine.toml")[0][2] == "mine.toml:2"
    Path("empty").mkdir()
    assert "a folder without a recipe.toml" in problems(target="empty")[0][1]


def test_a_circle_of_extends(folder: Path) -> None:
    write("a.toml", 'extends = "b.toml"')
    write("b.toml", 'extends = "./a.toml"')
    ((key, text, origin, _),) = problems(target="a.toml")
    names = [str(folder / name) for name in ("a.toml", "b.toml", "a.toml")]
    assert (key, text) == ("extends", "the recipes extend each other in a circle: " + " -> ".join(names))
    assert origin == "b.toml:1"
    write("self.toml", 'extends = "self.toml"')
    assert keys(target="self.toml") == ["extends"]


@pytest.mark.parametrize(
    ("text", "origin"), [("seed = 1\nname = \n", "bad.toml:2"), ("[a\n", "bad.toml:1"), ("x = 1\nx = 2", "bad.toml:2")]
)
@pytest.mark.usefixtures("folder")
def test_broken_toml(text: str, origin: str) -> None:
    write("bad.toml", text)
    ((_, said, where, _),) = problems(target="bad.toml")
    assert said.startswith("not valid TOML: ")
    assert where == origin


def test_a_file_that_is_not_text(folder: Path) -> None:
    (folder / "bad.toml").write_bytes(b"seed = 1\n\xff\xfe")
    assert problems(target="bad.toml")[0][1] == "bad.toml is not UTF-8 text (byte 9)"
    (folder / "marked.toml").write_bytes(b"\xef\xbb\xbfseed = 4\n")
    assert made(target="marked.toml").recipe.seed == 4


@pytest.mark.usefixtures("folder")
def test_nesting_without_end() -> None:
    write("bad.toml", "seed = " + "[" * 5000 + "]" * 5000)
    assert problems(target="bad.toml") == [("", "nested too deeply for a recipe", "bad.toml", "")]


def test_a_name_too_long_for_any_file() -> None:
    assert problems(target="x" * 5000 + ".toml")[0][1].endswith(".toml: File name too long")


@pytest.mark.usefixtures("folder")
def test_extends_must_be_text() -> None:
    write("bad.toml", "extends = 3")
    assert problems(target="bad.toml")[0][:3] == (
        "extends",
        "must be the name of a shipped recipe or a path, as text",
        "bad.toml:1",
    )


@pytest.mark.usefixtures("folder")
def test_problems_of_all_sources_come_at_once() -> None:
    write("base.toml", "[train]\ntokns = 1")
    write("mine.toml", 'extends = "base.toml"\nsed = 1')
    origins = [origin for *_, origin, _ in problems("x.y=1", target="mine.toml", HORNBOOK_SET="z=1")]
    assert origins == ["mine.toml:2", "base.toml:2", "command line", "environment HORNBOOK_SET"]


def test_a_faulty_section_is_not_compared_with_others() -> None:
    assert keys("model.position.kind=x", "train.sequence=4096") == ["model.position.kind"]
    assert keys("model.heads=0", "model.width=770") == ["model.heads"]


def test_a_section_that_may_be_absent_is_written_none(tmp_path: Path) -> None:
    """So that what `config show` prints reads back."""
    absent = resolve("tiny", [], {})
    assert absent.recipe.text.labels is None
    (tmp_path / "x.toml").write_text(absent.to_toml(), encoding="utf-8")
    assert resolve(str(tmp_path / "x.toml"), [], {}).recipe == absent.recipe
    given = resolve(str(tmp_path / "x.toml"), ["text.labels=span", "text.labels.question=q"], {}).recipe.text.labels
    assert given is not None
    assert given.kind == "span"
    assert resolve("tiny", ["text.labels=span", "text.labels=none"], {}).recipe.text.labels is None


@pytest.mark.parametrize(
    ("batch", "sequence", "remedy"),
    [("32k", 1024, "32Ki (32768)"), ("1M", 1024, "1Mi (1048576)"), ("1000", 256, "1Ki (1024)"), ("1300", 256, "1280")],
)
def test_a_batch_of_no_whole_rows_names_one_that_has_them(batch: str, sequence: int, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(None, (f"train.batch_tokens={batch}", f"train.sequence={sequence}"), environ={})
    assert f"is not a multiple of train.sequence ({sequence}): take {remedy}" in str(caught.value)
