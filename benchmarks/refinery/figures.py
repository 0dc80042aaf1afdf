"""Sections of docs/refinery-figures.md: each function tells the results of the benchmark that has its name."""

from typing import Any

from benchmarks.report import rows_of, section, with_range


def refinery_pipeline(found: dict[str, Any]) -> list[str]:
    """From raw text to tokens beside datatrove and tokenizers."""
    few, sample = (found["samples"][part]["documents"] for part in ("few", "sample"))
    columns = [found[f"{name}{part}"] for part in ("", "_beyond_few") for name in ("megabytes_per_cpu_second", "times")]
    speeds = [(name, *(with_range(column.get(name, "")) for column in columns)) for name in columns[0]]
    kept = [
        (name, {"behind_rules": "rules", "kept": "near duplicates"}[stage], *each[stage].values(), *each["tokens"])
        for name, each in found["documents_kept"].items()
        for stage in ("behind_rules", "kept")
    ]
    return [
        *section(
            "From raw text to shards",
            f"`python -m benchmarks.refinery.pipeline`: {found['documents']:,} documents ({found['megabytes']:.1f} MB)",
            "of technical English with planted copies: Unicode form, exact duplicates, rules of Gopher and FineWeb,",
            "near duplicates, tokens. CPU seconds of whole commands, start and imports too, one worker each, in turn,",
            "beside datatrove 0.10.1 with tokenizers; the machine did other work too (load average "
            f"{' to '.join(f'{load:.1f}' for load in found['load_average'])}).",
            f"Stock datatrove did {few} and {sample} documents: the line through both gives its time for all.",
            f"Goal: 30 x stock. Ratios are medians of {len(found['cpu_seconds'])} rounds, with the least and the most.",
            f"Beyond the start: what more text costs than {few} documents.",
        ),
        *rows_of(["", "MB per CPU second", "hornbook is x", "beyond the start", "hornbook is x"], speeds),
        "Documents that stay behind the rules, and then behind the near duplicates, of which each keeps another of",
        "equals; stock datatrove on its sample, where its rules count punctuation as words:",
        *rows_of(["", "behind", "ours", "its", "both", "our tokens", "its tokens"], kept),
    ]


def refinery_bpe(found: dict[str, Any]) -> list[str]:
    """BPE training and encoding beside rustbpe, tiktoken and tokenizers."""
    goals = {("train", "rustbpe"): 2.5, ("train", "tokenizers"): 7, ("encode", "tiktoken"): 2.5}
    goals[("encode", "tokenizers")] = 10
    rows = [
        (work, peer, each["ours"], each["peer"], each["ratio"], goals[work, peer], "yes" if each["identical"] else "NO")
        for work in ("train", "encode")
        for peer, each in found[work].items()
    ]
    cases = [
        (name, 1e3 * each["ours"], 1e3 * each["peer"], each["ratio"], "yes" if each["identical"] else "NO")
        for name, each in found["cases"].items()
    ]
    return [
        *section(
            "BPE",
            f"`python -m benchmarks.refinery.bpe`: {found['documents']:,} documents ({found['bytes'] / 1e6:.1f} MB),",
            f"32,768 tokens, one thread, medians of {found['rounds']} rounds in turn.",
        ),
        *rows_of(["", "beside", "ours, CPU s", "its", "ours is x", "goal", "the same result"], rows),
        "Texts that are slow for many encoders, beside tiktoken (goal 0.5):",
        *rows_of(["", "ours, CPU ms", "tiktoken", "ours is x", "the same result"], cases),
    ]


def public(found: dict[str, Any]) -> list[str]:
    """Public collections of inputs."""
    return [
        *section(
            "Public collections of inputs",
            "`python -m benchmarks.reliability.public`: JSONTestSuite, parquet-testing, the encoding cases of",
            "html5lib-tests, saved pages of trafilatura, files of chardet (also with their encoding named), of warcio",
            "and of yauzl, through the readers of `prepare`. What is right says the collection or another reader.",
            "Refused rightly: damaged, without an encoding or a column of text, or encrypted. No main text: the",
            "main content (resiliparse) holds none of the phrases that people noted for the page.",
        ),
        *rows_of(["", *found["header"]], found["rows"]),
        "By choice: a key that is there twice is refused (JSONTestSuite has two such files among the valid ones), NaN",
        "and Infinity are read as Python's json reads them, and a page that names no encoding is UTF-8 (32 cases of",
        "html5lib, where the standard leaves the default to the browser: Windows-1252).",
        "",
    ]


SECTIONS = (
    refinery_pipeline,
    "refinery_rules",
    "refinery_duplicates",
    "refinery_personal",
    "refinery_planted",
    refinery_bpe,
    "refinery_effect",
    "refinery_endurance",
    public,
)
