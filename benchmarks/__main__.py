"""`make bench`: every benchmark in turn; each prints a table and writes benchmarks/results/NAME.json; then the page."""

from benchmarks import cpus, figures
from benchmarks.refinery import bpe, pipeline
from benchmarks.reliability import fuzz, kill, kill_ranks
from benchmarks.start import quickstart
from benchmarks.training import families, layouts, loader, parity, presets, throughput

TRAINING = (parity, loader, throughput, presets, families, layouts)

for benchmark in (*TRAINING, kill, kill_ranks, fuzz, quickstart, pipeline, bpe):
    print(f"\n== {benchmark.__name__} ==")
    if benchmark in (loader, throughput, families):
        cpus.each_cpu(benchmark.__name__)
    else:
        benchmark.run()
figures.main()
