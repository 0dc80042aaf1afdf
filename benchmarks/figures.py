"""Writes pages of docs from benchmarks/results/*.json: `python -m benchmarks.figures`. No figure is typed by hand."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.adapt import page as adapt_page
from benchmarks.plan import page as planner_page
from benchmarks.refinery import figures as refinery_figures
from benchmarks.reliability.guard import page as guard_page
from benchmarks.report import RESULTS, machine_line, rows_of, section
from benchmarks.serve import page as serve_page
from benchmarks.start.quickstart_matrix import HEADER, cells
from benchmarks.training import layouts_page
from benchmarks.training import presets as preset_table
from benchmarks.training import throughput as throughput_table

DOCS = Path(__file__).parent.parent / "docs"
MIB = 2**20
BOUND, OURS = "matrix products alone", "hornbook"


def throughput(found: dict[str, Any]) -> list[str]:
    """Speed and memory beside peers and the bound, at three shapes."""
    lines = section(
        "Training throughput on a CPU",
        "`python -m benchmarks.training.throughput`: LLaMA shapes of 13M (8 rows of 512 tokens a step) and 30M (4",
        "rows), GPT-2 small (124M, one row of 1,024); AdamW, clipping; one step of each in turn. hornbook is the run",
        "that `hornbook train` starts. `hornbook is x` is the median of the ratios within a round. Peak: of the",
        "process; above states: without 16 bytes per parameter. Goals: 1.5 x the best in bf16, and 0.85 of the",
        "products' rate; 0.95 of it in fp32; never more memory.",
        *([found["note"]] if "note" in found else []),
        "",
    )
    for name, precisions in found["cases"].items():
        for precision, each in precisions.items():
            lines += _throughput_case(f"{name}, {precision}", each)
    return lines


def _throughput_case(title: str, each: dict[str, Any]) -> list[str]:
    """Summary, table and what was left out."""
    peers = {name: ratio for name, ratio in each["ours_over"].items() if not name.startswith((OURS, BOUND))}
    best = min(peers, key=lambda name: peers[name])
    told = f"{title}: {peers[best]:.2f} x the best peer ({best}), {each['ours_over'][BOUND]:.2f} of the products' rate"
    peaks = {name: peak for name, peak in each["peak_bytes"].items() if name in peers}
    if peaks:
        least = min(peaks, key=lambda name: peaks[name])
        told += f", {each['peak_bytes'][OURS] / peaks[least]:.2f} of the least peer's peak memory ({least})"
    lines = [told + "."]
    lines += rows_of(["", *throughput_table.COLUMNS], throughput_table.rows(each))
    versions = [f"{name} {version}" for name, version in each["versions"].items()]
    if versions:
        lines += [f"Versions: {', '.join(versions)}.", ""]
    if each["left_out"]:
        lines += [f"Left out: {'; '.join(f'{name} ({why})' for name, why in each['left_out'].items())}.", ""]
    return lines


def families(found: dict[str, Any]) -> list[str]:
    """Encoders and encoder-decoders beside transformers."""
    rows = [
        (f"{case}, {precision}", name, rate, "" if name == OURS else each["ours_over"][name], _mebibytes(each, name))
        for case, precisions in found["cases"].items()
        for precision, each in precisions.items()
        for name, rate in each["tokens_per_second"].items()
    ]
    return section(
        "Encoders and encoder-decoders",
        "`python -m benchmarks.training.families`: BERT of 6 layers and T5 v1.1 of 4 and 4, 384 wide, 8 rows of 512",
        "tokens, on a CPU, beside transformers in a plain loop; all from one checkpoint, on the same rows, in turns.",
        "Documents: rows of several texts, which the plain loop pads. Memory: the peak above parameters, gradients and",
        "moments. Goal: 1.3 x. BERT and T5 were published with dropout 0.1.",
        *rows_of(["", "", "tokens/s", "hornbook is x", "MiB above states"], rows),
    )


def _mebibytes(found: dict[str, Any], name: str) -> float | str:
    above = found["above_states_bytes"]
    return above[name] / MIB if name in above else ""


def loader(found: dict[str, Any]) -> list[str]:
    """Tokens per CPU second beside torch's DataLoader."""
    ratios = found["ratio_to_dataloader"]
    rows = [(name, rate, ratios[name]) for name, rate in found["million_tokens_per_cpu_second"].items()]
    return section(
        "Loader",
        "`python -m benchmarks.training.loader`: one thread, the same memory map, rows of 2,048 tokens, 8 a step",
        "unless said (goals: 2 x torch's DataLoader, 8 x Megatron-LM's dataset, here behind a DataLoader without",
        "processes).",
        *rows_of(["", "million tokens per CPU second", "x DataLoader"], rows),
        f"Seek to sample one billion: {found['seek_to_sample_1e9_milliseconds']:.3f} ms (goal: under 10).",
        "",
    )


