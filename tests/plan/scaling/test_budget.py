"""From budgets to sizes and tokens: what is read, what contradicts itself, and that a budget is spent."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hornbook.cli.main import main
from hornbook.errors import Exit, UsageError
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import plan_run
from hornbook.plan.scaling.advice import good_batch, suggestions
from hornbook.plan.scaling.budget import BudgetPlan, Question, TextSource, plan_budget
from hornbook.plan.scaling.budget_words import Budget, parse_budgets, seconds_of
from hornbook.plan.scaling.laws import published_laws
from hornbook.plan.scaling.shape import count_as, shaped
from hornbook.plan.search.plan_result import Plan
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

VOCAB = 16384


@cache
def base() -> Recipe:
    return resolve(None, []).recipe


def ask(words: list[str], cluster: str = "H100", **more: Any) -> BudgetPlan:
    devices = parse_cluster(cluster)
    question = Question(budget=parse_budgets(words), cluster=devices, price=3.0, **more)

    def planner(recipe: Recipe, *, remedy: bool) -> Plan:
        return plan_run(recipe, devices, remedy=remedy)

    return plan_budget(question, base(), planner, published_laws(), fixed=False)


def ask_of(recipe: str, words: list[str], **more: Any) -> BudgetPlan:
    """The same of a recipe's model on an H100."""
    own, devices = resolve(recipe, []).recipe, parse_cluster("H100")
    any_plan = plan_run(own, devices)
    question = Question(budget=parse_budgets(words), cluster=devices, **more)
    return plan_budget(question, own, lambda *_, **__: any_plan, published_laws(), fixed=True)


# ---- Words


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("$500", Budget(dollars=500)),
        ("$1.5k", Budget(dollars=1500)),
        (" $ 20 ", Budget(dollars=20)),
        ("3d", Budget(seconds=3 * 86400)),
        ("12h", Budget(seconds=12 * 3600)),
        ("90min", Budget(seconds=5400)),
        ("0.5w", Budget(seconds=302400)),
        ("1e19", Budget(operations=1e19)),
        ("2.5E+20 FLOPs", Budget(operations=2.5e20)),
        ("1e27", Budget(operations=1e27)),
        ("2PFd", Budget(operations=1.728e20)),
    ],
)
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert parse_budgets([text]) == budget


@pytest.mark.parametrize(
    "text", ["", "0", "$0", "-3d", "$-5", "3y", "3m", "500", "nan", "inf", "1e999", "d", "$", "3d4h"]
)
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--budget .*write dollars"):
        parse_budgets([text])


def test_two_budgets_of_a_kind_contradict_each_other() -> None:
    assert parse_budgets(["$500", "3d", "1e19"]) == Budget(dollars=500, seconds=259200, operations=1e19)
    with pytest.raises(UsageError, match="two budgets of time"):
        parse_budgets(["3d", "12h"])


def test_the_tighter_of_time_and_money_counts() -> None:
    cluster = parse_cluster("8xH100")
    assert seconds_of(Budget(dollars=24), cluster, 3.0) == (3600.0, [])
    assert seconds_of(Budget(dollars=24, seconds=7200), cluster, 3.0) == (3600.0, ["the money runs out first"])
    assert seconds_of(Budget(dollars=24, seconds=60), cluster, 3.0) == (60.0, ["the time runs out first"])
    assert seconds_of(Budget(operations=1e19), cluster, None) == (None, [])
    with pytest.raises(UsageError, match="H100 SXM has no price; --price"):
        seconds_of(Budget(dollars=24), cluster, None)


# ---- Shapes and rules


@pytest.mark.parametrize("counts", ["all", "without embeddings"])
@pytest.mark.parametrize("parameters", [1e7, 1.3e8, 1.5e9, 7e9, 7e10, 1e12])
def test_a_shape_has_the_parameters_and_the_proportions(parameters: float, counts: Any) -> None:
    model = shaped(base(), parameters, counts).model
    assert count_as(model, VOCAB, counts) == pytest.approx(parameters, rel=0.08)
    assert 60 <= model.width / model.layers <= 200
    assert model.width % model.heads == 0
    assert model.width / model.heads in (64, 128)
    if parameters >= 1e9:
        assert model.heads % 4 == 0
        assert model.layers % 2 == 0


