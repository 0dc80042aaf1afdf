"""Key metrics: recorded runs with one fault each, or a run of yours, and what hornbook's detectors find in them."""

import gzip
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from hornbook.files.run_directory import RunDir
from hornbook.run.doctor.curve_rules import Diagnosis, judge, not_judged
from hornbook.run.doctor.curves import Curves as Series
from hornbook.run.doctor.curves import Facts as RecipeFacts
from hornbook.run.doctor.curves import curves_of
from hornbook.run.doctor.deaths import examine
from hornbook.run.doctor.guard_replay import NEWEST, replay_guard
from hornbook.run.doctor.run_history import read_history
from hornbook.run.guard.policy import Detection
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import explorer
from hornbook.studio.explore.views import Answer, Curves, Line, Mark, Passage, Passages
from hornbook.studio.series import thin

RECORDED = Path(__file__).parents[1] / "recorded_runs.json.gz"
"""Written by benchmarks/studio/faults.py."""
COLUMNS = 300
"""Parts of a picture that keep the smallest and the largest value of a long run."""
SHOWN = 8
"""First steps that are named of each kind."""


@cache
def _file() -> dict[str, Any]:
    return json.loads(gzip.decompress(RECORDED.read_bytes()))


if TYPE_CHECKING:
    Fault = str
else:
    Fault = Literal[tuple(_file())]


class MetricsQuestion(Config):
    """A run to look at."""

    fault: Fault = "rate-too-high"
    """The fault of the recorded run."""
    run: str = Field(default="", max_length=1000)
    """The folder of a run of yours, which is shown in the place of the recorded one."""


@dataclass(frozen=True)
class Judged:
    """A run as detectors have it."""

    steps: Sequence[Mapping[str, Any]]
    series: Series
    findings: Sequence[Diagnosis]
    """Findings of the doctor."""


def recorded(fault: str) -> Judged:
    """A recorded run, judged now."""
    found = _file()[fault]
    steps = [dict(zip(found["steps"], row, strict=True)) for row in zip(*found["steps"].values(), strict=True)]
    series = curves_of(steps, found["statistics"], found["evaluations"], RecipeFacts(**found["facts"]))
    return Judged(steps, series, judge(series))


def read_run(folder: str) -> Judged:
    """A run of yours. Raises UsageError where there is none; what is damaged in it is a finding."""
    history = read_history(RunDir(Path(folder).expanduser()))
    return Judged(history.steps, history.curves, [*examine(history), *judge(history.curves)])


def _passages(question: MetricsQuestion, run: Judged, guard: Mapping[str, Sequence[Detection]]) -> Iterator[Passage]:
    """Yield the fault of a recorded run, then the findings of the doctor and of the guard."""
    if not question.run:
        yield Passage(name=f"The run: {question.fault.replace('-', ' ')}", text=_file()[question.fault]["about"])
    for each in run.findings:
        text = f"{each.evidence}\n{each.explanation}\n-> {each.remedy}"
        yield Passage(name=f"{each.severity}: {each.title}", text=text)
    for words, found in guard.items():
        steps = ", ".join(f"{each.step:,}" for each in found[:SHOWN]) + ", ..." * (len(found) > SHOWN)
        far = {key: value for key, value in found[0].inputs.items() if key in ("z_loss", "z_norm")}
        zs = "".join(f"; {key} {value:.3g}" for key, value in far.items())
        why = f"\n-> `hornbook why RUN@{found[0].step}` names its documents" * found[0].rule.startswith("D1")
        yield Passage(name=f"guard {found[0].rule}: {words}", text=f"step {steps}{zs}{why}")
    if not run.findings and not guard:
        yield Passage(name="ok: nothing is wrong", text="Neither the doctor nor the guard finds anything.")
    if few := not_judged(run.series):
        yield Passage(name="not judged", text="; ".join(few))


def _line(name: str, x: Any, y: Any) -> list[Line]:
    """A curve, thinned; none where it has no value."""
    x, y = np.asarray(x, np.float64), np.asarray([math.nan if each is None else each for each in y], np.float64)
    if not len(x) or not np.isfinite(y).any():
        return []
    kept = thin(x, y, COLUMNS, x[0], x[-1])
    return [Line(name=name, x=x[kept].tolist(), y=y[kept].tolist())]


def _telling(run: Judged) -> tuple[str, list[Line]]:
    """The curve of layers that tells a fault: the loss scale, or idle experts; without both, the rate is shown."""
    layers = run.series.layers
    if lines := _line("loss scale", layers.step, layers.loss_scale):
        return "Loss scale", lines
    idle = layers.columns.get("idle_experts", np.empty((0, 0))).T
    lines = [line for block, row in zip(layers.blocks, idle, strict=False) for line in _line(block, layers.step, row)]
    return ("Share of experts that serve no token" if lines else "Learning rate"), lines


@explorer(
    "Key metrics",
    asks="What do loss, gradient norm, rate and tokens/s look like when something is wrong, and what finds it?",
    code=("run.doctor.curve_rules:judge", "run.doctor.deaths:examine", "run.doctor.guard_replay:replay_guard"),
)
def metrics(question: MetricsQuestion) -> Answer:
    """These are real runs of a model with 0.2 million values, each with one thing wrong and none stopped or repaired.
    The detectors read their records now, as `hornbook doctor RUN` and the guard of a run do. Load one of your runs, and
    the same detectors read yours."""
    run = read_run(question.run) if question.run else recorded(question.fault)
    shown, guard = {Path(question.run).name or question.fault: run}, replay_guard(run.steps, run.series)
    if not question.run:
        shown.setdefault("healthy", recorded("healthy"))
    firsts = dict[int, dict[str, None]]()
    for found in guard.values():
        firsts.setdefault(found[0].step, {})[found[0].rule] = None
    marks = [Mark(x=step, name=f"guard {', '.join(rules)}") for step, rules in firsts.items()]

    def over(of: Callable[[Judged], Any]) -> list[Line]:
        return [line for name, each in shown.items() for line in _line(name, each.series.step, of(each))]

    def picture(title: str, curves: list[Line], **more: Any) -> Curves | None:
        return Curves(title=title, curves=curves, x="step", **more) if curves else None

    (title, telling), scored = _telling(run), run.series.evaluated
    losses = over(lambda each: each.series.loss) + _line("held out", scored.step, scored.loss)
    norms, rates = over(lambda each: each.series.gradient_norm), over(lambda each: each.series.lr)
    # The recorded runs shared their machine with other programs, each with others.
    is_timed = question.run or question.fault == "slow-loader"
    speed = over(lambda each: [step.get("tokens_per_second") for step in each.steps]) if is_timed else []
    note = f"In nats per token. A mark is the first step of what the guard finds in the newest {NEWEST:,} steps."
    return Answer(
        findings=Passages(title="What the detectors find", passages=[*_passages(question, run, guard)]),
        loss=picture("Loss", losses, note=note, marks=marks),
        gradient=picture("Gradient norm", norms, logarithmic="y", marks=marks),
        telling=picture(title, telling or rates),
        speed=picture("Tokens/s", speed),
    )
