"""A lasting fall of the throughput is noticed once, with its cause; noise, single windows and other batches are not."""

import pytest

from hornbook.run.observe.slowdown import BASELINE, GROUPS, LASTING, Slowdown, SlowdownDetector, Window

USUAL = {"data": 0.03, "forward": 0.3, "backward": 0.6, "communication": 0.02, "optimizer": 0.04, "host": 0.01}
PHASE = {group: names[-1] for group, names in GROUPS.items()}


def windows(count: int, first: int = 1, steps: int = 10, size: int = 100, **more: float) -> list[Window]:
    phases = {name: steps * (seconds + more.get(name, 0.0)) for name, seconds in USUAL.items()}
    rank = "rank 1 works 2.0 x as long as the others" if "communication" in more else ""
    every = range(first, first + count * steps, steps)
    return [Window(at, steps, steps * size, sum(phases.values()), phases, rank) for at in every]


def judge(*parts: list[Window], factor: float = 1.5) -> list[Slowdown]:
    detector = SlowdownDetector(factor)
    return [found for part in parts for window in part if (found := detector.judge(window)) is not None]


@pytest.mark.parametrize("group", GROUPS)
def test_the_phase_that_grew_is_named_with_its_shares(group: str) -> None:
    (found,) = judge(windows(20), windows(9, first=201, **{PHASE[group]: 1.0}))
    before = sum(USUAL[name] for name in GROUPS[group])
    assert (found.since, found.cause, found.ended) == (201, group, False)
    assert (found.usual, found.now) == (pytest.approx(100), pytest.approx(50))
    assert (found.before_share, found.share) == (pytest.approx(before), pytest.approx((before + 1) / 2))
    assert f"{group} {100 * before:.0f} % -> {50 * (before + 1):.0f} % of the step" in str(found)


def test_a_slow_rank_is_named_where_the_others_wait() -> None:
    (found,) = judge(windows(20), windows(3, communication=1.0))
    assert "rank 1 works 2.0 x as long as the others" in str(found)


def test_what_does_not_last_or_is_too_small_is_not_told() -> None:
    short, small = windows(LASTING - 1, data=1.0), windows(50, data=0.45)
    assert judge(windows(20), short, windows(1), short, windows(5)) == []
    assert judge(windows(20), small) == []
    assert len(judge(windows(20), small, factor=1.4)) == 1


def test_it_is_told_once_and_so_is_its_end() -> None:
    fell, back = judge(windows(20), windows(100, data=1.0), windows(30, first=1301))
    assert (fell.ended, back.ended, back.since) == (False, True, 1301)
    assert str(back).startswith("throughput is back: 100 tokens/s since step 1,301")


def test_another_batch_size_starts_anew() -> None:
    """A ramp of the batch: fewer tokens in the same time are no slowdown."""
    assert judge(windows(20), windows(40, size=25)) == []
    assert len(judge(windows(20), windows(20, size=25), windows(5, size=25, data=1.0))) == 1


def test_nothing_is_judged_before_there_is_a_usual() -> None:
    assert judge(windows(BASELINE - 1), windows(1, data=1.0)) == []