def test_counts_of_a_shape() -> None:
    model = shaped(base(), 1e9).model
    assert count_as(model, VOCAB, "all") - count_as(model, VOCAB, "without embeddings") == VOCAB * model.width


def test_rules_are_those_of_their_papers() -> None:
    """At 1B parameters and 100B tokens, each computed here from its equation."""
    said = {(each.what, each.name): each.value for each in suggestions(1e9, 1e11)}
    assert said["learning rate", "Step Law"] == pytest.approx(1.79 * 1e9**-0.713 * 1e11**0.307)
    assert said["batch", "Step Law"] == pytest.approx(0.58 * 1e11**0.571)
    assert said["learning rate", "DeepSeek"] == pytest.approx(0.3118 * 6e20**-0.125)
    assert said["batch", "DeepSeek"] == pytest.approx(0.292 * 6e20**0.3271)
    loss = ((6.4e13 / 1e9) ** (0.076 / 0.103) + 1.8e13 / 1e11) ** 0.103
    assert said["critical batch", "Kaplan"] == pytest.approx(2e8 / loss ** (1 / 0.21))


def test_a_batch_is_a_power_of_two_of_rows_for_all_ranks() -> None:
    batch = good_batch(1e9, 2e10, 1024, 1)
    said = [each.value for each in suggestions(1e9, 2e10) if each.what == "batch"]
    assert min(said) / 2 <= batch <= max(said)
    assert math.log2(batch / 1024).is_integer()
    assert good_batch(1e6, 1e7, 1024, 500) == 512 * 1024


# ---- Plans


def test_operations_are_spent_by_each_law() -> None:
    """70B parameters and 1.4T tokens, among others, for the operations of Chinchilla."""
    devices = parse_cluster("H100")
    any_plan = plan_run(base(), devices)
    question = Question(budget=Budget(operations=5.88e23), cluster=devices)
    found = plan_budget(question, base(), lambda *_, **__: any_plan, published_laws(), fixed=False)
    assert [each.law.name for each in found.choices] == [law.name for law in published_laws()]
    for each in found.choices:
        assert each.operations == pytest.approx(5.88e23, rel=1e-9)
        assert each.counted == pytest.approx(each.law.best_size(5.88e23), rel=0.08)
    rule = next(each for each in found.choices if each.law.name == "rule-of-20")
    assert (rule.parameters, rule.tokens) == (pytest.approx(70e9, rel=0.03), pytest.approx(1.4e12, rel=0.03))
    assert found.petaflops_days == pytest.approx(5.88e23 / 8.64e19)
    assert found.main.law.name == "besiroglu"


def test_money_is_spent_by_each_law() -> None:
    found = ask(["$30"])
    assert found.seconds == 36000
    for each in found.choices:
        assert each.dollars == pytest.approx(30)
        assert each.seconds == pytest.approx(36000)
        assert abs(math.log(each.law.best_size(each.operations) / each.counted)) < 0.12
    assert found.main.low is not None
    assert found.main.high is not None
    assert found.main.low < found.main.high
    assert found.main.low <= (found.main.loss or 0) <= found.main.high
    assert any("the laws differ" in text for text in found.warnings)


def test_more_money_buys_a_lower_loss() -> None:
    losses = [ask([f"${dollars}"]).main.loss for dollars in (10, 100, 1000)]
    assert losses == sorted(losses, reverse=True)  # pyright: ignore[reportArgumentType]


def test_operations_beyond_the_time_are_refused() -> None:
    with pytest.raises(UsageError, match=r"1e\+22 operations take .* d on 1 x H100 SXM.*allows 24\.0 h: "):
        ask(["1e22", "1d"])
    assert ask(["1e18", "1d"]).main.seconds < 86400


def test_the_operations_that_a_refusal_names_fit_the_time() -> None:
    """Two digits of them, rounded up, were refused again with the same advice."""
    with pytest.raises(UsageError) as refused:
        ask_of("gpt2-124m", ["1e22", "1d"])
    named = str(refused.value).split()[-2]
    assert ask_of("gpt2-124m", [named, "1d"]).main.seconds > 0.9 * 86400


