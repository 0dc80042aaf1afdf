"""The host's judgement."""

from hornbook.errors import Exit
from hornbook.run.config import GuardConfig
from hornbook.run.guard import Guard, Verdict


def judge_all(applied: list[bool], max_skips: int) -> list[Verdict]:
    guard, verdicts, before = Guard(GuardConfig(max_skips=max_skips)), [], 0
    for each in applied:
        verdicts.append(guard.judge(each, before))
        before = verdicts[-1].in_a_row
    return verdicts


def test_good_steps_reset_the_count() -> None:
    verdicts = judge_all([True, False, False, True, False], 2)
    assert [verdict.in_a_row for verdict in verdicts] == [0, 1, 2, 0, 1]
    assert [verdict.skipped for verdict in verdicts] == [False, True, True, False, True]
    assert not any(verdict.exhausted for verdict in verdicts)


def test_one_more_than_allowed_ends_the_run() -> None:
    assert [verdict.exhausted for verdict in judge_all([False] * 4, 3)] == [False, False, False, True]
    assert judge_all([False], 0)[0].exhausted


def test_the_error_says_what_to_do() -> None:
    error = Guard(GuardConfig(max_skips=1)).error(Verdict(True, 2, True), 17)
    assert error.exit_code == Exit.DIVERGED
    assert "2 steps in a row, up to step 17" in str(error)


def test_refusals_by_which_the_fp16_scale_finds_its_size_do_not_count() -> None:
    guard = Guard(GuardConfig(max_skips=0))
    verdict = guard.judge(False, 0, expected=True)
    assert (verdict.skipped, verdict.in_a_row, verdict.exhausted) == (True, 0, False)
    assert guard.judge(False, 0).exhausted
