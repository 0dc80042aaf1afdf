"""`hornbook plan --claim`: a published step or MFU, by each way of counting."""

from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result, columns

if TYPE_CHECKING:
    from hornbook.plan.devices.hardware import Cluster
    from hornbook.settings.recipe import Recipe

Claim = Annotated[
    str | None,
    typer.Option(metavar="2.81s|5826tok/s|66.07%", help="Count a published step, speed of a device or MFU anew."),
]


def claim_result(recipe: "Recipe", cluster: "Cluster", claim: str) -> Result:
    """What the claim is by each convention. Raises UsageError."""
    from hornbook.plan.claims import recompute_claim
    from hornbook.plan.planner import settle, vocabulary
    from hornbook.plan.search.numbers import step_time

    recipe = settle(recipe, cluster)
    found = recompute_claim(claim, recipe, vocabulary(recipe), cluster)
    rows = [["counted as", "TFLOP a step", "step", "of the peak", "MFU (causal)"]]
    for row in found:
        step = [f"{row.operations / 1e12:,.0f}", step_time(row.step_seconds)]
        rows.append([row.convention, *step, f"{row.share:.2%}", f"{row.causal:.2%}"])
    peak = cluster.device.rate(recipe.train.precision) / 1e12
    head = (
        f"{recipe.name}: {claim} claimed for steps of {recipe.train.batch_tokens:,} tokens on {cluster.count} x "
        f"{cluster.device.name}, {peak:,.0f} TFLOP/s each ({recipe.train.precision})"
    )
    asked = "if the share was counted so, a step took this long and MFU is the last column" if "%" in claim else ""
    notes = []
    if all(row.causal > 1 for row in found):
        notes.append(f"[yellow]![/] more than {cluster.device.name} can do: check devices, batch and recipe")
    record = {"claim": claim, "counted": [row.model_dump(mode="json") for row in found]}
    return Result(record, "\n".join([head, "", columns(rows), *([asked] if asked else [])]), notes=notes)
