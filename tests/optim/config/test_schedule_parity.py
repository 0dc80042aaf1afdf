"""Every schedule of transformers and torch that has an equal here, at every step of a run.

Theirs are functions of a step counted from 0, and the first step of a warm-up of W steps has the rate 0; here it is
1 / W, so a step of a warm-up is compared with the next step there. After the warm-up the same steps are compared.
`cosine_warmup_with_min_lr` alone counts from 1 throughout: there its warm-up is ours, and its cosine one step ahead.
`reduce_lr_on_plateau` and `greedy` look at losses: they are no functions of the clock, and have no equal.
"""

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR, LRScheduler, MultiStepLR, OneCycleLR, StepLR
from transformers.optimization import TYPE_TO_SCHEDULER_FUNCTION
from transformers.trainer_utils import SchedulerType

from hornbook.optim.config.batch_schedule import NoRamp
from hornbook.optim.config.cyclic_schedules import CosineRestarts, Cyclic, OneCycle
from hornbook.optim.config.schedule_base import ScheduleConfig
from hornbook.optim.config.schedules import (
    WSD,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    Polynomial,
    Steps,
)

STEPS, WARMUP, BATCH = 240, 30, 512
BATCHES = NoRamp().batches(BATCH)
WARM = {"warmup": f"{WARMUP} steps"}
TRAINING = {"num_warmup_steps": WARMUP, "num_training_steps": STEPS}
TOLERANCE = 1e-12
NO_EQUAL = {SchedulerType.REDUCE_ON_PLATEAU, SchedulerType.GREEDY}

CASES: list[tuple[str, dict[str, Any], ScheduleConfig]] = [
    ("linear", TRAINING, Linear.model_validate(WARM)),
    ("cosine", TRAINING, Cosine.model_validate({**WARM, "floor": 0})),
    ("cosine_with_restarts", {**TRAINING, "num_cycles": 1}, CosineRestarts.model_validate({**WARM, "floor": 0})),
    (
        "cosine_with_restarts",
        {**TRAINING, "num_cycles": 6},
        CosineRestarts.model_validate({**WARM, "floor": 0, "cycles": 6}),
    ),
    ("polynomial", {**TRAINING, "lr_end": 0.01}, Polynomial.model_validate({**WARM, "floor": 0.01})),
    (
        "polynomial",
        {**TRAINING, "lr_end": 1e-7, "power": 2.5},
        Polynomial.model_validate({**WARM, "floor": 1e-7, "power": 2.5}),
    ),
    ("constant", {}, Constant()),
    ("constant_with_warmup", {"num_warmup_steps": WARMUP}, Constant.model_validate(WARM)),
    ("inverse_sqrt", {"num_warmup_steps": WARMUP}, InverseSqrt.model_validate(WARM)),
    ("inverse_sqrt", {"num_warmup_steps": 0}, InverseSqrt()),
    (
        "inverse_sqrt",
        {"num_warmup_steps": WARMUP, "timescale": 77},
        InverseSqrt.model_validate({**WARM, "timescale": "77 steps"}),
    ),
    ("cosine_with_min_lr", {**TRAINING, "min_lr_rate": 0.1}, Cosine.model_validate(WARM)),
    *(
        (
            "warmup_stable_decay",
            {**TRAINING, "num_decay_steps": 60, "decay_type": theirs, "min_lr_ratio": floor},
            WSD.model_validate({**WARM, "warmup_start": floor, "decay": "60 steps", "shape": ours, "floor": floor}),
        )
        for ours, theirs in (("linear", "linear"), ("sqrt", "1-sqrt"), ("cosine", "cosine"))
        for floor in (0.0, 0.2)
    ),
]


def ours(schedule: ScheduleConfig, steps: int = STEPS) -> list[float]:
    return [schedule(step * BATCH, STEPS * BATCH, BATCHES) for step in range(steps)]


def theirs(kind: str, arguments: dict[str, Any], steps: int = STEPS + 1) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    scheduler = TYPE_TO_SCHEDULER_FUNCTION[SchedulerType(kind)](optimizer, **arguments)
    return rates(optimizer, scheduler, steps)


