"""Memory of a GPU in one step: the planner's estimate, by category and phase."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hornbook.errors import UsageError
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.model.config.parameter_count import count_parameters
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.planned_memory import CATEGORIES, PhaseMemory, RankMemory, estimate_memory
from hornbook.plan.planner import estimate_layout, vocabulary
from hornbook.plan.search.plan_result import Layout, capacity
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe
from hornbook.studio.explore.explorer import Preset, explorer, means, settings_of, slider
from hornbook.studio.explore.recipes import MODELS, SHARDS, Device, Model, on, sequence_words
from hornbook.studio.explore.views import Answer, Bar, Bars, Columns, Curves, Facts, Line, Mark, Table, Unit, fact

PHASES = {"loss": "end of forward", "backward": "backward", "update": "update"}


class MemoryQuestion(Config):
    """A model, how it is trained, and on what."""

    model: Model = "llama-1b"
    device: Device = "H100"
    gpus: int = slider(8, 1, 512, "parallel.data", logarithmic=True)
    """Data ranks: GPUs that each compute a part of the batch."""
    micro_batch: int = slider(2, 1, 64, "train.micro_batch")
    """Rows that a GPU computes at once (`train.micro_batch`)."""
    sequence: int = slider(2048, 16, 131072, "train.sequence", logarithmic=True)
    """Tokens of a row (`train.sequence`)."""
    precision: Literal["bf16", "bf16-pure", "fp32"] = means("bf16", "train.precision")
    """bf16: products in 16 bits, weights in 32; bf16-pure: weights in 16 bits too."""
    optimizer: Literal["adamw", "adamw8bit", "adafactor", "lion", "sgd", "muon"] = means("adamw", "optim.kind")
    """The update rule, which keeps one, two or no numbers for each weight (`optim.kind`)."""
    recompute: Literal["none", "selective", "block"] = means("none", "parallel.recompute.kind")
    """What backward computes again instead of keeping it (`parallel.recompute`)."""
    shard: Literal["none", "zero-1", "zero-2", "zero-3"] = means("none", "parallel.shard", SHARDS)
    """What data ranks share: nothing, the optimizer, gradients too, or weights too (`parallel.shard`)."""
    offload: bool = means(False, "parallel.offload.kind", {False: "none", True: "cpu"})
    """Activations and the optimizer are kept in the host's memory (`parallel.offload`)."""
    lora: bool = False
    """Train thin matrices next to frozen weights (`surgery = ["lora"]`)."""


def _settings(question: MemoryQuestion) -> dict[str, Any]:
    found = settings_of(question) | sequence_words(question.model, question.sequence)
    found["train.batch_tokens"] = question.micro_batch * question.gpus * question.sequence
    if question.gpus == 1:
        found["parallel.shard"] = "none"
    if question.offload:
        found["parallel.offload.optimizer"] = True
    if question.lora or question.model not in MODELS:
        found["surgery"] = ["lora"] * question.lora
    return found


def _planned(question: MemoryQuestion) -> tuple[Layout, Recipe, Cluster]:
    recipe, cluster = on(f"{question.gpus}x{question.device}", question.model, _settings(question))
    return estimate_layout(recipe, vocabulary(recipe), cluster), recipe, cluster


def _load(recipe: Recipe) -> Mapping[str, Any]:
    return {"lora": any(each.kind == "lora" for each in recipe.surgery), "micro_batch": recipe.train.micro_rows}


def _of_run(question: MemoryQuestion) -> Facts | None:
    """Figures that a run measured, next to those of its plan; None for other models, and before the end of a run."""
    records = () if question.model in MODELS else read_records(RunDir(Path(question.model)).events)
    found = [each for each in records if each["kind"] == "plan"]
    if not found:
        return None
    kinds: list[tuple[str, Unit]] = [("peak of the fullest rank", "bytes"), ("a step", "seconds")]
    hows = ("predicted", "measured")
    facts = [fact(f"{what}, {how}", found[-1][f"{how}_{unit}"], unit) for what, unit in kinds for how in hows]
    note = "Recorded by the run itself, with its own settings and devices; on a CPU the peak is that of the process."
    return Facts(title="Your run", note=note, facts=facts)


def _over_time(rank: RankMemory, layout: Layout) -> Curves:
    """The phases in their order, at the times of a step; straight lines between them."""
    step, (loss, backward, update) = layout.step, (rank.phases[name] for name in PHASES)
    busy = step.total - step.update
    forward = busy / (4 if backward.temporaries else 3)
    kept = {name: getattr(update, name) for name in ("weights", "optimizer", "runtime")}
    moments = [
        (0.0, PhaseMemory().model_copy(update=kept | {"gradients": loss.gradients})),
        (forward, loss),
        (forward + 0.02 * busy, backward),
        (busy, update),
        (busy + max(step.update, 0.01 * busy), update),
    ]
    times = [at for at, _ in moments]
    names = [name for name in CATEGORIES if any(getattr(each, name) for _, each in moments)]
    at = max(moments, key=lambda each: each[1].total)
    return Curves(
        title="One step",
        note="Memory is computed at the phases and drawn straight between them; times are the planner's.",
        curves=[Line(name=name, x=times, y=[getattr(each, name) for _, each in moments]) for name in names],
        x="seconds of a step",
        x_unit="seconds",
        y_unit="bytes",
        marks=[Mark(x=at[0], name=f"peak: {PHASES[rank.peak_phase]}")],
        filled=True,
    )