def parity(found: dict[str, Any]) -> list[str]:
    """Every architecture beside transformers."""
    cases = dict.fromkeys(case for each in found["architectures"].values() for case in each["cases"])
    names = [*(case for case in cases if case != "gradients"), "gradients"]
    rows = [
        (
            name,
            *(f"{each['cases'][case]:.1e}" if case in each["cases"] else "" for case in names),
            f"{each['exports_equal']} of {found['draws']}",
            "yes" if each["kept"] else "NO",
        )
        for name, each in found["architectures"].items()
    ]
    return section(
        "Parity with transformers",
        f"`python -m benchmarks.training.parity`: {found['draws']} random tiny models of each architecture, every",
        f"parameter random, beside transformers {found['transformers']}: the largest difference of float32 logits, as",
        "a share of the largest logit, and of gradients, as a share of a parameter's largest (limit",
        f"{found['limit']:.0e}). Packed: documents in one row against each alone. Cached: a prompt, one token,",
        "several. Exports equal: reloaded, tensors and logits are the same to the bit.",
        *rows_of(["", *names, "exports equal", "kept"], rows),
    )


def kill_ranks(found: dict[str, Any]) -> list[str]:
    """Random kills of ranks, and how soon the run goes on."""
    kills, stops = found["kills"], ", ".join(f"{seconds:.1f}" for seconds in found["sigterm_seconds"])
    hangs = ", ".join(
        f"{each['found']:.1f} (goal {each['goal']:.1f}), {each['seconds']:.1f}" for each in found.get("hangs", ())
    )
    return section(
        "Kills of ranks",
        "`python -m benchmarks.reliability.kill_ranks`: kill -9 of either of two ranks, of both, of the supervisor.",
        f"{kills} kills in {found['trials']} runs, {found['kills_in_saves']} of them inside a save.",
        f"{found['equal']} runs ended with weights, moments and token hashes of the uninterrupted run, to the bit.",
        *(_recovery(mode, seconds) for mode, seconds in found.get("seconds", {}).items()),
        f"From SIGTERM to the end with everything on disk: {stops} s.",
        *([f"From SIGSTOP of a rank until it is found, and until the restart: {hangs} s."] if hangs else []),
        "",
    )


def failure_matrix(found: dict[str, Any]) -> list[str]:
    """How many rows of the failure matrix have tests that pass."""
    told = ", ".join(f"{count} {name}" for name, count in sorted(found["outcomes"].items()))
    rows = [(each["number"], each["words"], each["why"]) for each in found["rows"] if each["outcome"] != "passed"]
    return section(
        "The failure matrix",
        "`python -m benchmarks.reliability.matrix`: tests that prove what a run makes of 80 things that go wrong",
        f"([all rows](failure-matrix.md)): {told}.",
        *rows_of(["", "not passed", "why"], rows),
    )


def soak(found: dict[str, Any]) -> list[str]:
    """Goodput of a run with a fault about every minute."""
    equal = "equal to the run without faults, bit for bit" if not found["problems"] else "; ".join(found["problems"])
    return section(
        "A soak",
        "`python -m benchmarks.reliability.soak`: one run on two ranks, and faults.",
        f"{found['minutes']:g} minutes, a fault about every {found['gap']:g} s, seed {found['seed']}:",
        f"{found['faults_struck']} faults, {found['restarts']} "
        f"restarts of ranks, {len(found['codes'])} starts, {found['steps_again']} steps made again; {equal}.",
        f"Time of steps that count over all time: {found['goodput']:.1%}, without faults "
        f"{found['goodput_undisturbed']:.1%}; the run without faults took {found['goodput_beside_undisturbed']:.1%} of "
        "the time.",
        "",
    )


