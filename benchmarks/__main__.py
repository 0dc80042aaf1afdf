"""`make bench`: every benchmark in turn; each prints a table and writes benchmarks/results/NAME.json; then the page."""

from benchmarks import checkpoint, figures, kill, loader, parallel, quickstart, throughput

for benchmark in (loader, throughput, parallel, checkpoint, kill, quickstart):
    print(f"\n== {benchmark.__name__} ==")
    benchmark.run()
figures.main()
