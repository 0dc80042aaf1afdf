"""`hornbook plan --budget`: model size and tokens for money, days or operations. No torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.markup import escape

from hornbook.cli.plan.table import halved, price_text, room, wrapped
from hornbook.cli.result import Options, Result
from hornbook.cli.shell import split_target
from hornbook.errors import Exit, UsageError
from hornbook.model.config.parameter_count import rounded_rows
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.planner import Plan, plan_run, price_of
from hornbook.plan.scaling.budget import BudgetPlan, Choice, Question, TextSource, plan_budget
from hornbook.plan.scaling.budget_words import parse_budgets
from hornbook.plan.scaling.compute import nearest
from hornbook.plan.scaling.laws import FittedLaw, SumLaw, published_laws
from hornbook.plan.scaling.shape import shaped
from hornbook.plan.search.anchored_plan import anchored
from hornbook.plan.search.number_words import dollars, duration, figure, short, spelled
from hornbook.settings.fields import parse_number
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved

COMMAND_LINE = "command line"
_INDEX = "tokens/index.json"


@dataclass(frozen=True)
class BudgetOptions(Options):
    """A budget, and what is known about its run."""

    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="'$500'|3d|1e19", help="What to train with money, time or operations; repeatable."),
    ] = None
    size: Annotated[str | None, typer.Option(metavar="PARAMETERS", help="A decoder of about so many: 350M, 1.5b.")] = (
        None
    )
    law: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With a budget: the law that `ladder fit` wrote, too.")
    ] = None
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="Prepared data: of epochs, or that there is for a budget.")
    ] = None
    serve: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="With a budget: tokens that the model will serve.")
    ] = None


def sized(words: Sequence[str] | None, resolved: Resolved, size: str | None) -> Resolved:
    """The recipe with a model of `--size`. Raises UsageError where something else says how large it is."""
    if size is None:
        return resolved

    target, _ = split_target(words)
    if target is not None or _says_size(resolved):
        raise UsageError("--size and a recipe, or model.width, both say how large the model is: leave one out")
    return replace(resolved, recipe=shaped(resolved.recipe, _count("--size", size)))


def budget_result(
    words: Sequence[str] | None,
    resolved: Resolved,
    cluster: Cluster,
    options: BudgetOptions,
    *,
    price: float | None = None,
    explain: bool = False,
) -> Result:
    """What the laws make of a budget on a cluster; exit code 4 where the model of the answer does not fit on it.

    With --size the recipe's model is the one to train, as it is where the words name a recipe or a width.
    """
    if _given(resolved, "train.tokens") and resolved.origins["train.tokens"] == COMMAND_LINE:
        raise UsageError("--budget and train.tokens both say how long to train: leave one out")
    fixed, law = options.size is not None, options.law
    resolved, text = _with_text(resolved, options.data)
    named = split_target(words)[0] is not None or (not fixed and _says_size(resolved))
    if not named and not cluster.device.is_cpu and not _given(resolved, "train.compile"):
        resolved = with_train(resolved, compile=True)  # as one trains on a GPU who wants the most for the money
    hour, source = price_of(cluster, price)
    question = Question(
        budget=parse_budgets(options.budget or ()),
        cluster=cluster,
        price=hour or None,
        price_source=source,
        unique=None if text is None else text.tokens,
        serve=None if options.serve is None else _count("--serve", options.serve),
        text=text,
    )

    def planner(recipe: Recipe, *, remedy: bool) -> Plan:
        found = plan_run(recipe, cluster, search=cluster.has_choice, top=1, remedy=remedy)
        return anchored(found, recipe, cluster)

    found = plan_budget(
        question,
        resolved.recipe,
        planner,
        [*published_laws(), *([] if law is None else [read_law(law)])],
        fixed=fixed or named,
        batch=not named and not _given(resolved, "train.batch_tokens"),
    )
    return _result(found, explain=explain)


def _result(found: BudgetPlan, *, explain: bool) -> Result:

    notes = [f"[yellow]![/] {escape(text)}" for text in found.warnings]
    code = Exit.DONE if found.main.fits else Exit.DOES_NOT_FIT
    return Result(budget_json(found), budget_text(found, explain=explain, room=room()), code=code, notes=notes)


def _with_text(resolved: Resolved, data: Path | None) -> tuple[Resolved, TextSource | None]:
    """(the recipe with the vocabulary of prepared text, unless it has one; what was measured of the text)."""
    if data is None:
        return resolved, None
    text, vocab = measured_text(data)
    if resolved.recipe.model.vocab is None:
        model = resolved.recipe.model.model_copy(update={"vocab": vocab})
        resolved = replace(resolved, recipe=resolved.recipe.model_copy(update={"model": model}))
    return resolved, text


def with_train(resolved: Resolved, **changes: object) -> Resolved:
    """The recipe with other settings of `[train]`."""
    train = resolved.recipe.train.model_copy(update=changes)
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"train": train}))


def _says_size(resolved: Resolved) -> bool:
    return any(_given(resolved, f"model.{name}") for name in ("layers", "width", "heads"))


def _given(resolved: Resolved, key: str) -> bool:
    return resolved.origins.get(key, "default") != "default"


def _count(option: str, text: str) -> float:

    value = parse_number(text)
    if not isinstance(value, int | float) or value < 1:
        raise UsageError(f"{option} {text!r}: write a number above 0, such as 350M, 1.5b or 2e12")
    return float(value)


def read_law(path: Path) -> FittedLaw:
    """The law that `hornbook ladder fit --out` wrote. Raises UsageError."""
    try:
        return FittedLaw.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--law {path}: it cannot be read ({error.strerror})") from error
    except ValidationError as error:
        wrong = error.errors()[0]
        where = ".".join(map(str, wrong["loc"])) or "the file"
        raise UsageError(
            f"--law {path}: {where}: {wrong['msg']}; `hornbook ladder fit RUNS --out FILE` writes one"
        ) from error


def measured_text(data: Path) -> tuple[TextSource, int]:
    """(what preparation kept of the text of a data folder, and the tokens of it; rows of an embedding for them).

    Raises UsageError.
    """
    funnel, index, train = _read_json(data / "funnel.json"), _read_json(data / _INDEX), train_tokens(data)
    try:
        total = funnel["total"]
        read, kept = total["in"]["bytes"], total["kept"]["text_bytes"]
        text = TextSource(tokens=train, retention=kept / read, bytes_per_token=read / train)
        return text, rounded_rows(index["vocab_size"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UsageError(f"--data {data}: its counts cannot be read, or nothing is in it; prepare it again") from error


def train_tokens(data: Path) -> int:
    """Tokens of the training split of a data folder. Raises UsageError."""
    try:
        shards = _read_json(data / _INDEX)["shards"]
        return sum(shard["tokens"] for shard in shards if shard["split"] == "train")
    except (KeyError, TypeError) as error:
        raise UsageError(f"--data {data}: its counts cannot be read; tokenize it again") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UsageError(
            f"--data: {path} is not there: name a folder that `hornbook prepare` and `hornbook tokenize` wrote"
        ) from error
    except (OSError, ValueError) as error:
        raise UsageError(f"--data: {path} cannot be read: {error}") from error


# ---- What people and programs read


def budget_json(found: BudgetPlan) -> dict[str, Any]:
    """All of it, with what follows from it."""
    value = found.model_dump(mode="json")
    value["choices"] = [_choice_json(each) for each in found.choices]
    value["own"] = found.own and _choice_json(found.own)
    value["main"] = _choice_json(found.main)
    value["petaflops_days"], value["text_bytes"] = found.petaflops_days, found.text_bytes
    return value


def _choice_json(choice: Choice) -> dict[str, Any]:
    value = choice.model_dump(mode="json", exclude={"law": {"samples"}})
    return value | {"ratio": choice.ratio, "operations": choice.operations}


def budget_text(found: BudgetPlan, *, explain: bool = False, room: int | None = None) -> str:
    """The answer for people, advice first; explain: with the sources of laws and rules. room: characters of a line."""
    question, main = found.question, found.main
    rows = [["  law", "parameters", "tokens", "per parameter", "loss", "band", "time", "cost", "MFU", "layout"]]
    if found.own is not None:
        rows.append(_row("> this model", found.own))
    rows += [_row(f"{'>' if each is main else ' '} {each.law.name}", each) for each in found.choices]
    lines = [_verdict(found), "", _header(found), *_main_lines(found), "", halved(rows, 6, room), ""]
    lines.append("> described above; parameters as each law counts them: all, or * without embeddings; operations are")
    lines[-1] += " 6 N D with that N"
    lines.append(f"band: what {_names(found)} expect of the model, in nats per token")
    if question.price is not None:
        lines.append(price_text(question.price, question.price_source))
    if explain:
        lines += ["", "losses are nats per token of each law's own text: compare them within a law", ""]
        lines += [f"{each.law.name}: {each.law.title}; {each.law.source}" for each in found.choices]
        lines += [f"{each.what}, {each.name}: {each.source}" for each in found.suggestions]
    return "\n".join(wrapped(each, room) for each in lines)


def _verdict(found: BudgetPlan) -> str:
    """The model of the answer in a sentence."""
    main, cluster = found.main, found.question.cluster
    model = f"{short(main.parameters)} parameters on {short(main.tokens)} tokens"
    if not main.fits:
        return f"Does not fit on {cluster}: {model}; {found.fits_on}"
    cost = "" if main.dollars is None else f" and {dollars(main.dollars)}"
    loss = "" if main.loss is None else f"; expected loss {main.loss:.3f}"
    return f"Train {model}: {spelled(main.seconds)}{cost} on {cluster}{loss}"


def _names(found: BudgetPlan) -> str:

    laws = [each.law for each in found.choices]
    summed = [law.name for law in laws if isinstance(law, SumLaw) and not isinstance(law, FittedLaw)]
    own = " (of yours: its 90 % interval)" if any(isinstance(law, FittedLaw) for law in laws) else ""
    return f"{', '.join(summed[:-1])} and {summed[-1]}{own}"


def _header(found: BudgetPlan) -> str:
    budget, cluster = found.question.budget, found.question.cluster
    words = []
    if budget.dollars is not None:
        words.append(dollars(budget.dollars))
    if budget.seconds is not None:
        words.append(duration(budget.seconds))
    if budget.operations is not None:
        words.append(f"{budget.operations:.3g} operations")
    time = "" if found.seconds is None else f", {duration(found.seconds)} on it"
    return f"budget: {' and '.join(words)}; cluster: {cluster}{time}"


def _row(name: str, each: Choice) -> list[str]:
    mark = "" if each.law.parameters == "all" else "*"
    return [
        name,
        f"{short(each.counted)}{mark}",
        short(each.tokens),
        figure(each.ratio),
        "" if each.loss is None else f"{each.loss:.3f}",
        "" if each.low is None or each.high is None else f"{each.low:.3f} to {each.high:.3f}",
        duration(each.seconds),
        "" if each.dollars is None else dollars(each.dollars),
        f"{each.mfu:.0%}",
        each.layout if each.fits else "OOM",
    ]


def _main_lines(found: BudgetPlan) -> list[str]:
    """The model of the answer: shape, compute, batch and rate, text, serving."""
    main = found.main
    near = nearest(main.operations)
    name = main.law.name if found.own is None else "this model"
    lines = [
        f"{short(main.parameters)} parameters ({name}): {main.layers} layers, {main.width:,} wide, "
        f"{short(main.bare)} without embeddings; batch {main.batch_tokens:,} tokens"
        f"{', train.compile' if main.compiled else ''}",
        f"compute: {main.operations:.3g} operations, {figure(found.petaflops_days)} petaFLOP/s-days "
        f"({near.name} took {figure(near.petaflops_days)})",
    ]
    for what in ("batch", "critical batch", "learning rate"):
        said = [each for each in found.suggestions if each.what == what]
        value = ", ".join(
            f"{_suggested(what, each.value)} ({each.name}, {each.source.split(',')[0].split(';')[0]})" for each in said
        )
        lines.append(f"{what}: {value}")
    if (text := found.question.text) is not None and found.text_bytes is not None:
        collect = short(found.text_bytes).replace("B", "G")
        lines.append(
            f"text to collect: {collect}B for one pass, if preparation keeps {text.retention:.0%} as "
            f"it did; there are {short(text.tokens)} tokens, {figure(main.tokens / text.tokens)} passes"
        )
    if found.served is not None and found.question.serve is not None:
        serve = 2 * found.question.serve
        whole, least = main.operations + main.counted * serve, found.served.compute + found.served.parameters * serve
        lines.append(
            f"with {short(found.question.serve)} tokens to serve: {short(found.served.parameters)} parameters on "
            f"{short(found.served.tokens)} tokens have the same loss and take {least / whole:.0%} of the operations of "
            f"training and serving (arXiv 2401.00448)"
        )
    return lines


def _suggested(what: str, value: float) -> str:
    return f"{value:.2g}" if what == "learning rate" else f"{short(value)} tokens"
