"""`hornbook replay`: train a run again from its ledger, and compare."""

import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.result import Result, columns
from hornbook.cli.shell import people
from hornbook.cli.train.training import load_torch
from hornbook.cli.train.verify import describe_comparison
from hornbook.errors import Exit
from hornbook.files.run_directory import RunDir

if TYPE_CHECKING:
    from hornbook.run.diagnose.replay_run import ReplayPlan
    from hornbook.run.doctor.compare_runs import Comparison


def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")],
    *,
    from_: Annotated[
        int | None, typer.Option("--from", metavar="STEP", min=0, help="Begin with this checkpoint of the run.")
    ] = None,
    to: Annotated[
        int | None, typer.Option(metavar="STEP", min=1, help="The last step; by default that of the run.")
    ] = None,
    without: Annotated[
        str | None, typer.Option(metavar="ID", help="Leave out this decision: what would have been without it?")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="NEW", help="Run directory of the replay; by default it is not kept.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List the decisions of the run, with their ids.")] = False,
) -> Result | Exit:
    """Train a run again from its ledger, and compare it bit for bit. Exit code 0 if equal, 3 if different.

    All decisions of its ledger are made again at their steps: settings that it was told, skipped data, restarts. With
    --without, exit code 3 says that the runs part before the decision.
    """
    directory = RunDir(run).must_exist()
    if list_:
        return _listed(directory)
    load_torch()
    from hornbook.run.diagnose.replay_run import plan_replay, replay_run
    from hornbook.run.doctor.compare_runs import compare_runs

    plan = plan_replay(directory, from_, to, without)
    keep = nullcontext(out) if out is not None else tempfile.TemporaryDirectory(prefix="hornbook-replay-")
    with keep as folder:
        new = RunDir(Path(folder) if out is not None else Path(folder) / "run")
        code = replay_run(plan, new, quiet=people().quiet)
        if code != Exit.DONE:
            return code
        comparison = compare_runs(directory, new)
        result = _result(plan, comparison, _curves(directory, new), plan.environments(new))
        return replace(result, value={**result.value, "replay": None if out is None else str(out)})


def _listed(run: RunDir) -> Result:
    from hornbook.run.diagnose.replay_run import list_decisions

    found = list_decisions(run)
    rows = [
        {"id": each.id, "kind": each.record["kind"], "attempt": each.record["attempt"], "step": each.record["step"]}
        | {"text": each.text}
        for each in found
    ]
    if not found:
        return Result({"decisions": []}, f"{run.path} has no decisions: it went from its first step to its last")
    table = [("id", "step", "attempt", "decision", "what")]
    table += [(row["id"], f"{row['step']:,}", str(row["attempt"]), row["kind"], row["text"]) for row in rows]
    return Result({"decisions": rows}, columns(table))


Curves = dict[int, tuple[dict[str, Any], dict[str, Any]]]


def _curves(a: RunDir, b: RunDir) -> Curves:
    """Step -> its records in both runs."""
    from hornbook.files.run_status import steps_that_count

    left, right = ({record["step"]: record for record in steps_that_count(run)} for run in (a, b))
    return {step: (left[step], right[step]) for step in sorted(left.keys() & right.keys())}


def _result(plan: "ReplayPlan", comparison: "Comparison", curves: Curves, changed: list[str]) -> Result:
    parted = comparison.parted
    value = {
        "run": str(plan.run.path),
        "from": plan.first,
        "to": plan.end,
        "decisions": [each.id for each in plan.decisions],
        "without": None if plan.without is None else plan.without.id,
        "changed_environments": changed,
        **comparison.to_json(),
    }
    many = len(plan.decisions)
    lines = [
        f"replayed {plan.run.path}: steps {plan.first + 1:,} to {plan.end:,}, "
        + ("no decision" if not many else "1 decision" if many == 1 else f"{many} decisions"),
        describe_comparison(comparison),
    ]
    if plan.without is not None:
        kept = parted is None or (parted.first or 0) > plan.without.begins
        value["effect"] = effect = _effect(curves)
        lines += _without_lines(plan, curves, effect)
        return Result(value, "\n".join(lines), Exit.DONE if kept else Exit.INTEGRITY)
    if not comparison.equal:
        lines.append(_remedy(changed))
    return Result(value, "\n".join(lines), Exit.DONE if comparison.equal else Exit.INTEGRITY)


def _remedy(changed: list[str]) -> str:
    """What may be behind a difference."""
    if changed:
        return f"environments differ, and with them the last bits: {'; '.join(changed)}"
    return "the environments are alike: damaged memory, or code that was changed (env.json has its revision)"


def _effect(curves: Curves) -> dict[str, Any]:
    """Mean loss and largest gradient norm of both over the steps from where they part on."""
    apart = [pair for pair in curves.values() if pair[0].get("loss") != pair[1].get("loss")]
    if not apart:
        return {"steps": 0}
    found: dict[str, Any] = {"steps": len(apart)}
    for name, number in (("run", 0), ("without", 1)):
        losses = [pair[number]["loss"] for pair in apart if pair[number]["loss"] is not None]
        norms = [norm for pair in apart if (norm := pair[number].get("gradient_norm")) is not None]
        found[name] = {
            "last_loss": losses[-1] if losses else None,
            "mean_loss": sum(losses) / len(losses) if losses else None,
            "largest_norm": max(norms, default=None),
        }
    return found


def _without_lines(plan: "ReplayPlan", curves: Curves, effect: dict[str, Any]) -> list[str]:
    """What became of loss and gradient norm without the decision."""
    assert plan.without is not None
    head = f"without the {plan.without.record['kind']} of step {plan.without.record['step']:,} ({plan.without.text})"
    if not effect["steps"]:
        return [f"{head} all losses are the same"]
    steps = [step for step, pair in curves.items() if pair[0].get("loss") != pair[1].get("loss")]
    shown = sorted({*steps[:3], *steps[:: max(len(steps) // 6, 1)], steps[-1]})
    rows: list[tuple[str, ...]] = [("step", "loss", "without", "norm", "without")]
    for step in shown:
        numbers = (each.get(key) for key in ("loss", "gradient_norm") for each in curves[step])
        rows.append((f"{step:,}", *map(_number, numbers)))
    means = " and ".join(f"{_number(effect[name]['mean_loss'])} {name}" for name in ("run", "without"))
    return [f"{head}, from step {steps[0]:,} on:", columns(rows), f"mean loss of {len(steps):,} steps: {means}"]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
