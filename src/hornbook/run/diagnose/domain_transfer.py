"""What training on one domain does to another: losses by domain and stage, and what follows from them.

A stage is `before`, or after training with some share of replay; with b and a the losses before and after on a domain:

    adaptation           b - a on the new domain
    forgetting           a - b on the general one; backward transfer is its negative (Lopez-Paz and Ranzato 2017,
                         arXiv 1706.08840, in losses: above 0 is better)
    forward transfer     ln V - b on the new domain: what the model knew of it beforehand, beside one that knows
                         nothing, which gives each of V tokens the same probability

Of several domains learned one after another, R[i][j] is the loss on domain j after stage i, stage 0 before training:

    adaptation           R[j-1][j] - R[j][j]
    forgetting           R[T][j] - R[j][j] after the last stage T; of general text R[T] - R[0]
    backward transfer    the mean of R[j][j] - R[T][j] over all domains but the last
    forward transfer     the mean of R[0][j] - R[j-1][j] over all but the first: what others taught of it beforehand

Intervals are 95 %, Student's t over seeds, of the differences of each seed.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from hornbook.data.corpus import REPLAY
from hornbook.errors import UsageError

_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Quantile 0.975 of Student's t for 1 to 10 degrees of freedom."""
DOMAINS = ("domain", "general")


@dataclass(frozen=True)
class SeedMean:
    """A mean over seeds."""

    mean: float
    half: float | None
    """Half the width of its 95 % interval; None with one seed."""

    @staticmethod
    def of(values: Sequence[float]) -> "SeedMean":
        """Mean and interval of one value per seed."""
        count = len(values)
        if count < 2:
            return SeedMean(values[0], None)
        # Beyond the table: above the quantile by at most 0.6 %.
        quantile = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else 1.96 + 2.72 / (count - 1)
        return SeedMean(statistics.fmean(values), quantile * statistics.stdev(values) / math.sqrt(count))

    @property
    def text(self) -> str:
        """`0.1234 +- 0.0056`."""
        return f"{self.mean:.4f}" + ("" if self.half is None else f" +- {self.half:.4f}")

    def as_dict(self) -> dict[str, float | None]:
        """For JSON."""
        return {"mean": self.mean, "half": self.half}