def guard(found: dict[str, Any]) -> list[str]:
    """The guard against other rules, and what it costs: the parts that were measured."""
    parts = {"bloom": _spike, "healthy": _false_alarms, "poison": _poison, "cost": _guard_cost}
    lines = [line for name, write in parts.items() if name in found for line in write(found[name])]
    return section("The guard", "`python -m benchmarks.reliability.guard`.", "", *lines)


def _spike(found: dict[str, Any]) -> list[str]:
    rows = [(rule, ", ".join(map(str, steps)) or "never") for rule, steps in found["skips"].items()]
    told = f"BLOOM's spike, replayed: clipped from {found['first']['D1a']} on. Iterations that are refused:"
    return [told, *rows_of(["rule", "iterations"], rows)]


def _false_alarms(found: dict[str, Any]) -> list[str]:
    ours, theirs = found["skips"]["hornbook"], found["skips"]["OLMo-core"]
    return [
        f"{found['steps']:,} healthy steps, drawn in blocks from {found['recorded']:,} recorded ones: {ours:,} refused "
        f"({theirs:,} by six standard deviations over the mean), {found['clips']:,} clipped, {found['rollbacks']} "
        "times back (goals: 200 refused, 1 back). Files with a line of one sign sixty times in succession were left "
        "out: the guard refuses steps over such rows.",
        "",
    ]


def _poison(found: dict[str, Any]) -> list[str]:
    rows = [
        (rule, f"{each['mean']:+.4f}", f"{each['worst']:+.4f}", f"{each['within_noise']} of {found['places']}")
        for rule, each in found["excess"].items()
    ]
    same = sum(each["excess"]["hornbook"] == each["excess"]["never, other window"] for each in found["found"])
    return [
        f"{found['batches']} batches of random tokens in a run of {found['steps']} steps, at {found['places']} places: "
        "held-out loss at the end, over that of the run that never had them. Within noise: no more than two of the "
        f"deviations ({found['noise']:.4f}) by which two runs differ that never had them. At {same} "
        "places the guarded run ends to the bit as one that never had the batches that the guard left out.",
        *rows_of(["rule", "mean (nats)", "worst", "within noise"], rows),
    ]


def _guard_cost(found: dict[str, Any]) -> list[str]:
    rows = [
        (name, f"{1e3 * each['seconds']['off']:.1f}", f"{each['share']:+.2%}", f"{each['error']:.2%}")
        for name, each in found["models"].items()
    ]
    return [
        f"Steps with the guard and without in turn, threads: {found['threads']} (goal: 1 %); the guard alone takes "
        f"{found['host_microseconds']:.0f} us on the host.",
        *rows_of(["model", "step (ms)", "more", "standard error"], rows),
    ]


def _recovery(mode: str, seconds: dict[str, dict[str, float]]) -> str:
    how = {"plain": "From checkpoints alone", "healing": "With ranks on standby and a copy in memory of every step"}
    again, new = (seconds[name] for name in ("recovery_seconds", "new_step_seconds"))
    return (
        f"{how[mode]}: the next step is on record p50 {again['p50']:.2f} s, p95 {again['p95']:.2f} s after a kill, the "
        f"first new one p50 {new['p50']:.2f} s, p95 {new['p95']:.2f} s ({new['kills']} kills; goal: p95 1 s)."
    )


def presets(found: dict[str, Any]) -> list[str]:
    """Time and memory of every shipped recipe."""
    return section(
        "Time and memory of the presets",
        "`python -m benchmarks.training.presets`: each recipe by itself on this machine, uncompiled, on random tokens:",
        "time for one million tokens (microbatches, and the updates that its batch asks for), and the peak of the",
        "process with a microbatch of the rows named; `GB a row more` is what each row of `train.micro_batch` adds.",
        "State is weights, gradients and moments. Estimated: time by the operations per token (`hornbook recipes",
        "show`) at the rate of the largest that was measured, on such a machine with enough memory; memory by the",
        "state alone. Processor time: something ran beside it all the time, and processor time over threads stands for",
        "time on the clock; a neighbour makes it longer.",
        *rows_of(preset_table.HEADER, preset_table.cells(found)),
    )


