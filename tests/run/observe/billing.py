"""Ranks of a test of the step bill: real steps of a small model, with a rank that is late."""

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch

from hornbook.model.build_model import build_model
from hornbook.model.init.init import initialize
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.traffic.step_clock import Phase
from hornbook.parallel.world import RankInfo, distributed
from hornbook.run.diagnose.calibrate import batch_of
from hornbook.run.job.run_inputs import Inputs
from hornbook.run.ledger.step_report import Step
from hornbook.run.observe import step_bill
from hornbook.run.observe.slowdown import Slowdown
from hornbook.run.observe.step_bill import StepBill
from hornbook.run.observe.straggler import Straggler
from hornbook.settings.resolve import resolve
from hornbook.settings.training import TrainConfig

WORDS = ("model.layers=2", "model.width=32", "model.heads=2", "train.sequence=16", "log.every=1", "log.slowdown=2")
VOCAB, ROWS = 64, 4


def late(
    place: RankInfo, layout: dict[str, Any], section: Phase, slow_rank: int, late_from: int, steps: int
) -> dict[str, Any]:
    """`steps` steps, in which `slow_rank` sleeps in a section from step `late_from` on; bills and what was noticed."""
    step_bill.MIN_SECONDS = 0.0
    parallel = ParallelConfig.model_validate({"data": place.size, **layout})
    recipe = resolve(None, WORDS, environ={}).recipe
    train = TrainConfig.model_validate({"device": "cpu", "precision": "fp32", "threads": 1})
    found: list[str] = []
    bills = []
    with distributed(parallel, train, place) as world:
        torch.manual_seed(0)
        model = build_model(recipe.model, VOCAB, "meta")
        engine = parallelize(model, parallel, train, world)
        if layout.get("shard", "none") == "none":
            initialize(model, recipe.model, seed=0)
        else:
            for shard in engine.shards.values():
                shard.tensor.data.fill_(0.01)
        inputs = cast(Inputs, SimpleNamespace(recipe=recipe, vocab=VOCAB))

        def notice(noticed: Slowdown | Straggler, _: Step) -> None:
            found.append(f"{noticed.event}: {noticed}")

        bill = StepBill(inputs, world, notice)
        batch = batch_of(torch.randint(0, VOCAB, (ROWS, 16)))
        for number in range(1, steps + 1):
            started = time.perf_counter()
            engine.clock.begin()
            with engine.clock.phase(section):
                time.sleep(0.03 + (0.3 if place.rank == slow_rank and number >= late_from else 0.0))
            engine.zero_gradients()
            engine.forward_backward([batch], total_weight=float(ROWS * 16 * place.size))
            engine.clip_gradients(1.0)
            step = _step(number, time.perf_counter() - started, engine.clock.take())
            bill(replace(step, traffic=engine.clock.traffic.take()))
            bills.append(bill.take_record())
    return {"bills": bills, "found": found}


def _step(number: int, seconds: float, phases: dict[Any, float]) -> Step:
    return Step(
        attempt=1,
        step=number,
        tokens=number * 64,
        step_tokens=64,
        loss=1.0,
        grad_norm=1.0,
        lr=1e-3,
        skipped=False,
        token_hash="00",
        first_sample=0,
        num_samples=ROWS,
        seconds=seconds,
        data_seconds=0.0,
        final=False,
        phases=phases,
        positions=(64, 0),
    )
