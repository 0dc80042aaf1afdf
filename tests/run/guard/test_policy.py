"""The ladder: what follows from a finding and from what was done before."""

import pytest

from hornbook.run.guard.policy import Detection, Spans, decide
from hornbook.run.ledger.decisions import Decision, decisions_of

LONG = Spans(100_000)
SPIKE = Detection("D2", step=5_100, onset=5_000)


def rollback(onset: int = 5_000, left_out: int = 200) -> Decision:
    return Decision("rollback", onset + 100, onset - 51, left_out)


def test_the_first_time_it_goes_back_and_leaves_out_the_data() -> None:
    action = decide(SPIKE, [], "safe", LONG)
    assert (action.kind, action.first, action.last, action.overlay) == ("rollback", 4_950, 5_150, False)
    assert action.effective_step == 4_949
    short = decide(Detection("D0", 5_003, 5_000), [], "safe", LONG)
    assert short.last - short.first + 1 == 200


def test_spans_shrink_with_the_run() -> None:
    action = decide(Detection("D2", step=520, onset=500), [], "safe", Spans(1_000))
    assert (action.first, action.last) == (495, 525)
    assert decide(Detection("D0", 3, 1), [], "safe", Spans(1_000)).first == 1


def test_what_was_refused_until_now_may_last_as_long_again() -> None:
    refused = Detection("D1b", 182, 174, {"in_a_row": 9, "skips": 9})
    action = decide(refused, [], "safe", Spans(400))
    assert (action.first, action.last) == (172, 191)  # the margin is 2 in a run of 400 steps
    long = decide(Detection("D1b", 5_182, 5_174, refused.inputs), [], "safe", LONG)
    assert long.last == 5_323  # the least window


def test_safe_pauses_at_the_third_time_at_one_place() -> None:
    assert decide(SPIKE, [rollback()], "safe", LONG).kind == "rollback"
    action = decide(SPIKE, [rollback(), rollback()], "safe", LONG)
    assert action.kind == "pause"
    assert "2 times has not helped here" in action.text


def test_elsewhere_it_begins_anew() -> None:
    past = [rollback(1_000), rollback(1_000)]
    assert decide(SPIKE, past, "safe", LONG).kind == "rollback"
    assert not decide(SPIKE, past, "auto", LONG).overlay


def test_auto_climbs_to_the_learning_rate_then_to_settings_then_pauses() -> None:
    words, past = ["optim.clip=0.3"], [rollback()]
    again = decide(SPIKE, past, "auto", LONG, words)
    assert (again.kind, again.overlay, again.swap) == ("rollback", True, "")
    past += [rollback(), Decision("overlay", 5_100, 4_949)]
    third = decide(SPIKE, past, "auto", LONG, words)
    assert (third.kind, third.overlay, third.swap) == ("rollback", False, "optim.clip=0.3")
    assert decide(SPIKE, past, "auto", LONG, []).kind == "pause"
    past += [rollback(), Decision("swap", 5_100, 4_949, words="optim.clip=0.3")]
    assert decide(SPIKE, past, "auto", LONG, words).kind == "pause"  # three times within 10,000 steps


@pytest.mark.parametrize("rule", ["D3", "D4"])
def test_slow_divergence_and_fp16_begin_with_the_learning_rate(rule: str) -> None:
    finding = Detection(rule, 5_100, 5_000)  # pyright: ignore[reportArgumentType]
    assert decide(finding, [], "auto", LONG).overlay
    assert not decide(finding, [], "safe", LONG).overlay


def test_budgets_of_rollbacks_and_of_data() -> None:
    past = [rollback(onset) for onset in (500, 2_000, 3_500)]
    assert "3 times within 10,000" in decide(SPIKE, past, "safe", LONG).text
    assert decide(Detection("D2", 50_100, 50_000), past, "safe", LONG).kind == "rollback"
    action = decide(SPIKE, [rollback(1_000, left_out=1_900)], "safe", LONG)
    assert action.kind == "pause"
    assert "2,101 steps would be left out, and 2,000 may be" in action.text


def test_decisions_are_read_from_the_ledger() -> None:
    record = {"kind": "rollback", "step": 30, "effective_step": 17, "left_out": 8}
    assert decisions_of(record) == [Decision("rollback", 30, 17, 8)]
    lowered = decisions_of({**record, "intervention": {"swap": "", "overlay": [0.7, 10, 10]}})
    assert lowered[1] == Decision("overlay", 30, 17)
    assert decisions_of({**record, "intervention": {"swap": "a=1"}})[1] == Decision("swap", 30, 17, words="a=1")
    assert decisions_of({"kind": "save", "step": 3}) == []