def kill(found: dict[str, Any]) -> list[str]:
    """Random kills and what was left of the run."""
    kills, trials = found["kills"], found["trials"]
    return section(
        "Kills",
        f"`python -m benchmarks.reliability.kill --kills {kills}`: kill -9 of `hornbook train` at random moments, then",
        f"resume. {found['kills_survived']} of {kills} kills survived, {found['kills_in_saves']} of them inside a",
        f"save. {found['equal']} of {trials} runs ended with weights, moments and token hashes of the uninterrupted",
        "run, to the bit.",
        "",
    )


def quickstart(found: dict[str, Any]) -> list[str]:
    """The demo."""
    figures = found["figures"]
    rows = [(name, figures[name]) for name in ("size", "tokens", "loss", "bits_per_byte")]
    rows += [(f"{name.replace('_', ' ')}, bits per byte", value) for name, value in figures["baselines"].items()]
    rows += [("seconds, three runs (limit 180)", ", ".join(f"{seconds:.0f}" for seconds in found["seconds"]))]
    rows += [("same size and seed, same numbers", "yes" if found["same_numbers"] else "NO")]
    return section("Quickstart", "`python -m benchmarks.start.quickstart`", *rows_of(["", "figure"], rows))


def quickstart_matrix(found: dict[str, Any]) -> list[str]:
    """The demo on other kinds of machines."""
    rows = [(*cells(each), f"{each['processor']}, {each['date']}") for each in found["rows"].values()]
    return section(
        "Quickstart on other machines",
        "`python -m benchmarks.start.quickstart --matrix`: the demo without a size, which must end within 180 s.",
        "Cold: no kernel on disk. Busy loops: two processes that never rest. AVX2: the variables of `tests/cpus.py`.",
        *rows_of((*HEADER, "CPU, date"), rows),
    )


PAGES: dict[str, tuple[str, Sequence[str | Callable[[dict[str, Any]], list[str]]]]] = {
    "figures.md": (
        "Figures",
        (
            parity,
            throughput,
            families,
            "large",
            presets,
            "experts",
            "optimizers",
            "optimizers_learn",
            *adapt_page.SECTIONS,
            "memory",
            loader,
            "parallel",
            "checkpoint",
            kill,
            kill_ranks,
            failure_matrix,
            soak,
            "peers",
            "trace",
            "evals_harness",
            "evals_share",
            "step_bill",
            "statistics_cost",
            "heal_cost",
            guard,
            guard_page.guard_settings,
            quickstart,
            "cold_start",
            quickstart_matrix,
            serve_page.serve,
            "serve_storm",
            serve_page.clients,
        ),
    ),
    "layouts.md": ("Layouts of ranks", layouts_page.SECTIONS),
    "planner-figures.md": ("Figures of the planner", planner_page.SECTIONS),
    "refinery-figures.md": ("Figures of the refinery", refinery_figures.SECTIONS),
}


def writer_of(name: str) -> Callable[[dict[str, Any]], list[str]]:
    """The function that makes the section of a benchmark's results."""
    sections = (each for _, sections in PAGES.values() for each in sections if not isinstance(each, str))
    return next(each for each in sections if each.__name__ == name)


def with_machine(lines: list[str], found: dict[str, Any]) -> list[str]:
    """A section, whose heading is followed by the machine that all its tables are of."""
    heading, *rest = lines
    facts, final = found.get("machine"), found.get("final")
    capped = ": AVX2 alone" if "by variables" in (facts or {}).get("instruction_set", "") else ""
    last = [f"Final: `{final['program']}` was removed after commit {final['commit']}."] if final else []
    return [heading + capped, "", machine_line(facts), *last, *rest]


def main() -> None:
    """Write the pages from whatever results there are; what is final has its section in its results."""
    for name, (title, sections) in PAGES.items():
        told = "Written by `python -m benchmarks.figures` from benchmarks/results; `make bench` measures again."
        lines = [f"# {title}", "", told, ""]
        for write in sections:
            stem = write if isinstance(write, str) else write.__name__
            for path in (RESULTS / f"{stem}{cpu}.json" for cpu in ("", "-avx2")):
                if path.exists():
                    found = json.loads(path.read_text())
                    section = found["section"] if isinstance(write, str) else write(found)
                    lines += with_machine(section, found)
        (DOCS / name).write_text("\n".join(lines).rstrip() + "\n")


if __name__ == "__main__":
    main()
