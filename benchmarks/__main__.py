"""`make bench`: every benchmark in turn; each prints a table and writes benchmarks/results/NAME.json."""

from benchmarks import kill, loader, quickstart, throughput

for benchmark in (loader, throughput, kill, quickstart):
    print(f"\n== {benchmark.__name__} ==")
    benchmark.run()
