"""Rules over the recorded series of a run: what goes wrong in training, with its evidence. Pure functions.

A rule returns its evidence as a sentence, or None. `curve_rules.toml` has title, severity, explanation and remedy of
each. Thresholds are set so that a healthy run of some hundred steps triggers none (tests/run/doctor).
"""

import functools
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from hornbook.run.doctor.curves import MIN_STEPS, WINDOW, Curves, settled
from hornbook.run.doctor.fits import Values, power_law
from hornbook.run.doctor.loss_rules import above_unigram, high_rate, oscillation, overfitting, plateau, saddle

Severity = Literal["fail", "warn", "ok"]
Rule = Callable[[Curves], str | None]

MEASUREMENTS = 3
"""Newest measurements of layers that must agree."""
LEAST_WAIT = 1e-3
"""Seconds of a wait that count: shorter ones are those of any thread."""
LOGIT_LIMIT, LOG_Z_LIMIT = 1e4, 1e2
"""Attention logits at which training diverged (arXiv 2309.14322, section 3.1); a log Z whose float32 loss keeps five
digits and whose bf16 logits none behind the point."""
UPDATE_LIMIT = 0.2
"""Share of its weights' size by which a step changes a layer."""
SCATTER_STEPS, SCATTER_GROWTH, LEAST_SCATTER = 64, 3.0, 0.02
"""Steps of a median of what neighbouring log norms differ by; how much more is a finding, twice in succession; and
what counts as the usual at least."""


@dataclass(frozen=True)
class Text:
    """Texts of a rule in `curve_rules.toml`."""

    title: str
    severity: Severity
    explanation: str
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """One thing that is wrong with a run."""

    name: str
    title: str
    severity: Severity
    evidence: str
    explanation: str
    remedy: str