def test_a_budget_of_a_few_steps_is_refused() -> None:
    with pytest.raises(UsageError, match="less than 100 steps"):
        ask(["0.001s"])


def test_little_text_is_read_several_times() -> None:
    text = TextSource(tokens=1e8, retention=0.25, bytes_per_token=16.0)
    found, free = ask(["1e19"], unique=1e8, text=text), ask(["1e19"])
    (repeated,), (new,) = ([c for c in f.choices if c.law.name == "muennighoff"] for f in (found, free))
    assert repeated.parameters < new.parameters or repeated.tokens != new.tokens
    assert (repeated.loss or 0) > (new.loss or 0) + 0.05
    assert (found.main.loss or 0) > (free.main.loss or 0) + 0.05
    assert found.text_bytes == pytest.approx(16 * found.main.tokens)
    assert any("passes over the text: beyond 4" in text for text in found.warnings)


def test_small_budgets_are_told_that_rules_are_of_larger_ones() -> None:
    assert any("measure yours" in text for text in ask(["1e16"]).warnings)
    assert not any("measure yours" in text for text in ask(["1e18"]).warnings)


def test_a_model_to_serve_much() -> None:
    found = ask(["1e19"], serve=1e12)
    assert found.served is not None
    assert found.served.parameters < found.main.parameters
    assert ask(["1e19"]).served is None


def test_a_model_to_serve_has_the_loss_of_the_one_that_was_asked_for() -> None:
    """It had the loss of the law's own choice, which a small model far from it does not have."""
    found = ask_of("gpt2-124m", ["1e20"], serve=1e12)
    assert found.served is not None
    assert found.served.loss == pytest.approx(found.main.loss, rel=1e-9)
    cost, own = found.served.compute + 2e12 * found.served.parameters, found.main
    assert cost < own.operations + 2e12 * own.counted
    few = ask_of("gpt2-124m", ["1e20"], serve=1e12, unique=1e8)
    assert few.served is None
    assert any("--serve: " in text for text in few.warnings)


def test_an_answer_survives_its_json() -> None:
    """The constants of its laws were left out, and those that were read back knew no loss."""
    found = ask(["1e19"], serve=1e12)
    again = BudgetPlan.model_validate_json(found.model_dump_json())
    assert again == found
    assert [each.law.loss(1e9, 2e10) for each in again.choices] == [law.loss(1e9, 2e10) for law in published_laws()]


def test_a_model_of_other_heads_is_planned_on_its_own() -> None:
    devices, seen = parse_cluster("H100"), list[int]()

    def planner(recipe: Recipe, *, remedy: bool) -> Plan:
        seen.append(recipe.model.heads)
        return plan_run(recipe, devices, remedy=remedy)

    laws = [law for law in published_laws() if law.name == "besiroglu"]
    question = Question(budget=parse_budgets(["1e19"]), cluster=devices)
    (choice,) = plan_budget(question, base(), planner, laws, fixed=False).choices
    model = {"layers": choice.layers, "width": choice.width, "heads": 2 * choice.heads}
    own = base().model_copy(update={"model": base().model.model_copy(update=model)})
    seen.clear()
    plan_budget(question, own, planner, laws, fixed=True)
    assert sorted(seen) == [choice.heads, 2 * choice.heads]


# ---- The command


