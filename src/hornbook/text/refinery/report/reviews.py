"""People's judgements on examples of each rule, and the precision they imply.

A judgement is about one text and one reason, so it outlives changes of a rule's settings; precision does not. It is
estimated from examples of the present folder alone: those whose keyed hashes are least, so a random sample of what
the rule drops now. They are asked about in the order of other hashes, and only those before the first that nobody
has judged count, so that neither stopping early nor labels from earlier settings (which are of documents that both
settings drop, often the clearer ones) choose what is counted.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.files.journal import Appender, read_records
from hornbook.text.refinery.pipeline.decide import KEPT

SAMPLES, REVIEWS = "samples.jsonl", "reviews.jsonl"


@dataclass(frozen=True, slots=True)
class Example:
    """A document that a rule dropped, or (reason "kept") that no rule dropped."""

    reason: str
    source: str
    id: str
    origin: str
    cluster: str
    """Hash of its edited text, in hex."""
    bytes: int
    text: str
    """The start of the edited text."""


@dataclass(frozen=True, slots=True)
class Precision:
    """How often people agreed with a rule."""

    right: int
    wrong: int

    @property
    def share(self) -> float:
        """Share of the judged examples on which people agreed."""
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
            f"{path} is not there: prepare the folder with `hornbook prepare PATH... --out {quoted(data)}`"
        ) from error
    except (OSError, TypeError, ValueError) as error:
        raise IntegrityError(f"{path} is damaged ({error}); prepare again with --overwrite") from error


def judge(data: Path, example: Example, right: bool) -> None:
    """Store a judgement; the last one about a text and a reason counts."""
    with Appender(data / REVIEWS, sync_seconds=0) as file:
        about = {"reason": example.reason, "id": example.id, "origin": example.origin, "cluster": example.cluster}
        file.append({**about, "right": right})


def judged(data: Path) -> list[tuple[Example, bool | None]]:
    """The examples in a fixed random order, with each whether the rule was right (None: not judged).

    Raises what `read_examples` raises, and IntegrityError where judgements are damaged.
    """
    said: dict[tuple[str, ...], bool] = {}
    for record in read_records(data / REVIEWS):
        try:
            said[record["reason"], record["origin"], record.get("cluster", "")] = record["right"]
        except KeyError as error:
            raise IntegrityError(f"{data / REVIEWS}: a line has no {error}: take it out, or mend it") from error
    examples = sorted(read_examples(data), key=_order)
    return [(each, said.get((each.reason, each.origin, each.cluster))) for each in examples]


def _order(example: Example) -> int:
    """Without the origin: the order of texts does not depend on where the files are."""
    return xxhash.xxh3_64_intdigest(f"{example.cluster}\n{example.reason}".encode())


def precisions(data: Path) -> dict[str, Precision]:
    """Reason -> precision, of reasons with judgements; of "kept": the share of documents that should be kept."""
    found: dict[str, list[int]] = {}
    ended: set[str] = set()
    for example, right in judged(data):
        if right is None:
            ended.add(example.reason)
        elif example.reason not in ended:
            found.setdefault(example.reason, [0, 0])[not right] += 1
    ordered = sorted(found, key=lambda reason: (reason == KEPT, reason))
    return {reason: Precision(*found[reason]) for reason in ordered}