@functools.cache
def texts() -> dict[str, Text]:
    """By name of the rule."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: Text(**row) for name, row in table.items()}


def table() -> str:
    """The rules as a table in Markdown, for docs/troubleshooting.md."""
    rows = [f"| {each.title} | {each.explanation} | {each.remedy} |" for each in texts().values()]
    return "\n".join(["| issue | what it means | what helps |", "|---|---|---|", *rows])


def judge(curves: Curves) -> list[Diagnosis]:
    """Findings of the rules, in the order of `curve_rules.toml`."""
    return [diagnosis(name, evidence) for name in texts() if (evidence := RULES[name](curves))]


def not_judged(curves: Curves) -> list[str]:
    """Which rules have too little to judge by, and how much they need."""
    steps, measured, needed = len(curves.step), len(curves.layers), 3 * MIN_STEPS
    found = [f"curves, {steps} of {needed} steps"] if steps < needed else []
    layers = f"layers, {measured} of {MEASUREMENTS} measurements (log.statistics_every)"
    return [*found, layers] if measured < MEASUREMENTS else found


def diagnosis(name: str, evidence: str) -> Diagnosis:
    """A finding of a rule."""
    text = texts()[name]
    return Diagnosis(name, text.title, text.severity, evidence, text.explanation, text.remedy)


def _newest(curves: Curves, column: str) -> Values | None:
    """[measurements, names] of the newest measurements; None of too few."""
    return curves.layers.columns[column][-MEASUREMENTS:] if len(curves.layers) >= MEASUREMENTS else None


# ---- gradients


def vanishing_gradients(curves: Curves) -> str | None:
    """Norms of blocks over the largest of them, or the norm of all, next to nothing."""
    norms = curves.gradient_norm[~curves.skipped]
    norms = norms[np.isfinite(norms)]
    if len(norms) >= MIN_STEPS and (last := float(np.median(norms[-WINDOW:]))) < 1e-7:
        return f"the median gradient norm of the last {WINDOW} steps is {last:.2g}"
    found = _newest(curves, "gradient_norm")
    blocks = [number for number, name in enumerate(curves.layers.layers) if "blocks." in name]
    if found is None or len(blocks) < 2:
        return None
    of_blocks = found[:, blocks]
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = (of_blocks / of_blocks.max(1, keepdims=True)).max(0)
    least = int(np.argmin(shares))
    if not 0 < shares[least] < 1e-3:  # 0: a frozen block has no gradient
        return None
    return (
        f"the gradient of {curves.layers.layers[blocks[least]]} is {shares[least]:.1g} of that of the block with most"
    )


def exploding_gradients(curves: Curves) -> str | None:
    """A median norm of the newest steps ten times that of the run before."""
    norms = curves.gradient_norm[settled(curves)]
    norms = norms[np.isfinite(norms)]
    if len(norms) < MIN_STEPS:
        return None
    medians = np.array([np.median(each) for each in np.split(norms[-(len(norms) // 16) * 16 :], len(norms) // 16)])
    usual, peak = float(np.median(medians)), float(medians.max())
    best = float(medians[: int(medians.argmax()) + 1].min())
    if peak < 10 * best or peak < 10 * min(usual, best * 3):
        return None
    at = curves.step[-len(medians) * 16 :][16 * int(medians.argmax())]
    return f"the median gradient norm of 16 steps rose from {best:.2g} to {peak:.2g}, about step {at:,}"


def nonfinite_steps(curves: Curves) -> str | None:
    """Of the newest thousand steps more than one in a hundred without a finite loss and gradient."""
    newest = (curves.skipped & ~(np.isfinite(curves.loss) & np.isfinite(curves.gradient_norm)))[-1000:]
    count = int(newest.sum())
    if count < 2 or count <= len(newest) / 100:
        return None
    first = curves.step[-len(newest) :][int(np.argmax(newest))]
    return f"{count:,} of the last {len(newest):,} steps, the first of them step {first:,}"


# ---- layers


def dead_units(curves: Curves) -> str | None:
    """A block of which over half of the units are dead at every one of the newest measurements."""
    found = _mostly(curves, "dead_units")
    return f"{found[1]:.0%} of the MLP units of {found[0]} are positive for no token" if found else None


def dead_experts(curves: Curves) -> str | None:
    """A block of which over half of the experts serve no token at every one of the newest measurements."""
    found = _mostly(curves, "idle_experts")
    return f"{found[1]:.0%} of the experts of {found[0]} serve no token" if found else None


def _mostly(curves: Curves, column: str) -> tuple[str, float] | None:
    """(block, its newest share) of the block whose share is largest, if it is over half at the newest measurements."""
    found = _newest(curves, column)
    if found is None or not np.isfinite(found).any():
        return None
    least = np.nan_to_num(found).min(0)
    worst = int(np.argmax(least))
    return (curves.layers.blocks[worst], float(found[-1, worst])) if least[worst] > 0.5 else None


def attention_logits(curves: Curves) -> str | None:
    """A power law of the largest logit that reaches the limit within twice the length of the run."""
    if curves.facts.has_qk_norm or len(curves.layers) < 5:
        return None
    found = curves.layers.columns["max_logit"]
    for number, name in enumerate(curves.layers.blocks):
        if text := _reaches(curves, found[:, number], LOGIT_LIMIT, 30.0):
            return f"the largest attention logit of {name} {text}"
    return None


def output_logits(curves: Curves) -> str | None:
    """A power law of log Z that reaches the limit within twice the length of the run."""
    if curves.facts.has_z_loss or len(curves.layers) < 5:
        return None
    text = _reaches(curves, curves.layers.log_z, LOG_Z_LIMIT, 20.0)
    return f"log Z {text}" if text else None


def _reaches(curves: Curves, values: Values, limit: float, least: float) -> str | None:
    """What a power law says of values over `least` that grow towards a limit."""
    half = slice(len(values) // 3, None)  # early growth is that of learning at all
    x, y = curves.layers.tokens[half].astype(float), values[half]
    law = power_law(x, y)
    if law is None or not y[-1] > least or law.exponent < 0.2 or law.exponent < 4 * law.error:
        return None
    now, end = float(x[-1]), max(curves.facts.planned_tokens, int(x[-1]))
    at = law.reaches(limit)
    if at > 2 * end:
        return None
    steps = (at - now) / (now / max(int(curves.layers.step[-1]), 1))
    when = f"reaches {limit:g} in about {max(steps, 0):,.0f} steps" if at > now else f"is above {limit:g}"
    return f"is {y[-1]:.3g}, grows as tokens^{law.exponent:.2f} and {when}"


def large_updates(curves: Curves) -> str | None:
    """A block whose weights change by a fifth of their size in a single step, at each of the newest measurements, or
    will, by a power law of the measurements behind the warm-up."""
    found = _newest(curves, "update_ratio")
    blocks = [number for number, name in enumerate(curves.layers.layers) if "blocks." in name]
    if found is None or not blocks:
        return None
    least = np.nan_to_num(found[:, blocks]).min(0)
    worst = int(np.argmax(least))
    if least[worst] < UPDATE_LIMIT:
        return _growing_updates(curves, blocks)
    return (
        f"a step changes {curves.layers.layers[blocks[worst]]} by {found[-1, blocks[worst]]:.2g} of its weights' size"
    )


def _growing_updates(curves: Curves, blocks: Sequence[int]) -> str | None:
    for number in blocks:
        ratios = curves.layers.columns["update_ratio"][:, number].copy()
        ratios[: settled(curves.layers).start] = np.nan  # they grow with the learning rate there
        ratios[np.isnan(curves.layers.lr)] = np.nan
        if text := _reaches(curves, ratios, UPDATE_LIMIT, UPDATE_LIMIT / 10):
            return f"what a step changes of the weights of {curves.layers.layers[number]} {text}"
    return None


def noisy_gradients(curves: Curves) -> str | None:
    """Norms behind the warm-up that scatter from step to step several times as much as they did, for 128 steps."""
    norms = np.log(np.maximum(curves.gradient_norm[settled(curves)], 1e-30))
    norms = norms[np.isfinite(norms)]
    count = (len(norms) - 1) // SCATTER_STEPS
    if count < 8:
        return None
    apart = np.abs(np.diff(norms))[-count * SCATTER_STEPS :].reshape(count, SCATTER_STEPS)
    scatter = np.median(apart, axis=1)
    usual, now = float(np.median(scatter[:-2])), float(scatter[-2:].min())
    if now < SCATTER_GROWTH * max(usual, LEAST_SCATTER):
        return None
    before, after = np.expm1(usual), np.expm1(now)
    return f"gradient norms of neighbouring steps differ by {after:.0%} (median), where {before:.0%} was usual"


def fp16_scale(curves: Curves) -> str | None:
    """A loss scale that fell at measurement after measurement, to 16 or below."""
    scale = curves.layers.loss_scale[np.isfinite(curves.layers.loss_scale)]
    if not curves.facts.is_fp16 or len(scale) < MEASUREMENTS + 1:
        return None
    newest = scale[-MEASUREMENTS - 1 :]
    if newest[-1] > 16 or (np.diff(newest) > 0).any() or not newest[-1] < scale.max():
        return None
    return f"the loss scale fell from {scale.max():g} to {newest[-1]:g}"


# ---- time and schedule


def stalled_data(curves: Curves) -> str | None:
    """Waits for batches over 5 % of the newest 200 steps, and in a tenth of them, the longest aside."""
    seconds, waits = np.nan_to_num(curves.seconds[-200:]), np.nan_to_num(curves.data_seconds[-200:])
    if len(seconds) < MIN_STEPS or not seconds.sum():
        return None
    usual = waits <= np.quantile(waits, 0.95)
    share = float(waits[usual].sum() / seconds[usual].sum())
    if share < 0.05 or (waits > 0.05 * seconds).mean() < 0.1 or waits[usual].mean() < LEAST_WAIT:
        return None
    worst = int(waits.argmax())
    at = curves.step[-len(waits) :][worst]
    return f"{100 * share:.0f} % of the last {len(seconds)} steps was waiting; step {at:,} waited {waits[worst]:.3g} s"


def floor_rate(curves: Curves) -> str | None:
    """The newest tenth of the steps, at the least rate since the warm-up, which is under 5 % of the largest."""
    lr = curves.lr[settled(curves)]
    if len(lr) < 2 * MIN_STEPS:
        return None
    peak = max(curves.facts.peak_rate, float(lr.max()))
    least = float(lr.min())
    flat = np.flatnonzero(lr > least * (1 + 1e-6))
    since = int(flat[-1]) + 1 if len(flat) else 0
    if least > 0.05 * peak or len(lr) - since < len(lr) / 10:
        return None
    first = curves.step[-(len(lr) - since)]
    return f"{len(lr) - since:,} steps, from step {first:,} on, have a learning rate of {least:.2g}"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        vanishing_gradients,
        exploding_gradients,
        plateau,
        saddle,
        oscillation,
        high_rate,
        overfitting,
        dead_units,
        dead_experts,
        attention_logits,
        output_logits,
        large_updates,
        noisy_gradients,
        fp16_scale,
        nonfinite_steps,
        stalled_data,
        floor_rate,
        above_unigram,
    )
}
