"""The guard on the records of a run: what it would find if it saw the steps now."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hornbook.run.doctor.curves import Curves, settled
from hornbook.run.guard.guard import Guard, Seen
from hornbook.run.guard.policy import REASONS, Detection
from hornbook.settings.training import GuardConfig

SINGLE = {"D0": "not finite", "D1a": "large gradient", "D1b": "far out", "D1c": "spike", "level": "new gradient level"}
"""Rules of single steps; `REASONS` are those for which a run goes back."""

NEWEST = 10_000
"""Steps that the guard reads of a longer run: it takes about a second for them."""


def replay_guard(steps: Sequence[Mapping[str, Any]], curves: Curves) -> dict[str, list[Detection]]:
    """Return the detections of a guard with default limits in the newest steps, by its words.

    steps: the records that `curves` were made of. They have no fp16 scale and no probes of held-out text, so that D3
    and D4 are not judged.
    """
    found, in_a_row = dict[str, list[Detection]](), 0
    unigram, warmup, rate = curves.facts.unigram_loss, settled(curves).start, curves.facts.peak_rate
    guard = Guard(GuardConfig(mode="observe"), steps=len(steps), warmup=warmup, unigram=unigram)
    losses, norms = curves.loss[-NEWEST:].tolist(), curves.gradient_norm[-NEWEST:].tolist()
    for each, loss, norm in zip(steps[-NEWEST:], losses, norms, strict=False):
        is_refused = bool(each.get("skipped"))
        in_a_row = in_a_row + 1 if is_refused else 0
        place = each.get("first_sample") or 0, each.get("num_samples") or 1
        targets = each.get("step_tokens") or math.inf
        seen = Seen(each["step"], loss, norm, not is_refused, in_a_row, *place, targets=targets, rate=rate)
        for detection in guard.judge(seen):
            found.setdefault(SINGLE[detection.rule], []).append(detection)
        if guard.pending is not None:
            found.setdefault(REASONS[guard.pending.rule], []).append(guard.pending)
            guard.let_go()
    return found
