"""`make bench`: every benchmark in turn; each prints a table and writes benchmarks/results/NAME.json; then the page."""

from benchmarks import cpus, figures
from benchmarks.adapt import continual, rounded, smaller
from benchmarks.refinery import bpe, duplicates, effect, endurance, personal, pipeline, planted, rules
from benchmarks.reliability import fuzz, kill, kill_ranks
from benchmarks.start import cold_start, quickstart
from benchmarks.training import (
    checkpoint,
    experts,
    families,
    large,
    layouts,
    loader,
    memory,
    optimizers,
    optimizers_learn,
    overhead,
    parallel,
    parity,
    presets,
    step_bill,
    throughput,
)

TRAINING = (
    parity,
    loader,
    throughput,
    large,
    presets,
    experts,
    optimizers,
    optimizers_learn,
    continual,
    smaller,
    rounded,
    families,
    parallel,
    layouts,
    overhead,
    checkpoint,
    memory,
    step_bill,
)
OTHERS = (kill, kill_ranks, fuzz, quickstart, cold_start)
REFINERY = (pipeline, rules, duplicates, personal, planted, bpe, effect, endurance)

for benchmark in (*TRAINING, *OTHERS, *REFINERY):
    print(f"\n== {benchmark.__name__} ==")
    if benchmark in (loader, throughput, experts, families):
        cpus.each_cpu(benchmark.__name__)
    else:
        benchmark.run()
figures.main()
