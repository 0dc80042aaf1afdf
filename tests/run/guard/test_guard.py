"""The guard on recorded curves, and its state."""

import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hornbook.run.guard.detectors import Drift, Overflows, Probes
from hornbook.run.guard.guard import Guard, Seen
from hornbook.run.guard.policy import Detection
from hornbook.run.loop.guard_recovery import other_remedy
from hornbook.settings.training import GuardConfig

# BLOOM-176B, iterations 31214 to 31222, as published in its training chronicles (tr11-176B-ml, 2022-04-12).
BLOOM_LOSS = (2.199, 2.220, 2.595, 2.242, 2.345, 5.098, 3.492, 3.213, 2.805)
BLOOM_NORM = (0.242, 0.947, 2.39, 15.9, 145.0, 960.0, 353.0, 379.0, 650.0)
FIRST = 31_214


def guard_of(mode: str = "safe", steps: int = 1_000, warmup: int = 0) -> Guard:
    return Guard(GuardConfig(mode=mode), steps=steps, warmup=warmup)  # pyright: ignore[reportArgumentType]


def seen(step: int, loss: float, norm: float, *, applied: bool = True, in_a_row: int = 0) -> Seen:
    return Seen(step, loss, norm, applied, in_a_row, clock=4 * (step - 1), rows=4)


def noise(count: int, *, loss: float = 2.2, norm: float = 0.17, seed: int = 0) -> Iterator[tuple[float, float]]:
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.gauss(loss, 0.03), norm * math.exp(draw.gauss(0, 0.15))


def warm(guard: Guard, count: int = 300) -> int:
    """Steps that were usual; returns their number."""
    for number, (loss, norm) in enumerate(noise(count), 1):
        assert not list(guard.judge(seen(number, loss, norm)))
    return count


def test_bloom_is_clipped_four_steps_before_its_loss_explodes_and_refused_three() -> None:
    guard = guard_of()
    last, found = warm(guard), dict[int, list[str]]()
    for number, (loss, norm) in enumerate(zip(BLOOM_LOSS, BLOOM_NORM, strict=True)):
        limits = guard.limits(last + number + 1)
        assert limits is not None
        refused = norm > limits.norm or loss > limits.loss
        rules = guard.judge(seen(last + number + 1, loss, norm, applied=not refused, in_a_row=0))
        found[FIRST + number] = [each.rule for each in rules]
        assert (norm > limits.norm_over) == (FIRST + number >= 31_215)
    assert found[31_214] == []
    assert found[31_215] in (["D1a"], ["D1b"])  # 5.6 times the usual norm: by how much the usual ones scatter
    assert found[31_216] == ["D1b", "D1c"]
    assert all("D1b" in found[number] for number in range(31_217, 31_223))  # no step of it is let through


def test_a_last_step_of_fewer_rows_scatters_more() -> None:
    """A quarter of the rows: twice the noise, of which the gradient of a model that has learned consists."""
    for rows, is_quiet in ((4, False), (1, True)):
        guard = guard_of()
        last = warm(guard)
        limits = guard.limits(last + 1, rows)
        assert limits is not None
        assert (limits.norm_over > 3 * 0.17 and limits.norm > 3 * 0.17) == is_quiet
        step = replace(seen(last + 1, 2.2, 3 * 0.17), rows=rows)
        assert ([each.rule for each in guard.judge(step)] == []) == is_quiet


def test_it_judges_after_warm_up_and_enough_steps() -> None:
    guard = guard_of(warmup=200)
    for number, (loss, norm) in enumerate(noise(150), 1):
        assert guard.limits(number) is None
        assert not list(guard.judge(seen(number, loss, norm)))
    assert guard.limits(200) is None
    assert guard.limits(201) is not None
    assert guard_of("observe").limits(1_000) is None
    assert guard_of().limits(1_000) is None  # it has seen nothing


def test_the_smallest_window_judges_too() -> None:
    guard = Guard(GuardConfig(window=32), steps=1_000, warmup=0)
    for number, (loss, norm) in enumerate(noise(40), 1):
        list(guard.judge(seen(number, loss, norm)))
    assert guard.limits(41) is not None