def _changes(question: MemoryQuestion) -> Answer:
    """What one change of the question does, the smallest peak first."""
    now = _planned(question)[0].worst.peak.total
    changes = {
        "recompute every block": {"recompute": "block"},
        "recompute norms and activations": {"recompute": "selective"},
        "one row at a time": {"micro_batch": 1},
        "share the optimizer (zero-1)": {"shard": "zero-1"},
        "share everything (zero-3)": {"shard": "zero-3"},
        "8-bit moments": {"optimizer": "adamw8bit"},
        "weights in 16 bits": {"precision": "bf16-pure"},
        "offload to the host": {"offload": True},
        "LoRA": {"lora": True},
    }
    rows = list[list[Any]]()
    for name, change in changes.items():
        changed = question.model_copy(update=change)
        if changed == question or (question.gpus == 1 and "shard" in change):
            continue
        try:
            layout, _, _ = _planned(changed)
        except UsageError:
            continue
        rows.append([name, layout.worst.peak.total, layout.worst.peak.total - now, layout.tokens_per_second])
    changed = Table(
        title="If you change one thing",
        columns={"change": None, "peak": "bytes", "difference": "bytes", "tokens per second": "count"},
        rows=sorted(rows, key=lambda row: row[1]),
    )
    return Answer(changes=changed)


def _trace(question: MemoryQuestion) -> Answer:
    """A step of one rank on fake tensors next to the plan of such a step."""
    from hornbook.studio.explore.real import traced

    _, recipe, cluster = _planned(question)
    planned = max(
        estimate_memory(recipe, vocabulary(recipe), cluster.device, traced=True), key=lambda each: each.peak.total
    )
    found = traced(recipe)
    rows: list[list[Any]] = [["kept for backward", planned.kept, found.kept]]
    for name in ("weights", "gradients", "optimizer"):
        most = max(getattr(each, name) for each in planned.phases.values())
        rows.append([name, most, found.state["moments" if name == "optimizer" else name]])
    columns: Columns = {"what": None, "planned": "bytes", "traced": "bytes"}
    note = f"Rank 0 of {found.world}, in {found.seconds:.1f} seconds: the trainer's own code on tensors without values."
    return Answer(categories=Table(title="Planned and traced", note=note, columns=columns, rows=rows))


@explorer(
    "GPU memory",
    asks="What fills the memory of a GPU in training, when, and what makes it fit?",
    code=(
        "plan.planned_memory:estimate_memory",
        "model.config.saved_bytes:block_bytes",
        "plan.step_time:estimate_step",
    ),
    presets=(
        Preset(
            "GPT-2 on a small card",
            {"model": "gpt2-124m", "device": "RTX4090", "gpus": 1, "micro_batch": 8, "sequence": 1024},
        ),
        Preset(
            "Llama 7B, one row",
            {"model": "llama-7b", "gpus": 1, "micro_batch": 1, "sequence": 256, "precision": "bf16-pure"},
            "GaLore, arXiv 2403.03507",
        ),
        Preset(
            "Llama 3 8B on eight",
            {"model": "llama-3-8b", "shard": "zero-3", "recompute": "block", "sequence": 8192, "micro_batch": 1},
        ),
        Preset("LoRA on one card", {"model": "llama-7b", "gpus": 1, "lora": True, "micro_batch": 1, "sequence": 512}),
    ),
    settings=_settings,
    load=_load,
    further=_changes,
    measure=_trace,
)
def memory(question: MemoryQuestion) -> Answer:
    """Training needs far more memory than the weights: a gradient for each weight, the optimizer's moments, and above
    all the activations, which each layer keeps until its backward pass. They grow with rows and tokens; weights,
    gradients and moments do not. The peak is not the sum of everything, but the fullest moment of a step."""
    layout, recipe, cluster = _planned(question)
    rank, limit = layout.worst, capacity(cluster)
    peak = rank.peak
    parts = [
        [name, getattr(peak, name), getattr(peak, name) / peak.total] for name in CATEGORIES if getattr(peak, name)
    ]
    bars = [
        Bar(name=PHASES[name], parts={each: getattr(phase, each) for each in CATEGORIES})
        for name, phase in rank.phases.items()
    ]
    facts = [
        fact("peak", peak.total, "bytes"),
        fact("at", PHASES[rank.peak_phase]),
        fact("a plan may fill", limit, "bytes"),
        fact("it fits", "yes" if layout.fits else "no"),
        fact("parameters", count_parameters(recipe.model, vocabulary(recipe)), "count"),
        fact("tokens per second, all GPUs", layout.tokens_per_second, "count"),
    ]
    facts += [fact("in the host's memory", rank.elsewhere, "bytes")] if rank.elsewhere else []
    return Answer(
        summary=Facts(title="Does it fit?", facts=facts),
        phases=Bars(title="The three fullest moments of a step", bars=bars, limit=limit),
        run=_of_run(question),
        timeline=_over_time(rank, layout),
        parts=Table(title="At the peak", columns={"what": None, "bytes": "bytes", "share": "share"}, rows=parts),
    )