def domain_losses(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Loss per token on each of `DOMAINS`, from the scores of sources. UsageError where one has none."""
    found: dict[str, float] = {}
    for domain in DOMAINS:
        mine = [score for name, score in sources.items() if name.startswith(REPLAY) == (domain == "general")]
        tokens = sum(score["tokens"] for score in mine)
        if not tokens:
            raise UsageError(
                f"the {domain} data have no validation text, so nothing can be compared: tokenize them with "
                "text.validation above 0"
            )
        found[domain] = sum(score["loss"] * score["tokens"] for score in mine) / tokens
    return found


@dataclass(frozen=True)
class Stage:
    """Losses after training with one share of replay, of each seed in the order of `seeds`."""

    share: float
    after: dict[str, list[float]] = field(default_factory=dict)
    before: dict[str, list[float]] = field(default_factory=dict)
    bits: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """By source, text held out by time among them: bits per byte before and after, of each seed."""

    @property
    def name(self) -> str:
        """`5 % replay`."""
        return share_name(self.share)

    def change(self, domain: str) -> SeedMean:
        """Loss after less loss before."""
        return SeedMean.of([a - b for a, b in zip(self.after[domain], self.before[domain], strict=True)])


@dataclass(frozen=True)
class Adaptation:
    """All stages of one adaptation."""

    stages: list[Stage]
    vocab: int
    """Tokens of the vocabulary."""

    @property
    def before(self) -> dict[str, float]:
        """Losses of the model that all runs start from."""
        return {domain: statistics.fmean(self.stages[0].before[domain]) for domain in DOMAINS}

    @property
    def forward_transfer(self) -> float:
        """What the model knew of the domain beforehand, in nats per token."""
        return math.log(self.vocab) - self.before["domain"]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        stages = [
            {
                "share": stage.share,
                "losses": {domain: SeedMean.of(stage.after[domain]).as_dict() for domain in DOMAINS},
                "seeds": stage.after,
                "adaptation": _negative(stage.change("domain")).as_dict(),
                "forgetting": stage.change("general").as_dict(),
                "backward_transfer": _negative(stage.change("general")).as_dict(),
                "bits_per_byte": {source: _bits(pairs)[1] for source, pairs in stage.bits.items()},
            }
            for stage in self.stages
        ]
        return {"before": self.before, "forward_transfer": self.forward_transfer, "stages": stages}

    def markdown(self) -> str:
        """The report as tables."""
        lines = [
            "| stage | loss on the domain | loss on general text | adaptation | forgetting |",
            "|---|---|---|---|---|",
        ]
        lines.append(f"| before | {self.before['domain']:.4f} | {self.before['general']:.4f} | | |")
        for stage in self.stages:
            cells = [SeedMean.of(stage.after[domain]) for domain in DOMAINS]
            cells += [_negative(stage.change("domain")), stage.change("general")]
            lines.append(f"| {stage.name} | {' | '.join(each.text for each in cells)} |")
        seeds = len(self.stages[0].after["domain"])
        return "\n".join(
            [
                *lines,
                "",
                *self._sources(),
                f"{note(seeds)} Forward transfer {self.forward_transfer:.4f}; backward transfer is the "
                "negative of forgetting.",
                "",
            ]
        )

    def _sources(self) -> list[str]:
        """A table of bits per byte by source."""
        if not self.stages[0].bits:
            return []
        names = [stage.name for stage in self.stages]
        lines = [f"| bits per byte | before | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
        for source, pairs in self.stages[0].bits.items():
            cells = [_bits(stage.bits[source])[0] for stage in self.stages]
            lines.append(f"| {source} | {statistics.fmean(b for b, _ in pairs):.4f} | {' | '.join(cells)} |")
        return [*lines, ""]


@dataclass(frozen=True)
class Chain:
    """Domains learned one after another with one share of replay."""

    share: float
    names: list[str]
    """Of the general text and, in the order of learning, of the domains."""
    losses: Float[np.ndarray, " seeds stages texts"]
    """After each stage, the first one before training; texts as `names`."""

    @property
    def _own(self) -> Float[np.ndarray, " seeds texts"]:
        """Loss on each text after the stage that trained on it; on general text before training."""
        return np.diagonal(self.losses, axis1=1, axis2=2)

    def adaptation(self, text: int) -> SeedMean:
        """Of domain number `text`, from 1."""
        return SeedMean.of((self.losses[:, text - 1, text] - self._own[:, text]).tolist())

    def forgetting(self, text: int) -> SeedMean:
        """Of a text but the last one, from the stage that trained on it to the last stage."""
        return SeedMean.of((self.losses[:, -1, text] - self._own[:, text]).tolist())

    @property
    def backward_transfer(self) -> SeedMean:
        """Above 0: later domains made the model better on earlier ones."""
        return SeedMean.of((self._own - self.losses[:, -1])[:, 1:-1].mean(1).tolist())

    @property
    def forward_transfer(self) -> SeedMean:
        """Above 0: earlier domains made the model better on later ones before it was trained on these."""
        later = np.stack([self.losses[:, 0, j] - self.losses[:, j - 1, j] for j in range(2, len(self.names))])
        return SeedMean.of(later.mean(0).tolist())

    def final(self) -> tuple[SeedMean, SeedMean]:
        """Loss on general text, and mean loss on the domains, after the last stage."""
        last = self.losses[:, -1]
        return SeedMean.of(last[:, 0].tolist()), SeedMean.of(last[:, 1:].mean(1).tolist())

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON; `matrix`: mean losses, a row for each stage."""
        domains = range(1, len(self.names))
        return {
            "share": self.share,
            "texts": self.names,
            "matrix": self.losses.mean(0).tolist(),
            "seeds": self.losses.tolist(),
            "adaptation": {self.names[j]: self.adaptation(j).as_dict() for j in domains},
            "forgetting": {name: self.forgetting(j).as_dict() for j, name in enumerate(self.names[:-1])},
            "backward_transfer": self.backward_transfer.as_dict(),
            "forward_transfer": self.forward_transfer.as_dict(),
        }

    def markdown(self) -> str:
        """The matrix, and what follows from it."""
        lines = [f"{share_name(self.share)}, loss on", "", f"| after | {' | '.join(self.names)} |"]
        lines.append("|---|" + "---|" * len(self.names))
        for stage, name in enumerate(["before", *self.names[1:]]):
            means = [SeedMean.of(self.losses[:, stage, text].tolist()).text for text in range(len(self.names))]
            lines.append(f"| {name} | {' | '.join(means)} |")
        adaptation = ["", *(self.adaptation(j).text for j in range(1, len(self.names)))]
        lines.append(f"| adaptation | {' | '.join(adaptation)} |")
        forgetting = [*(self.forgetting(j).text for j in range(len(self.names) - 1)), ""]
        lines.append(f"| forgetting | {' | '.join(forgetting)} |")
        transfer = f"Forward transfer {self.forward_transfer.text}, backward transfer {self.backward_transfer.text}."
        return "\n".join([*lines, "", transfer, ""])


@dataclass(frozen=True)
class Chains:
    """The same domains in the same order, with each share of replay."""

    shares: list[Chain]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        return {"chains": [each.as_dict() for each in self.shares]}

    def markdown(self) -> str:
        """The report as tables."""
        return "\n".join([*(each.markdown() for each in self.shares), note(len(self.shares[0].losses)), ""])


def share_name(share: float) -> str:
    """`5 % replay`."""
    return f"{100 * share:g} % replay"


def note(seeds: int) -> str:
    """What the figures of a report are."""
    return f"Nats per token, {seeds} seeds" + (", 95 % intervals (Student's t)." if seeds > 1 else ".")


def _bits(pairs: Sequence[tuple[float, float]]) -> tuple[str, dict[str, Any]]:
    """Bits per byte of a source after training and how far from before, for people and for JSON."""
    after, change = SeedMean.of([a for _, a in pairs]), SeedMean.of([a - b for b, a in pairs])
    sign = "+" if change.mean > 0 else ""
    record = {"before": statistics.fmean(b for b, _ in pairs), "after": after.as_dict(), "change": change.as_dict()}
    return f"{after.text} ({sign}{change.text})", record


def _negative(found: SeedMean) -> SeedMean:
    return SeedMean(-found.mean, found.half)