def test_random_text_is_refused_from_its_first_step_and_left_out_while_the_loss_falls() -> None:
    """Loss and norm of twelve batches of random tokens, as a small run had them: neither is far out by itself."""
    guard = guard_of()
    for number, (loss, norm) in enumerate(noise(250, loss=0.0, norm=1.3), 1):
        list(guard.judge(seen(number, 6.0 - 0.007 * number + 3 * loss, norm)))
    limits = guard.limits(251)
    assert limits is not None
    assert limits.spike_loss < 5.55 < limits.loss
    assert limits.spike_norm < 5.2 < limits.norm
    for refused in range(1, 13):
        found = [each.rule for each in guard.judge(seen(250 + refused, 5.55, 5.2, applied=False, in_a_row=refused))]
        assert found == (["D1b", "D1c"] if refused == 1 else ["D1b"])
        if guard.pending is not None:
            break
    assert guard.pending is not None
    assert (guard.pending.rule, guard.pending.onset, guard.pending.step) == ("D1b", 251, 259)


def labels(steps: int, *, targets: int, seed: int) -> Iterator[tuple[float, float]]:
    """Loss and norm of a classifier that learns its rows by heart: ever fewer labels of a batch are hard."""
    draw = random.Random(seed)
    for step in range(steps):
        share = max(0.5 * math.exp(-step / 60), 0.002)
        hard = [draw.uniform(0.5, 8.0) for _ in range(targets) if draw.random() < share]
        loss = 3e-4 + 0.6 * math.exp(-step / 60) + sum(hard) / targets
        yield loss, loss * math.exp(draw.gauss(1, 0.4))


@pytest.mark.parametrize("targets", [8, 32, 128])
@pytest.mark.parametrize("seed", range(3))
def test_hard_labels_of_a_model_that_knows_the_others_are_learned(targets: int, seed: int) -> None:
    guard = guard_of()
    for step, (loss, norm) in enumerate(labels(1_000, targets=targets, seed=seed), 1):
        limits = guard.limits(step)
        if limits is not None:
            assert loss <= limits.loss
            assert norm <= limits.norm
            assert norm <= limits.spike_norm or loss <= limits.spike_loss
        told = list(guard.judge(replace(seen(step, loss, norm), targets=targets)))
        assert [each.rule for each in told if each.rule != "D1a"] == [], (step, loss)
    assert guard.pending is None


def test_a_model_that_loses_all_that_it_knew_goes_back() -> None:
    """Below the first losses no single step is refused, and a loss that stays there is not let go."""
    guard, rules = guard_of(), list[str]()
    for step, (loss, norm) in enumerate(labels(500, targets=32, seed=0), 1):
        list(guard.judge(replace(seen(step, loss, norm), targets=32)))
    for step in range(501, 561):
        rules += [each.rule for each in guard.judge(replace(seen(step, 0.65, 3.0), targets=32))]
    assert rules == []
    assert guard.pending is not None
    assert (guard.pending.rule, guard.pending.onset) == ("D2", 501)


def test_a_single_step_beyond_the_first_losses_is_refused_whatever_is_known() -> None:
    guard = guard_of()
    for step, (loss, norm) in enumerate(labels(500, targets=32, seed=0), 1):
        list(guard.judge(replace(seen(step, loss, norm), targets=32)))
    limits = guard.limits(501)
    assert limits is not None
    assert limits.spike_loss < 5.0
    assert limits.spike_norm < 500.0
    assert [each.rule for each in guard.judge(seen(501, 5.0, 500.0, applied=False, in_a_row=1))] == ["D1b", "D1c"]


def test_a_run_that_stays_high_asks_to_go_back_to_its_onset_and_one_that_recovers_does_not() -> None:
    for stays in (True, False):
        guard = guard_of()
        last = warm(guard)
        for number in range(60):
            bad = stays or number < 3
            list(guard.judge(seen(last + number + 1, 4.0 if bad else 2.2, 20.0 if number < 3 else 0.2)))
        assert (guard.pending is not None) == stays
        if guard.pending is not None:
            assert (guard.pending.rule, guard.pending.onset) == ("D2", last + 1)


def test_a_run_that_comes_back_slowly_is_left_alone() -> None:
    guard = guard_of()
    last = warm(guard)
    for number in range(60):
        list(guard.judge(seen(last + number + 1, 4.0 - number * 0.02, 20.0 if number < 3 else 0.2)))
    assert guard.pending is None


