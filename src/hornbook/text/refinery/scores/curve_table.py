"""A curve as a table for people: the same cells on the terminal and on the page."""

from collections.abc import Sequence

from hornbook.text.refinery.scores.curve import Point

_SHOWN = 3
"""Groups of which least stays."""


def curve_table(points: Sequence[Point], now: float | None) -> list[tuple[str, ...]]:
    """A header, and a row for each value; `now` is today's."""
    vocabulary = ("different words", "running words") if any(point.words for point in points) else ()
    return [("value", "documents", "share", "bytes", *vocabulary, "least kept"), *(_row(each, now) for each in points)]


def _row(point: Point, now: float | None) -> tuple[str, ...]:
    least = sorted(point.groups.items(), key=lambda item: item[1])[:_SHOWN]
    return (
        f"{point.value:g}{' (now)' if point.value == now else ''}",
        f"{point.documents:,}",
        f"{point.share:.1%}",
        f"{point.bytes:,}",
        *_words(point),
        ", ".join(f"{name} {share:.0%}" for name, share in least),
    )


def _words(point: Point) -> tuple[str, ...]:
    if (found := point.words) is None:
        return ()
    pairs = ((found.vocabulary, found.vocabulary_error), (found.running, found.running_error))
    return tuple(f"{share:.1%} +-{error * 100:.1f}" for share, error in pairs)
