"""Gradient checkpointing: what each policy keeps for backward, over one step, and what it computes twice."""

from typing import Any, Literal

from hornbook.model.config.saved_bytes import block_bytes
from hornbook.parallel.config import BlockRecompute, Recompute
from hornbook.plan.counts.share import rows_of
from hornbook.plan.planner import estimate_layout, vocabulary
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import Preset, explorer, means, settings_of, slider
from hornbook.studio.explore.recipes import Device, Model, on, recipe_of, sequence_words
from hornbook.studio.explore.views import Answer, Columns, Curves, Facts, Line, Mark, Table, fact


class RecomputeQuestion(Config):
    """A model, its rows, and a policy."""

    model: Model = "llama-1b"
    policy: Literal["none", "selective", "block"] = means("block", "parallel.recompute.kind")
    """none: keep all; selective: compute norms and activations again; block: whole blocks (`parallel.recompute`)."""
    every: int = slider(1, 1, 16)
    """With `block`: every k-th block is computed again."""
    rows: int = slider(4, 1, 64, "train.micro_batch")
    """Rows that a GPU computes at once (`train.micro_batch`)."""
    sequence: int = slider(2048, 16, 65536, "train.sequence", logarithmic=True)
    """Tokens of a row (`train.sequence`)."""
    device: Device = "H100"


def _settings(question: RecomputeQuestion) -> dict[str, Any]:
    found = settings_of(question) | sequence_words(question.model, question.sequence)
    found |= {"train.batch_tokens": question.rows * question.sequence, "train.precision": "bf16"}
    return found | ({"parallel.recompute.every": question.every} if question.policy == "block" else {})


def _policies(question: RecomputeQuestion) -> list[RecomputeQuestion]:
    """The question with each policy that is compared; the question itself is among them."""
    steps = sorted({1, 2, 4, question.every} if question.policy == "block" else {1, 2, 4}, reverse=True)
    changes: list[dict[str, Any]] = [{"policy": "none"}, {"policy": "selective"}]
    changes += [{"policy": "block", "every": every} for every in steps]
    return [question.model_copy(update=change) for change in changes]


def _name(question: RecomputeQuestion) -> str:
    """Name of the policy."""
    if question.policy != "block":
        return question.policy
    return f"every {question.every} blocks" if question.every > 1 else "every block"


def _planned(question: RecomputeQuestion) -> tuple[list[Any], list[float], list[float]]:
    """(a row of the table, times, live bytes) of a policy."""
    recipe, cluster = on(f"1x{question.device}", question.model, _settings(question))
    layout = estimate_layout(recipe, vocabulary(recipe), cluster)
    times, live = live_bytes(recipe)
    row = [max(live), layout.worst.peak.total, layout.step.total, layout.hfu / layout.mfu - 1]
    return [_name(question), *row], times, live


def _compare(question: RecomputeQuestion) -> Answer:
    table = Table(
        title="Policies",
        columns={
            "policy": None,
            "activations of blocks": "bytes",
            "peak of the GPU": "bytes",
            "step": "seconds",
            "computed twice": "share",
        },
        rows=[_planned(each)[0] for each in _policies(question)],
        chosen=_policies(question).index(question),
    )
    return Answer(policies=table)


def live_bytes(recipe: Recipe) -> tuple[list[float], list[float]]:
    """(time in passes of a block, bytes kept for backward) over one microbatch: a block adds what it keeps when it goes
    forward, and frees it when it goes backward; a block that is computed again has all of it for that time."""
    policy: Recompute = recipe.parallel.recompute
    blocks = block_bytes(recipe.model, rows_of(recipe, recipe.train.micro_rows, fused=True))
    every = policy.every if isinstance(policy, BlockRecompute) else 0
    again = [bool(every) and number % every == 0 for number in range(len(blocks))]
    kept = [each.stream if is_again else each.whole for each, is_again in zip(blocks, again, strict=True)]
    times, live, now, at = [0.0], [0.0], 0.0, 0.0
    for each in kept:
        now, at = now + each, at + 1
        times.append(at)
        live.append(now)
    for each, is_again, own in zip(reversed(blocks), reversed(again), reversed(kept), strict=True):
        if is_again:
            at += 1
            times.append(at)
            live.append(now - own + each.whole)
        now, at = now - own, at + 2
        times.append(at)
        live.append(now)
    return times, live


SMALL = {"train.precision": "fp32", "train.device": "cpu"}
MOST_ROWS, MOST_SEQUENCE = 8, 256
"""Of the small model that is trained here."""


def _measure(question: RecomputeQuestion) -> Answer:
    """Steps of the recipe `tiny` with each policy: bytes by autograd's hooks, seconds of the fastest of three."""
    from hornbook.studio.explore.real import kept_and_seconds

    small = {"model": "tiny", "rows": min(question.rows, MOST_ROWS), "sequence": min(question.sequence, MOST_SEQUENCE)}
    rows = list[list[Any]]()
    for each in _policies(question.model_copy(update=small)):
        rows.append([_name(each), *kept_and_seconds(recipe_of("tiny", _settings(each) | SMALL))])
    columns: Columns = {"policy": None, "planned": "bytes", "measured": "bytes", "step": "seconds"}
    note = "The recipe `tiny` in float32: bytes that autograd kept at once, counted by its hooks."
    return Answer(steps=Table(title="Real steps on this machine", note=note, columns=columns, rows=rows))


@explorer(
    "Gradient checkpointing",
    asks="What is saved if backward computes activations again, and what does that cost?",
    code=("model.config.saved_bytes:block_bytes", "parallel.config:BlockRecompute", "plan.step_time:estimate_step"),
    presets=(
        Preset("Long rows", {"model": "llama-3-8b", "sequence": 32768, "rows": 1}),
        Preset("GPT-2, every third block", {"model": "gpt2-124m", "every": 3, "sequence": 1024, "rows": 16}),
    ),
    settings=_settings,
    further=_compare,
    measure=_measure,
)
def recompute(question: RecomputeQuestion) -> Answer:
    """Backward needs what forward computed: the activations. Keeping all of them takes memory in proportion to the
    number of layers. Checkpointing keeps only the input of a block, and computes the block again when backward arrives
    there: about a third more computation for most of the memory. Selective recomputation is in between: only what is
    cheap to compute is computed again."""
    rows, curves, marks = list[list[Any]](), list[Line](), list[Mark]()
    for each in dict.fromkeys((_policies(question)[0], question)):
        row, times, live = _planned(each)
        rows.append(row)
        curves.append(Line(name=_name(each), x=times, y=live))
        marks = [Mark(x=times[live.index(max(live))], name=f"peak of {_name(each)}")]
    best = rows[-1]
    return Answer(
        summary=Facts(
            title="What it saves and costs",
            facts=[
                fact("activations of blocks at their peak", best[1], "bytes"),
                fact("kept without recomputation", rows[0][1], "bytes"),
                fact("memory of the GPU at its peak", best[2], "bytes"),
                fact("a step is longer by", best[3] / rows[0][3] - 1, "share"),
                fact("operations computed twice", best[4], "share"),
            ],
        ),
        live=Curves(
            title="Activations over one step",
            note="Forward first, then backward, which takes twice as long; what is computed again takes a pass.",
            curves=curves,
            x="passes of a block",
            y_unit="bytes",
            marks=marks,
        ),
    )