def rates(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, steps: int) -> list[float]:
    found = []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("kind", "arguments", "schedule"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)]
)
def test_schedules_of_transformers(kind: str, arguments: dict[str, Any], schedule: ScheduleConfig) -> None:
    found, reference = ours(schedule), theirs(kind, arguments)
    warmup = arguments.get("num_warmup_steps", 0)
    assert found[:warmup] == pytest.approx(reference[1 : warmup + 1], abs=TOLERANCE, rel=0)
    assert found[warmup:] == pytest.approx(reference[warmup:STEPS], abs=TOLERANCE, rel=0)


def test_the_cosine_of_transformers_that_counts_from_one() -> None:
    found = ours(Cosine.model_validate(WARM), STEPS + 1)
    reference = theirs("cosine_warmup_with_min_lr", {**TRAINING, "min_lr_rate": 0.1})
    assert found[:WARMUP] == pytest.approx(reference[:WARMUP], abs=TOLERANCE, rel=0)
    assert found[WARMUP + 1 :] == pytest.approx(reference[WARMUP:STEPS], abs=TOLERANCE, rel=0)


def test_no_schedule_of_transformers_is_forgotten() -> None:
    compared = {SchedulerType(kind) for kind, _, _ in CASES} | {SchedulerType.COSINE_WARMUP_WITH_MIN_LR}
    assert compared | NO_EQUAL == set(TYPE_TO_SCHEDULER_FUNCTION)


def of_torch(make: Any, steps: int = STEPS) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9)
    return rates(optimizer, make(optimizer), steps)


@pytest.mark.parametrize(
    ("make", "schedule"),
    [
        (lambda opt: StepLR(opt, 50, 0.3), Steps.model_validate({"every": "50 steps", "factor": 0.3})),
        (
            lambda opt: MultiStepLR(opt, [40, 90, 91]),
            Steps.model_validate({"points": ["40 steps", "90 steps", "91 steps"]}),
        ),
        (lambda opt: ExponentialLR(opt, 0.99), Exponential.model_validate({"every": "1 steps", "factor": 0.99})),
        (lambda opt: CyclicLR(opt, 0.1, 1.0, 20), Cyclic.model_validate({"every": "40 steps"})),
        (
            lambda opt: CyclicLR(opt, 0.1, 1.0, 16, 48, mode="triangular2"),
            Cyclic.model_validate({"every": "64 steps", "rise": 0.25, "shrink": 0.5}),
        ),
    ],
    ids=["step", "multi_step", "exponential", "cyclic", "cyclic_shrinking"],
)
def test_schedules_of_torch(make: Any, schedule: ScheduleConfig) -> None:
    assert ours(schedule) == pytest.approx(of_torch(make), abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_one_cycle_of_torch(shape: str) -> None:
    """Torch's phases end at the steps `pct_start` * total - 1 and total - 1; ours at `rise` and at the end."""
    pct = (0.3 * STEPS + 1) / (STEPS + 1)
    annealing: Any = {"cosine": "cos", "linear": "linear"}[shape]
    found = of_torch(lambda opt: OneCycleLR(opt, 1.0, STEPS + 1, pct_start=pct, anneal_strategy=annealing))
    assert ours(OneCycle.model_validate({"shape": shape})) == pytest.approx(found, abs=TOLERANCE, rel=0)


def test_the_rate_of_t5() -> None:
    """Raffel et al. 2019, section 3.1.2: 1 / sqrt(max(n, k)) with k = 10,000; the peak is 0.01."""
    schedule = InverseSqrt.model_validate({"hold": "10000 steps"})
    steps = range(0, 60_000, 7)
    found = [0.01 * schedule(step * BATCH, 2**19 * BATCH, BATCHES) for step in steps]
    assert found == pytest.approx([max(step, 1e4) ** -0.5 for step in steps], abs=TOLERANCE, rel=0)