def test_other_data_is_learned_after_three_refused_steps() -> None:
    """Text of another kind: the loss jumps, the gradient does not."""
    guard = guard_of()
    last, refused = warm(guard), 0
    for number, (_, norm) in enumerate(noise(100, seed=1)):
        limits = guard.limits(last + number + 1)
        assert limits is not None
        beyond = limits.loss < 3.0
        refused += beyond
        list(guard.judge(seen(last + number + 1, 3.0, norm, applied=not beyond, in_a_row=int(beyond))))
    assert refused == 3
    assert guard.pending is None


def test_high_losses_whose_gradients_stand_out_are_never_learned() -> None:
    """Poison of place 164 of the benchmark: loss at 10 deviations, norm at 7, neither the norm nor both a spike."""
    guard = guard_of()
    last, limits = warm(guard), guard.limits(301)
    assert limits is not None
    loss, norm = limits.loss + 0.1, math.sqrt(limits.norm_over * limits.spike_norm)
    for refused in range(1, 13):
        limits = guard.limits(last + refused)
        assert limits is not None
        assert limits.loss < loss
        assert norm < limits.spike_norm
        list(guard.judge(seen(last + refused, loss, norm, applied=False, in_a_row=refused)))
        if guard.pending is not None:
            break
    assert guard.pending is not None
    assert (guard.pending.rule, guard.pending.onset, guard.pending.step) == ("D1b", last + 1, last + 9)


def test_what_scatters_about_the_limits_is_refused_whole_once_one_of_it_was() -> None:
    """Poison of place 164 with other text: z of the loss 8.05, 7.3, 8.02, 7.2 and so on, of the norm 5.7 to 6.7."""
    guard = guard_of()
    last, limits = warm(guard), guard.limits(301)
    assert limits is not None
    deviation = (limits.loss - limits.spike_loss) / 2  # z of 8 and 6
    for number in range(1, 13):
        limits = guard.limits(last + number)
        assert limits is not None
        loss = limits.spike_loss + deviation * (2.5 if number % 2 else 1.3)
        norm = limits.norm_over * (1.03 if number % 2 else 0.97)
        assert loss > limits.loss
        list(guard.judge(seen(last + number, loss, norm, applied=False, in_a_row=number)))
        if guard.pending is not None:
            break
    assert guard.pending is not None
    assert (guard.pending.rule, guard.pending.onset, guard.pending.step) == ("D1b", last + 1, last + 9)


def exp(guard: Guard, z: float) -> float:
    """The gradient norm at a z."""
    return math.exp(guard._norm.at(z))


@pytest.mark.parametrize("share", [0.5, 2.0])
def test_new_text_whose_gradients_stand_out_is_learned_with_a_higher_limit(share: float) -> None:
    """The remedy that a pause names: of norms below what makes a spike (0.5), and of those that do (2)."""
    for limit, least, most in ((None, 9, 100), (60.0, 3, 3)):
        config = GuardConfig() if limit is None else GuardConfig(clip_z=limit, skip_norm_z=limit)
        guard, usual = Guard(config, steps=1_000, warmup=0), guard_of()
        last, bounds = warm(guard), usual.limits(warm(usual) + 1)
        assert bounds is not None
        norm = bounds.norm_over * (bounds.spike_norm / bounds.norm_over) ** share
        assert norm < bounds.norm
        refused = 0
        for number in range(1, 101):
            limits = guard.limits(last + number)
            assert limits is not None
            out = limits.loss < 3.0 or norm > limits.norm or (limits.spike_loss < 3.0 and norm > limits.spike_norm)
            refused += out
            list(guard.judge(seen(last + number, 3.0, norm, applied=not out, in_a_row=refused if out else 0)))
            if guard.pending is not None:
                break
        assert least <= refused <= most
        assert (guard.pending is None) == (limit is not None)
        if guard.pending is not None:  # the pause says which limit would have let it pass
            named = float(other_remedy(guard.pending, guard, "RUN").partition("--guard.clip_z ")[2].split()[0])
            assert exp(guard, named) > norm


def test_a_new_level_of_the_norm_is_learned_if_the_loss_is_as_it_was() -> None:
    guard = guard_of()
    last, found = warm(guard), list[str]()
    for number, (loss, norm) in enumerate(noise(120, norm=5.0, seed=1), 1):
        limits = guard.limits(last + number)
        refused = limits is not None and norm > limits.norm
        found += [
            each.rule
            for each in guard.judge(
                seen(last + number, loss, norm, applied=not refused, in_a_row=number if refused else 0)
            )
        ]
    assert found == ["D1b"] * 9 + ["level"]
    assert guard.pending is None


