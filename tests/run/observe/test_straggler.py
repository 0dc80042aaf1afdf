"""A rank that works longer than the others is named once with its section, and so is its end; waiting is no work."""

import pytest

from hornbook.run.observe.straggler import LASTING, NAMES, Straggler, StragglerDetector, slowest

USUAL = {"data": 0.1, "forward": 1.0, "backward": 2.0, "communication": 0.5, "optimizer": 0.3, "host": 0.1}


def rows(ranks: int, slow: int | None = None, **more: float) -> list[list[float]]:
    late = sum(more.values())
    own = [{**USUAL} for _ in range(ranks)]
    for rank, row in enumerate(own):
        for name, seconds in more.items() if rank == slow else [("communication", late)]:
            row[name] += seconds
    return [[row[name] for name in NAMES] for row in own]


def judge(*intervals: list[list[float]], factor: float = 1.5, least: float = 0.0) -> list[Straggler]:
    detector = StragglerDetector(factor, least)
    found = [detector.judge(10 * n + 1, 10, each, [0] * len(each)) for n, each in enumerate(intervals)]
    return [each for each in found if each is not None]


@pytest.mark.parametrize("section", [name for name in NAMES if name != "communication"])
def test_rank_and_section_are_named_once(section: str) -> None:
    (found,) = judge(rows(4), *[rows(4, 2, **{section: 3.0})] * 20)
    assert (found.rank, found.section, found.since, found.ended) == (2, section, 11, False)
    assert found.factor == pytest.approx(6.5 / 3.5)
    assert (found.seconds, found.usual) == (
        pytest.approx((USUAL[section] + 3) / 10),
        pytest.approx(USUAL[section] / 10),
    )
    assert str(found).startswith(f"rank 2 is slow since step 11: it works 1.9 x as long as the others; {section} ")


def test_its_end_is_told() -> None:
    slow = [rows(3, 0, forward=9.0)] * LASTING
    _, found = judge(*slow, *[rows(3)] * LASTING)
    assert (found.rank, found.ended, found.since) == (0, True, 10 * LASTING + 1)
    assert str(found) == f"rank 0 is as fast as the others again since step {10 * LASTING + 1}"


def test_another_rank_takes_its_place() -> None:
    first, second = judge(*[rows(3, 0, forward=9.0)] * LASTING, *[rows(3, 1, data=9.0)] * LASTING)
    assert (first.rank, second.rank, second.section) == (0, 1, "data")


def test_what_does_not_last_or_is_too_small_is_not_told() -> None:
    short = [rows(2, 1, data=9.0)] * (LASTING - 1)
    assert judge(*short, rows(2), *short, rows(2)) == []
    assert judge(*[rows(2, 1, data=1.0)] * 20) == []
    assert judge(*[rows(2, 1, communication=99.0)] * 20) == []  # it waits: it is not late


def test_short_intervals_are_put_together() -> None:
    assert judge(*[rows(2, 1, data=9.0)] * 2 * LASTING, least=20.0) != []
    assert judge(*[rows(2, 1, data=9.0)] * 2 * (LASTING - 1), least=20.0) == []


def test_stages_of_a_pipeline_are_compared_with_their_like() -> None:
    uneven = [*rows(2), *rows(2)]
    uneven[2] = uneven[3] = [3 * seconds for seconds in uneven[3]]
    found = slowest(uneven, [0, 0, 1, 1])
    assert found is not None
    assert found.factor == pytest.approx(1.0)
    assert slowest(rows(2, 1, data=9.0), [0, 1]) is None
