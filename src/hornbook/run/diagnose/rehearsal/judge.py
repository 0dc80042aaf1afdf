"""Whether a run that was interrupted is the run that was not: every step, weight and moment, its ledger, its litter."""

import json
import math

from hornbook.files.durable import TEMPORARY
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.doctor.check_run import check_run
from hornbook.run.doctor.compare_runs import compare_runs


def differences(reference: RunDir, run: RunDir, steps: int) -> list[str]:
    """How a finished run is not the uninterrupted one of `steps` steps, bit for bit; empty: it is."""
    comparison = compare_runs(reference, run)
    problems = [f"{part.name}: step {part.first}: {part.detail}" for part in comparison.parts if part.different]
    compared = {part.name: part.compared for part in comparison.parts}
    if comparison.steps != (steps, steps) or compared["tokens"] != steps or compared["losses"] != steps:
        problems.append(f"steps {comparison.steps}, compared {compared}")
    if min(compared["weights"], compared["optimizer"], compared["clock"]) < 1:
        problems.append("no final state to compare")
    return problems + faults_of(run)


def faults_of(run: RunDir) -> list[str]:
    """What is wrong with a finished run by itself: damage, a broken ledger, unfinished files."""
    problems = [f"left behind: {name}" for name in litter(run)]
    return problems + [f"{finding.what}: {finding.text}" for finding in check_run(run).findings if not finding.ok]


def not_finite(run: RunDir, steps: int, skips: int) -> list[str]:
    """What is wrong where `skips` steps were to be skipped and nothing else: a NaN in weights or moments stays."""
    records = current_branch(read_records(run.metrics))
    bad = [record["step"] for record in records if record["loss"] is None or not math.isfinite(record["loss"])]
    problems = [] if len(records) == steps else [f"{len(records)} steps instead of {steps}"]
    if len(bad) > skips:
        problems.append(f"losses that are not finite at steps {json.dumps(bad)}, skipped: {skips}")
    return problems + faults_of(run)


def litter(run: RunDir) -> list[str]:
    """What is unfinished in a run."""
    places = [place for place in (run.path, run.checkpoints) if place.is_dir()]
    return [path.name for place in places for path in place.iterdir() if path.name.startswith(TEMPORARY)]