def test_too_many_refused_updates_ask_to_go_back() -> None:
    guard = guard_of()
    for number in range(1, 10):
        list(guard.judge(seen(number, float("nan"), float("nan"), applied=False, in_a_row=number)))
        assert (guard.pending is not None) == (number == 9)
    assert guard.pending == Detection("D0", 9, 1, {"in_a_row": 9, "skips": 9})


def test_the_state_goes_on_alike() -> None:
    """At any step of a curve with a spike, also across JSON."""
    steps = [*noise(300), *zip(BLOOM_LOSS, BLOOM_NORM, strict=True), *noise(80, loss=4.0, seed=3)]
    whole, parts = guard_of(), guard_of()
    for number, (loss, norm) in enumerate(steps, 1):
        if number % 7 == 0:
            state = json.loads(json.dumps(parts.state(), allow_nan=False))
            parts = guard_of()
            parts.load(state)
        ours = list(whole.judge(seen(number, loss, norm)))
        assert list(parts.judge(seen(number, loss, norm))) == ours
        assert parts.limits(number + 1) == whole.limits(number + 1)
        assert parts.pending == whole.pending
    assert whole.pending is not None


def test_decisions_left_out_are_not_limits() -> None:
    guard = Guard(GuardConfig(), steps=1_000, warmup=0, suppressed=frozenset({("clip", 302), ("skip", 303)}))
    warm(guard)
    usual, clip, skip = (guard.limits(step) for step in (301, 302, 303))
    assert usual is not None
    assert clip is not None
    assert skip is not None
    assert (clip.norm_over, clip.norm) == (math.inf, usual.norm)
    assert (skip.norm_over, skip.norm, skip.loss) == (usual.norm_over, math.inf, math.inf)


def test_samples_before_a_step() -> None:
    guard = guard_of()
    for step, clock, rows in ((1, 0, 4), (2, 4, 4), (3, 8, 8), (4, 16, 8)):
        list(guard.judge(Seen(step, 2.0, 0.1, True, 0, clock, rows)))
    assert [guard.clock_before(step) for step in (1, 2, 3, 4, 6)] == [0, 4, 8, 16, 32]


# ---- slow divergence


@pytest.mark.parametrize(("rise", "latest"), [(1.0, 200), (2.0, 60)])
def test_a_step_up_of_the_loss_is_found(rise: float, latest: int) -> None:
    draw, drift = random.Random(4), Drift()
    assert not any(drift.add(draw.gauss(0, 1), least=256) for _ in range(5_000))
    found = next(number for number in range(1_000) if drift.add(draw.gauss(rise, 1), least=256))
    assert found < latest


def test_a_falling_loss_is_none() -> None:
    draw, drift = random.Random(5), Drift()
    assert not any(drift.add(draw.gauss(-number / 1_000, 1), least=256) for number in range(5_000))


def test_held_out_text_confirms_twice() -> None:
    probes = Probes()
    for step in range(10):
        assert probes.add(step, 3.0 - 0.01 * step)[1] is False
    assert probes.add(10, 3.5)[1] is False
    assert probes.add(11, 3.6)[1] is True
    assert probes.good_step == 9
    early = Probes()
    losses = [3.0, 2.9, math.nan, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.2, 30.0, 30.0]
    assert [early.add(step, loss)[1] for step, loss in enumerate(losses)] == [False] * 11 + [True]
    assert early.good_step == 9
    again = Probes()
    for step, loss in enumerate([3.0 - 0.01 * each for each in range(10)] + [3.5, 2.9, 3.5]):
        assert again.add(step, loss)[1] is False


def test_fp16_without_a_scale() -> None:
    early = Overflows()
    assert not any(early.add(overflowed=True, scale=2.0**k) for k in range(16, 1, -1))  # the search at the start
    late = Overflows()
    for _ in range(2_000):
        late.add(overflowed=False, scale=2.0**16)
    assert [late.add(overflowed=True, scale=1024.0) for _ in range(3)] == [False, False, True]
    assert [Overflows(in_a_row=each).add(overflowed=True, scale=1.0) for each in range(3)] == [False, False, True]
