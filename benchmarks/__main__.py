"""`make bench`: every benchmark in turn; each prints a table and writes benchmarks/results/NAME.json; then the page."""

from benchmarks import (
    checkpoint,
    cold_start,
    cpus,
    experts,
    families,
    figures,
    fuzz,
    kill,
    kill_ranks,
    large,
    loader,
    parallel,
    parity,
    presets,
    quickstart,
    ranks,
    refinery_bpe,
    refinery_duplicates,
    refinery_effect,
    refinery_endurance,
    refinery_personal,
    refinery_pipeline,
    refinery_planted,
    refinery_rules,
    throughput,
)

for benchmark in (
    parity,
    loader,
    throughput,
    large,
    presets,
    experts,
    families,
    ranks,
    parallel,
    checkpoint,
    kill,
    kill_ranks,
    fuzz,
    quickstart,
    cold_start,
    refinery_pipeline,
    refinery_rules,
    refinery_duplicates,
    refinery_personal,
    refinery_planted,
    refinery_bpe,
    refinery_effect,
    refinery_endurance,
):
    print(f"\n== {benchmark.__name__} ==")
    if benchmark in (loader, throughput, experts, families):
        cpus.each_cpu(benchmark.__name__)
    else:
        benchmark.run()
figures.main()