def run(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(["plan", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_plan_with_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("--budget", "$50", "--cluster", "H100", "--serve", "1T", "--explain", capsys=capsys)
    assert code == Exit.DONE
    lines = out.splitlines()
    assert lines[0].startswith("Train ")
    assert " 16.7 hours and $50.00 on 1 x H100 SXM; expected loss " in lines[0]
    assert lines[2] == "budget: $50.00; cluster: 1 x H100 SXM, 16.7 h on it"
    head = next(at for at, line in enumerate(lines) if line.split()[:1] == ["law"])
    assert lines[head].split()[1:] == [
        "parameters",
        "tokens",
        "per",
        "parameter",
        "loss",
        "band",
        *("time", "cost", "MFU", "layout"),
    ]
    rows = lines[head + 1 : head + 7]
    assert [line.removeprefix(">").split()[0] for line in rows] == [law.name for law in published_laws()]
    assert [line.split()[1] for line in rows if line.startswith(">")] == ["besiroglu"]
    assert all("$50" in line and "16.7 h" in line for line in rows)
    assert next(at for at, line in enumerate(lines) if line.startswith("learning rate: ")) < head  # advice first
    for words in ("petaFLOP/s-days", "learning rate: ", "Step Law, arXiv 2503.04715", "critical batch: ", "to serve"):
        assert words in out
    assert "parameters as each law counts them" in out
    assert "tokens, train.compile\n" in out
    assert "the laws differ" in err


def test_plan_of_a_recipe_with_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("gpt2-124m", "--budget", "1e18", "--cluster", "H100", "--json", capsys=capsys)
    assert code == Exit.DONE
    value = json.loads(out)
    assert value["own"]["parameters"] == value["main"]["parameters"] == 124439808
    assert value["own"]["operations"] == pytest.approx(1e18)
    assert len(value["choices"]) == 6


def test_a_size_without_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--size", "1b", "--cluster", "H100", "--json", capsys=capsys)
    assert code == Exit.DONE
    assert json.loads(out)["parameters"] == pytest.approx(1e9, rel=0.05)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--budget", "$500"], Exit.USAGE, "has no price"),
        (["--budget", "3d", "--budget", "2d"], Exit.USAGE, "two budgets of time"),
        (["--budget", "soon"], Exit.USAGE, "write dollars"),
        (["--budget", "1d", "--size", "large"], Exit.USAGE, "--size 'large'"),
        (["tiny", "--budget", "1d", "--size", "1b"], Exit.USAGE, "leave one out"),
        (["--budget", "1d", "--train.tokens", "1T"], Exit.USAGE, "both say how long"),
        (["--budget", "1d", "--cluster", "H900"], Exit.USAGE, "no device"),
        (["--budget", "1e23", "--size", "70b", "--cluster", "H100"], Exit.DOES_NOT_FIT, "it fits on"),
        (["--budget", "1e18", "--law", "absent.json"], Exit.USAGE, "cannot be read"),
        (["--budget", "1e18", "--data", "absent"], Exit.USAGE, "hornbook prepare"),
        (["--budget", "1e18", "--serve", "0"], Exit.USAGE, "--serve '0'"),
    ],
)
def test_wrong_budgets(words: list[str], code: Exit, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, err = (
        run(*words, capsys=capsys) if "--cluster" in words else run(*words, "--cluster", "this", capsys=capsys)
    )
    said = out if code == Exit.DOES_NOT_FIT else err
    assert (found, text in said) == (code, True), said


def test_prepared_text_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tokens").mkdir()
    total = {"in": {"rows": 10, "bytes": 40_000_000_000}, "kept": {"rows": 5, "bytes": 9, "text_bytes": 10_000_000_000}}
    (tmp_path / "funnel.json").write_text(json.dumps({"total": total, "sources": {}}))
    shards = [{"split": "train", "tokens": 2_000_000_000}, {"split": "validation", "tokens": 1_000_000}]
    (tmp_path / "tokens" / "index.json").write_text(json.dumps({"vocab_size": 32_001, "shards": shards}))
    words = ("--budget", "1e20", "--cluster", "H100", "--data", str(tmp_path))
    code, out, _ = run(*words, "--json", capsys=capsys)
    assert code == Exit.DONE
    value = json.loads(out)
    assert value["question"]["text"] == {"tokens": 2e9, "retention": 0.25, "bytes_per_token": 20.0}
    assert value["text_bytes"] == pytest.approx(20 * value["main"]["tokens"])
    assert value["main"]["parameters"] - value["main"]["bare"] == 32_064 * value["main"]["width"]
    assert "if preparation keeps 25% as it did; there are 2 B tokens" in run(*words, capsys=capsys)[1]
    (tmp_path / "funnel.json").write_text("{}")
    assert run(*words, capsys=capsys)[0] == Exit.USAGE
