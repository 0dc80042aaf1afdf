"""Mutated inputs at every door: is each handled, in bounded time and memory?

    python -m benchmarks.reliability.fuzz --inputs 10000 --seed 1 --doors warc html latex wiki

Valid inputs, made here, are mutated (bits, bytes, cuts, repeats, numbers and words that break parsers) and given to the
functions behind the verbs, in this process. An input is handled where its rows are read, or a HornbookError says what
is wrong; anything else that is raised is a defect. Time and memory are bounded for each input.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks import report
from benchmarks.reliability.fuzz_doors import DOORS, QUADRATIC, Door
from hornbook.errors import DoesNotFitError, HornbookError

SECONDS, MEGABYTES = 2.0, 512
"""Of processor time and of memory that one input may take."""
_WORDS = (
    b"Infinity", b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'""', b"true", b"4294967295", b"9223372036854775808",
    b"18446744073709551616", b'"\\ud800"', b"\0", b"\xff\xfe", b"\xf0\x9f", b'["x"]', b"[" * 2000, b"9" * 5000, b"<!--",
    b"-6\r\n", b"\x1b$B", b"+AGE-", b"~{VPND~}", b"<script>", b"</title>", b"<svg>", b"\\verb|", b"&lt;pre&gt;",
)  # fmt: skip


class TooSlow(BaseException):
    """The input took more time than one may; no reader catches it."""


@dataclass
class Tally:
    """What became of the inputs of a door."""

    inputs: int = 0
    handled: int = 0
    uncaught: int = 0
    slow: int = 0
    large: int = 0
    slowest: float = 0.0
    examples: dict[str, str] = field(default_factory=dict)
    """The last lines of each kind of defect."""


def mutate(data: bytes, draw: random.Random, other: bytes = b"") -> bytes:
    """A damaged copy: one to four changes. other: an input of the same kind, of which a piece may be put in."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        place, size = draw.randrange(len(changed) + 1), draw.choice((1, 2, 4, 16, 64))
        match draw.randrange(9):
            case 0 | 1:
                if changed:
                    changed[place % len(changed)] ^= 1 << draw.randrange(8)
            case 2:
                changed[place : place + size] = draw.randbytes(size)
            case 3:
                del changed[place : place + size]
            case 4:
                changed[place:place] = changed[place : place + size] * draw.choice((1, 2, 100, 10_000))
            case 5:
                changed[place:place] = draw.choice(_WORDS)
            case 6:
                _replace_value(changed, draw)
            case 7:
                del changed[draw.randrange(len(changed) + 1) if draw.random() < 0.3 else len(changed) :]
            case 8:
                start = draw.randrange(len(other) + 1)
                changed[place : place + size] = other[start : start + draw.choice((size, len(other)))]
    return bytes(changed)


def _replace_value(changed: bytearray, draw: random.Random) -> None:
    """Put a word in the place of a value, as JSON and TOML have them: what stands behind a colon, `=` or comma."""
    starts = [place for place, byte in enumerate(changed[: 1 << 16]) if byte in b":=,"]
    if starts:
        start = draw.choice(starts) + 1
        end = min((found for mark in b",}]\n>" if (found := changed.find(bytes([mark]), start)) > 0), default=start)
        changed[start:end] = draw.choice(_WORDS)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooSlow in the block after so many seconds of processor time."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def resident() -> int:
    """Megabytes that this process holds at the most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak() -> None:
    """Measure `resident` anew from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def attempt(door: Door, data: bytes, folder: Path, tally: Tally) -> None:
    """Give one input to a door and count what became of it."""
    tally.inputs += 1
    forget_peak()
    before, begun = resident(), time.process_time()
    try:
        with limited(SECONDS):
            door.enter(data, folder)
        tally.handled += 1
    except DoesNotFitError as error:
        tally.large += 1
        tally.examples.setdefault("large", str(error)[:300])
    except HornbookError:
        tally.handled += 1
    except TooSlow:
        tally.slow += 1
        tally.examples.setdefault("slow", "".join(traceback.format_tb(sys.exc_info()[2])[-3:]))
    except (Exception, RecursionError) as error:  # noqa: BLE001 - this is what is looked for
        tally.uncaught += 1
        lines = traceback.format_exception(error)
        tally.examples.setdefault(lines[-2].split("\n")[0].strip(), "".join(lines[-3:])[-600:])
    tally.slowest = max(tally.slowest, time.process_time() - begun)
    if resident() - before > MEGABYTES:
        tally.large += 1


def attack(inputs: int, seed: int, doors: dict[str, Door] | None = None) -> dict[str, Tally]:
    """Every door by turns, `inputs` mutations in all; the same seed gives the same inputs."""
    doors = DOORS if doors is None else doors
    draw, tallies = random.Random(seed), {name: Tally() for name in doors}
    with tempfile.TemporaryDirectory() as temporary:
        seeds = {name: door.seeds(Path(temporary)) for name, door in doors.items()}
        names = list(doors)
        for number in range(inputs):
            name = names[number % len(names)]
            data, other = draw.choice(seeds[name]), draw.choice(seeds[name])
            changed = mutate(data, draw, other) if number >= len(names) else data
            attempt(doors[name], changed, Path(temporary), tallies[name])
    return tallies


def summary(tallies: dict[str, Tally]) -> dict[str, Any]:
    """The sum over all doors."""
    total: Counter[str] = Counter()
    for tally in tallies.values():
        total.update({name: getattr(tally, name) for name in ("inputs", "handled", "uncaught", "slow", "large")})
    return {**total, "slowest_seconds": round(max(tally.slowest for tally in tallies.values()), 2)}


def growth(count: int = 60_000) -> dict[str, list[float]]:
    """Processor seconds of each input of `QUADRATIC` at one, two and four times `count`, the best of three."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, make in QUADRATIC.items():
            door, times = DOORS[name.partition("-")[0]], []
            for data in (make(count * factor) for factor in (1, 2, 4)):
                spent = []
                for _ in range(3):
                    begun = time.process_time()
                    with suppress(HornbookError):
                        door.enter(data, Path(temporary))
                    spent.append(time.process_time() - begun)
                times.append(round(min(spent), 4))
            found[name] = times
    return found


def run(inputs: int = 10_000, seeds: tuple[int, ...] = (1, 2), doors: Sequence[str] = ()) -> None:
    """Attack by each seed, print a table and, where all doors are attacked, write benchmarks/results/fuzz.json."""
    found: dict[str, Any] = {}
    header = ("door", "inputs", "handled", "uncaught", "too slow", "too large", "slowest s")
    for seed in seeds:
        tallies = attack(inputs, seed, {name: DOORS[name] for name in doors or DOORS})
        each = {name: (t.inputs, t.handled, t.uncaught, t.slow, t.large, t.slowest) for name, t in tallies.items()}
        print(f"seed {seed}", report.table(header, [(name, *row) for name, row in each.items()]), sep="\n")
        for name, tally in tallies.items():
            for example in tally.examples.values():
                print(f"--- {name}\n{example}")
        found[str(seed)] = {"total": summary(tallies), "doors": each}
    if doors:
        return
    grown = growth()
    print(report.table(("seconds at", "60,000", "120,000", "240,000"), [(name, *row) for name, row in grown.items()]))
    report.write("fuzz", {"seconds": SECONDS, "megabytes": MEGABYTES, "seeds": found, "growth": grown})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--doors", nargs="*", default=[], choices=DOORS, help="these doors alone")
    words = parser.parse_args()
    run(words.inputs, tuple(words.seed), words.doors)
