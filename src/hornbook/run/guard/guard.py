"""The guard of a run: what the next step may not exceed, and what the last one says about the run.

Plain numbers in, plain numbers out: every rank has the same losses and norms, and so the same guard. Its state is saved
and rewound with the checkpoint; what was decided is in the ledger, and is not.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from hornbook.optim.config.clipping_config import StepLimits
from hornbook.run.guard.detectors import (
    ABOVE_Z,
    RUN_UP,
    SPIKE_LOSS_Z,
    SPIKE_NORM_Z,
    Drift,
    Overflows,
    Probes,
    SpikeWatch,
)
from hornbook.run.guard.policy import Detection, Rule, Spans
from hornbook.run.guard.robust_statistics import TrendWindow, middle_of
from hornbook.run.guard.settings import HARD, SettingsWatch
from hornbook.settings.training import GuardConfig

ARMED_AFTER = 64
"""Steps after which it judges, if the warm-up of the learning rate is over; fewer where `guard.window` is smaller."""
CLIP_TO_Z = 3.0
"""Deviations over the median to which a large gradient is clipped."""
LEAST_LOG_DEVIATION = 0.02
"""Of the logarithm of norms; else a run of equal norms would make the next one stand out, however near it is."""
HIGH_LOSSES = 3
"""Steps in a row that are refused for their loss alone, with gradients that do not stand out: then it is the data that
has changed, and it is learned. Where gradients stand out too it may be poison, which clipping does not keep out: an
optimizer that divides by its second moments learns from a clipped gradient nearly as fast."""
FIRST = 16
"""Losses of the first steps, whose median is what a model loses that has learned nothing yet."""
LEARNED = 0.1
"""Share of the first losses. Where the usual loss is below, the model knows nearly all of its targets. Then every batch
with a hard one stands far out, and must be learned: no step is clipped or refused for a loss up to the first ones."""
SKIPS, SKIP_SPAN = 10, 1000
"""Refused updates that are too many, within so many steps."""
LASTING, LEAST_LASTING = 64, 16
"""Steps for which the loss stays high before the run goes back."""
GAP, LEAST_GAP = 64, 16
"""Steps between two that stand out, up to which they belong together."""
LEAST_PROBE_EVERY = 50
DRIFT_FROM = 256
"""Losses of long ago from which on a slow rise is judged."""


@dataclass(frozen=True)
class Seen:
    """What the guard sees of a step."""

    step: int
    """Number of steps done, this one included."""
    loss: float
    norm: float
    """Gradient norm before clipping."""
    applied: bool
    in_a_row: int
    """Refused updates in a row up to this one, those of the search for an fp16 scale aside."""
    clock: int
    """Samples consumed before it."""
    rows: int
    """Samples of it."""
    scale: float | None = None
    """The fp16 scale after it; None: there is none."""
    targets: float = math.inf
    """Targets of it that count: tokens, labels, pairs of answers."""
    rate: float = 0.0
    """`optim.lr` in force."""

    @property
    def is_finite(self) -> bool:
        """Whether loss and norm are, and can be squared in float32."""
        return math.isfinite(self.loss) and math.isfinite(self.norm) and abs(self.norm) < 1e19


class Guard:
    """The guard of one run on one rank."""

    def __init__(
        self,
        config: GuardConfig,
        *,
        steps: int,
        warmup: int,
        suppressed: frozenset[tuple[str, int]] = frozenset(),
        unigram: float | None = None,
    ) -> None:
        """steps: of the whole run; warmup: of its learning rate; suppressed: decisions that are not taken; unigram:
        loss in nats of a model that knows frequencies alone, where the objective has one."""
        self.config, self.spans, self._suppressed = config, Spans(steps), suppressed
        self._warmup, self._unigram = warmup, unigram
        self._watch: SpikeWatch | None = None
        self._norm_zs: list[float] = []
        self._flagged: list[int] = []
        self._skips: list[int] = []
        self.reset()

    def reset(self) -> None:
        """Forget all steps."""
        self._first: list[float] = []
        """Losses of the first steps."""
        self._settings = SettingsWatch(self.spans, self._warmup, self._unigram)
        self.rearm()
        self._excused = 0
        """Onset of what was let go."""
        self._probes, self._overflows = Probes(), Overflows()
        self._segments: list[tuple[int, int, int]] = []
        self.pending: Detection | None = None
        """What asks for a decision before the next step."""
        self.wants_probe = False
        """Whether a slow rise waits to be confirmed."""

    @property
    def acts(self) -> bool:
        """Whether it does what it decides."""
        return self.config.mode in ("safe", "auto")

    def suppresses(self, kind: str, step: int) -> bool:
        """Whether a decision is to be left out."""
        return (kind, step) in self._suppressed

    # ---- before a step

    def limits(self, step: int, rows: int | None = None) -> StepLimits | None:
        """Limits of step number `step`; None: there are none, or it only looks. rows: samples of it, if fewer."""
        if not self.acts or not self._is_armed(step):
            return None
        limits = self._thresholds(self._scatter(rows))
        if self.suppresses("clip", step):
            limits = replace(limits, norm_over=math.inf, norm_to=math.inf)
        return StepLimits(limits.norm_over, limits.norm_to) if self.suppresses("skip", step) else limits

    def _is_armed(self, step: int) -> bool:
        return step > self._warmup and len(self._loss) >= min(ARMED_AFTER, self.config.window)

    def _scatter(self, rows: int | None) -> float:
        """Factor by which losses scatter more and noise of gradients is larger in a step of so many, fewer samples."""
        usual = self._segments[-1][2] if self._segments else 0
        return max(usual / rows, 1.0) ** 0.5 if rows else 1.0

    def _thresholds(self, scatter: float) -> StepLimits:
        config, exp = self.config, lambda z: _single(scatter * math.exp(min(self._norm.at(z), 80.0)))
        loss, spike_loss = self._loss.at(self._loss_limit * scatter), self._loss.at(SPIKE_LOSS_Z * scatter)
        ran_up = max(self._norm_zs[-(RUN_UP - 1) :], default=0.0) > self._spike_norm_z
        spike_norm = -math.inf if ran_up else exp(self._spike_norm_z)
        if self._has_learned:
            return StepLimits(spike_norm=spike_norm, spike_loss=max(spike_loss, self._first_loss))
        return StepLimits(exp(config.clip_z), exp(CLIP_TO_Z), exp(config.skip_norm_z), loss, spike_norm, spike_loss)

    @property
    def _loss_limit(self) -> float:
        """Deviations of the loss beyond which a step is refused.

        Less where the step before was refused with a high loss: batches of one kind scatter about a limit, and each
        that passes below it would be learned.
        """
        if self._high_losses >= HIGH_LOSSES:
            return math.inf
        return min(self.config.skip_loss_z, SPIKE_LOSS_Z if self._loss_is_out else math.inf)

    # ---- after a step

    def judge(self, seen: Seen) -> Iterator[Detection]:
        """Take in a step; yields what it found about it. What needs a decision is `pending` too."""
        armed = self._is_armed(seen.step)
        scatter = self._scatter(seen.rows)
        log_norm = _log(seen.norm / scatter)
        inputs = {"z_loss": self._loss.z(seen.loss) / scatter, "z_norm": self._norm.z(log_norm)} if armed else {}
        z_loss, z_norm = inputs.get("z_loss", 0.0), inputs.get("z_norm", 0.0)
        self._norm_zs = [*self._norm_zs, z_norm][-RUN_UP:]
        self._remember_clock(seen)
        is_known = self._has_learned and seen.loss <= self._first_loss
        flagged = z_norm > self.config.clip_z or z_loss > SPIKE_LOSS_Z
        if (flagged and not is_known) or not seen.applied:
            self._flagged = [each for each in self._flagged if each > seen.step - SKIP_SPAN] + [seen.step]
        rule = self._rule_of_step(seen, *((0.0, 0.0) if is_known else (z_loss, z_norm)))
        if rule is not None:
            yield Detection(rule, seen.step, seen.step, inputs)
        yield from self._spike(seen, inputs, is_told=not is_known)
        by_loss = rule == "D1b" and z_norm <= self.config.clip_z and not self._is_out(z_loss, z_norm)
        yield from self._count(seen, z_loss, by_loss=by_loss)
        usual = self._loss.middle, self._norm.middle
        found = self._settings.judge(seen.step, seen.loss, seen.targets, seen.rate, *usual)
        if found is not None and (found[0] == "change" or self._watch is None):  # of a spike the onset is known
            self._ask(found[0], seen, *found[1:])
        if seen.is_finite:
            self._first = [*self._first, seen.loss][:FIRST]
            self._loss.floor = self._loss_noise(seen.targets)
            self._loss.add(seen.loss)
            self._norm.add(log_norm)
            if not self._has_learned and self._drift.add(min(seen.loss, self._loss.at(SPIKE_LOSS_Z)), least=DRIFT_FROM):
                self.wants_probe = True

    @property
    def _first_loss(self) -> float:
        return middle_of(sorted(self._first)) if self._first else 0.0

    @property
    def _has_learned(self) -> bool:
        """Whether the usual loss is so low that a hard target alone makes a batch stand out."""
        return len(self._first) == FIRST and self._loss.middle <= LEARNED * self._first_loss

    def _loss_noise(self, targets: float) -> float:
        """Deviation that the loss of a batch of so many targets has at least.

        0 for a model that knows nothing, whose loss is the same for all targets.
        """
        middle = self._loss.middle
        return math.sqrt(max(min(middle, self._first_loss - middle), 0.0) * HARD / max(targets, 1.0))

    def _rule_of_step(self, seen: Seen, z_loss: float, z_norm: float) -> Rule | None:
        """Why a step is clipped or refused, or would be."""
        if not seen.is_finite:
            return "D0"
        if self._is_out(z_loss, z_norm) or z_loss > self._loss_limit:
            return "D1b"
        return "D1a" if z_norm > self.config.clip_z else None

    def _is_out(self, z_loss: float, z_norm: float) -> bool:
        """Whether a step is far out whatever the losses before it were: by its norm, or as part of a spike."""
        return z_norm > self.config.skip_norm_z or self._is_spike(z_loss)

    def _is_spike(self, z_loss: float) -> bool:
        return z_loss > SPIKE_LOSS_Z and max(self._norm_zs) > self._spike_norm_z

    @property
    def _spike_norm_z(self) -> float:
        """A gradient that `guard.clip_z` lets pass is no spike: whoever raises it wants such text to be learned."""
        return max(SPIKE_NORM_Z, self.config.clip_z)

    def _spike(self, seen: Seen, inputs: dict[str, Any], *, is_told: bool) -> Iterator[Detection]:
        if self._watch is not None:
            lasting = self.spans.of(LASTING, LEAST_LASTING)
            over = self._watch.add(seen.loss, lasting)
            if over:
                self._ask("D2", seen, self._watch.onset, {"spike": self._watch.step})
            if over is not False:
                self._watch = None
        elif self._is_spike(inputs.get("z_loss", 0.0)):
            onset = self.onset(seen.step)
            least = LEARNED * self._first_loss / ABOVE_Z if self._has_learned else 0.0
            self._watch = SpikeWatch(seen.step, onset, self._loss.middle, max(self._loss.deviation, least))
            if is_told:
                yield Detection("D1c", seen.step, onset, inputs)

    def _count(self, seen: Seen, z_loss: float, *, by_loss: bool) -> Iterator[Detection]:
        """Refused updates, and what too many of them ask for."""
        if by_loss:
            self._high_losses += 1
        elif z_loss <= SPIKE_LOSS_Z or (not seen.applied and self._high_losses < HIGH_LOSSES):
            self._high_losses = 0
        self._loss_is_out = not seen.applied and (self._loss_is_out or z_loss > SPIKE_LOSS_Z)
        if not seen.applied and seen.in_a_row:
            self._skips = [each for each in self._skips if each > seen.step - SKIP_SPAN] + [seen.step]
        overflowed = not seen.applied and not seen.is_finite
        if seen.scale is not None and self._overflows.add(overflowed=overflowed, scale=seen.scale):
            self._ask("D4", seen, self.onset(seen.step), {"scale": seen.scale})
        counts = {"in_a_row": seen.in_a_row, "skips": len(self._skips)}
        if seen.in_a_row > self.config.max_skips and seen.is_finite and not self._loss_is_out:
            yield Detection("level", seen.step, self.onset(seen.step), counts)
            self.rearm()
        elif seen.in_a_row > self.config.max_skips or len(self._skips) > SKIPS:
            self._ask("D1b" if seen.is_finite else "D0", seen, self.onset(seen.step), counts)

    def rearm(self) -> None:
        """Learn anew what is usual: the settings, or the data, are others now."""
        self._loss = TrendWindow(self.config.window)
        self._norm = TrendWindow(self.config.window, LEAST_LOG_DEVIATION)
        self._drift, self._watch = Drift(), None
        self._norm_zs, self._flagged, self._skips = [], [], []
        self._high_losses, self._loss_is_out = 0, False

    def change(self, step: int, patience: int) -> None:
        """The rate, the optimizer or the batch change after `step` steps: what was usual is no measure for one step.

        patience: steps for which the change explains a higher loss.
        """
        first = self._first_loss if len(self._first) == FIRST else None
        self._settings.change(step, patience, self._loss, first)
        self.rearm()

    def meet_other_text(self) -> None:
        """A stage of the mixture begins: nothing that was usual is a measure for it."""
        self._settings.meet_other_text()
        self.rearm()

    def _ask(self, rule: Rule, seen: Seen, onset: int, inputs: dict[str, Any]) -> None:
        if (changed_after := self._settings.suspect) is not None:
            rule, onset = "change", changed_after + 1
        if onset != self._excused:
            self.pending = self.pending or Detection(rule, seen.step, onset, inputs)

    def onset(self, step: int) -> int:
        """The first of the steps that stood out one soon after the other, up to `step`."""
        gap, found = self.spans.of(GAP, LEAST_GAP), step
        for each in reversed(self._flagged):
            if found - each > gap:
                break
            found = each
        return found

    # ---- slow divergence

    @property
    def probe_every(self) -> int:
        """Steps between losses of held-out text; 0: none."""
        every = self.config.probe_every
        return min(every, self.spans.of(every, LEAST_PROBE_EVERY))

    def probed(self, step: int, loss: float) -> float:
        """Take in a loss of held-out text after a step; returns its z."""
        good, self.wants_probe = self._probes.good_step, False
        z, confirmed = self._probes.add(step, loss)
        if confirmed and self.pending is None:
            self.pending = Detection("D3", step, good + 1, {"z_probe": z, "loss_probe": loss})
        return z

    def let_go(self) -> None:
        """Go on in spite of what is pending: it was only to be looked at, or is left out."""
        self._excused = 0 if self.pending is None else self.pending.onset
        self.pending, self._watch, self._skips = None, None, []
        self._probes.high = 0

    # ---- where steps lie in the data

    def _remember_clock(self, seen: Seen) -> None:
        first, clock, rows = self._segments[-1] if self._segments else (seen.step, seen.clock, 0)
        if rows != seen.rows or clock + (seen.step - first) * rows != seen.clock:
            kept = self._segments[-64:] if not self._segments or self._segments[-1][0] != seen.step else []
            self._segments = [*kept, (seen.step, seen.clock, seen.rows)]

    def clock_before(self, step: int) -> int:
        """Samples consumed before a step; of one not done yet, if steps stay as they are."""
        first, clock, rows = next((each for each in reversed(self._segments) if each[0] <= step), self._segments[0])
        return max(clock + (step - first) * rows, 0)

    # ---- checkpoint

    def state(self) -> dict[str, Any]:
        """What `load` takes, for a checkpoint."""
        return {
            "first": list(self._first),
            "loss": self._loss.state(),
            "norm": self._norm.state(),
            "norm_zs": [min(each, 1e9) for each in self._norm_zs],
            "flagged": list(self._flagged),
            "skips": list(self._skips),
            "high_losses": self._high_losses,
            "loss_is_out": self._loss_is_out,
            "watch": None if self._watch is None else asdict(self._watch),
            "drift": self._drift.state(),
            "settings": self._settings.state(),
            "probes": asdict(self._probes),
            "overflows": asdict(self._overflows),
            "segments": list(self._segments),
            "excused": self._excused,
            "pending": None if self.pending is None else asdict(self.pending),
            "wants_probe": self.wants_probe,
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Take over what `state()` returned; None: of a checkpoint without a guard."""
        self.reset()
        if state is None:
            return
        self._first = list(state.get("first", ()))  # checkpoints of before have none
        self._loss.load(state["loss"])
        self._norm.load(state["norm"])
        self._norm_zs, self._flagged, self._skips = (list(state[key]) for key in ("norm_zs", "flagged", "skips"))
        self._excused = state["excused"]
        self._high_losses, self._loss_is_out = state["high_losses"], state["loss_is_out"]
        self._watch = None if state["watch"] is None else SpikeWatch(**state["watch"])
        self._drift.load(state["drift"])
        if "settings" in state:
            self._settings.load(state["settings"])
        self._probes, self._overflows = Probes(**state["probes"]), Overflows(**state["overflows"])
        self._segments = [(first, clock, rows) for first, clock, rows in state["segments"]]
        self.pending = None if state["pending"] is None else Detection(**state["pending"])
        self.wants_probe = state["wants_probe"]


def _log(norm: float) -> float:
    return math.log(max(norm, 1e-30)) if math.isfinite(norm) else norm


def _single(value: float) -> float:
    """Rounded to float32, so that host and device compare with the same number."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.inf
