"""What people say about examples of each rule, and the precision that follows from it."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hornbook.errors import IntegrityError, UsageError
from hornbook.journal import Appender, read_records
from hornbook.text.decide import KEPT

SAMPLES, REVIEWS = "samples.jsonl", "reviews.jsonl"


@dataclass(frozen=True, slots=True)
class Example:
    """A document that a rule dropped, or (reason "kept") that none did."""

    reason: str
    source: str
    id: str
    origin: str
    bytes: int
    text: str
    """Its beginning, after the edits."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How often people agreed with a rule."""

    right: int
    wrong: int

    @property
    def share(self) -> float:
        """Of those that were judged."""
        return self.right / (self.right + self.wrong)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval (Wilson 1927)."""
        count, z = self.right + self.wrong, 1.96
        middle = (self.share + z * z / (2 * count)) / (1 + z * z / count)
        half = z * math.sqrt(self.share * (1 - self.share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
        return max(0.0, middle - half), min(1.0, middle + half)


def read_examples(data: Path) -> list[Example]:
    """The examples that prepare kept. Raises UsageError where there are none, IntegrityError where they are damaged."""
    path = data / SAMPLES
    try:
        return [Example(**json.loads(line)) for line in path.read_text().splitlines()]
    except FileNotFoundError as error:
        raise UsageError(
            f"{path} is not there: prepare the folder with `hornbook prepare PATH... --out {data}`"
        ) from error
    except (OSError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is damaged ({error}); prepare again with --overwrite") from error


def judge(data: Path, example: Example, right: bool) -> None:
    """Keep a judgement; the last about a document and a reason counts."""
    with Appender(data / REVIEWS, sync_seconds=0) as file:
        file.append({"reason": example.reason, "id": example.id, "origin": example.origin, "right": right})


def judged(data: Path) -> dict[tuple[str, str], bool]:
    """(reason, origin) -> whether the rule was right."""
    records = [record for record, _ in read_records(data / REVIEWS)] if (data / REVIEWS).exists() else []
    return {(record["reason"], record["origin"]): record["right"] for record in records}


def precisions(data: Path) -> dict[str, Precision]:
    """Reason -> precision, of reasons with judgements; that of "kept" is how many documents deserved to stay."""
    found: dict[str, list[int]] = {}
    for (reason, _), right in judged(data).items():
        found.setdefault(reason, [0, 0])[not right] += 1
    ordered = sorted(found, key=lambda reason: (reason == KEPT, reason))
    return {reason: Precision(*found[reason]) for reason in ordered}


def as_json(found: dict[str, Precision]) -> dict[str, Any]:
    """For --json."""
    return {reason: {**asdict(each), "share": each.share, "interval": each.interval} for reason, each in found.items()}
