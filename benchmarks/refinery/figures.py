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


def refinery_rules(found: dict[str, Any]) -> list[str]:
    """Reasons and speed of the published rules beside datatrove."""
    forms = {
        "each_on_raw": "Gopher, FineWeb and mC4, every document by each",
        "each_behind_c4": "C4, and these on what its lines leave",
        "pipeline": "all in a row; datatrove stops at the first reason, ours measures all",
    }
    counts = [(name, step, *each.values()) for name, steps in found["reasons"].items() for step, each in steps.items()]
    speeds = [
        (text, *(found["speed"][form][key] for key in ("ours_mb_per_second", "times_logic", "times_stock")))
        for form, text in forms.items()
    ]
    return [
        *section(
            "Rules of quality",
            f"`python -m benchmarks.refinery.rules`: {found['documents']:,} documents ({found['megabytes']:.1f} MB) of",
            "technical documentation beside datatrove 0.10.1; `different` counts documents with another reason when",
            "datatrove is given the same words.",
        ),
        *rows_of(["words", "step", "documents", "dropped", "different"], counts),
        "MB per CPU second, and how often datatrove's: its logic with words between blanks (goal 15), and as it is,",
        "which splits with spaCy (goal 100).",
        *rows_of(["", "MB/s", "x its logic", "x stock"], speeds),
    ]


def refinery_duplicates(found: dict[str, Any]) -> list[str]:
    """Duplicates and test items beside libraries."""
    speeds = [
        (name, rate, f"{found['documents_per_cpu_second'][name]:,.0f}", found["ratio"].get(name, ""))
        for name, rate in sorted(found["megabytes_per_cpu_second"].items())
    ]
    near = found["near"]
    bands = list(near["theory"]["recall"])
    rows = [
        (name, *each["recall"].values(), *(each.get(key, "") for key in ("removed", "precision_0.7", "precision_0.5")))
        for name, each in near.items()
    ]
    edits = {name: each["recall_by_edited_words"] for name, each in near.items() if name != "theory"}
    items = [(name, *each.values()) for name, each in found["decontamination"].items()]
    return [
        *section(
            "Duplicates and test items",
            f"`python -m benchmarks.refinery.duplicates`: {found['documents']:,} documents",
            f"({found['megabytes']:.1f} MB) of several languages with planted copies and test items, CPU seconds of",
            f"the work alone, medians of {found['rounds']} rounds in turn. Goals of near duplicates: 5 x rensa,",
            "20 x datasketch, 100 x datatrove; of the others: 3 x.",
        ),
        *rows_of(["", "MB per CPU second", "documents per CPU second", "ours is x"], speeds),
        "Recall of planted pairs by their similarity (shared runs of 5 words), and the share of removed documents that",
        "have another that similar in their cluster:",
        *rows_of(["", *bands, "removed", "precision, 0.7", "0.5"], rows),
        "Recall by the share of words that were edited:",
        *rows_of(["", *next(iter(edits.values()))], [(name, *each.values()) for name, each in edits.items()]),
        "Planted test items: found as they are, with a tenth of the words altered, and precision:",
        *rows_of(["", "as they are", "altered", "precision"], items),
    ]


def refinery_personal(found: dict[str, Any]) -> list[str]:
    """Personal data beside datatrove and plain expressions."""
    truth = found["truth"]
    kinds, speeds = list(next(iter(truth.values()))), found["mb_per_cpu_s"]
    times = speeds["ours, e-mail and IP"] / speeds["datatrove, e-mail and IP"]
    rows = [
        (language, *(f"{each[kind]['precision']:.3g} / {each[kind]['recall']:.3g}" for kind in kinds))
        for language, each in truth.items()
    ]
    return [
        *section(
            "Personal data",
            f"`python -m benchmarks.refinery.personal`: {found['megabytes']:.1f} MB of technical documentation;",
            f"e-mail and IP addresses {times:.1f} x datatrove (goal 3).",
        ),
        *rows_of(["", "MB per CPU second"], list(speeds.items())),
        "Planted truth, precision / recall to the letter; its forms are those that the patterns know:",
        *rows_of(["", *(kind.replace("_", " ") for kind in kinds)], rows),
    ]


def refinery_planted(found: dict[str, Any]) -> list[str]:
    """What one command finds of what was planted in seven languages."""
    languages = list(found["languages"])
    rows = [
        (kind, each["all"]["planted"], *(_two(each[name]) for name in ("all", *languages)))
        for kind, each in found["kinds"].items()
    ]
    spread = ", ".join(f"{language} {count:,}" for language, count in found["languages"].items())
    return [
        *section(
            "Planted truth",
            f"`python -m benchmarks.refinery.planted`: {found['documents']:,} documents ({found['megabytes']:.1f} MB;",
            f"{spread}) of technical books, of which each piece of text is used once, go through `hornbook prepare`",
            "with a recipe of seven steps. Precision / recall, judged on whole lines and documents; recall alone where",
            "wrong finds cannot be told from those of another row. Beside the planted stand look-alikes",
            "(`benchmarks/refinery/planted_truth.py`): documents that share half of their text, quotations of a test",
            "item and its words in another order, wrong check digits, dates and version numbers, prose about cookies,",
            "terms within other words and in languages where they mean nothing. Copies are documents of some 40 words",
            "(80 characters of Chinese, 100 of Japanese), shorter than most, so an edit weighs more. Lines are judged",
            "where their document stays.",
        ),
        *rows_of(["", "planted", "all", *languages], rows),
        *_FITTED,
    ]


_FITTED = [
    "What was fitted to this corpus, and what was not:",
    "",
    "* `boilerplate`: its lines were written after reading the rules, which were then extended until they knew them.",
    "  The unseen lines were written later, to be worded otherwise, without a look at the rules, and no rule was",
    "  changed for them: they say what becomes of a line without a known phrase; pages have lines of both sorts.",
    "* E-mail addresses, telephone numbers and keys: a quarter have forms that the patterns were not written for; the",
    "  unseen forms came later, and no pattern was changed for them.",
    "* Test items: `max_share = 0.3`, the lengths of items, and that passages share no run of 13 words were settled in",
    "  trial runs of this corpus.",
    "* The wide setting of `near_dedup` was the second that was tried. Its run is the one with exceptions, too. Two",
    "  thirds of its wrong finds are documents that hold planted lines, for they share the sentences around the data;",
    "  a third are documents that share half of their text.",
    "* Terms are invented, and four look-alikes stand beside each planted term of a category: more than text has. In",
    "  Chinese and Japanese a term is found within other words, as in four of the look-alikes; `exceptions` name these",
    "  four, so their rows say that the option works, not how far a list of one's own would reach.",
    "",
]


def _two(score: dict[str, float | None]) -> str:
    if not score["planted"]:
        return ""
    return " / ".join(f"{score[each]:.3g}" for each in ("precision", "recall") if score[each] is not None)


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


def refinery_effect(found: dict[str, Any]) -> list[str]:
    """A small model trained on raw, refined and clean text."""
    bits, held_out = found["bits_per_byte"], found["held_out"]
    corpora = [
        (name, f"{size['documents']:,}", size["megabytes"], size["passes"], *(f"{value:.4f}" for value in bits[name]))
        for name, size in found["corpora"].items()
    ]
    gains = [
        (name, f"{each['mean']:.4f}", f"{each['mean'] - each['half']:.4f} to {each['mean'] + each['half']:.4f}")
        for name, each in found["differences"].items()
    ]
    marks = ", ".join(f"{mark} {100 * share:.0f} %" for mark, share in found["marks"].items())
    kinds = [(kind, *(f"{100 * value:.0f} %" for value in each.values())) for kind, each in found["kinds"].items()]
    return [
        *section(
            "What refining is worth",
            "`python -m benchmarks.refinery.effect`: `raw` is technical English with dirt in the shares below, which",
            "`benchmarks/refinery/dirty_corpus.py` gives reasons for; `refined` is that behind steps of",
            "docs/refinery.md; `clean` has no dirt. A model of 4.3M parameters is trained on each of them for",
            f"{found['tokens']:,} tokens. Bits per byte of {held_out['documents']} clean documents",
            f"({held_out['bytes'] / 1e6:.2f} MB) that stand nowhere else: none has more than a tenth of its runs of",
            "13 words in what was trained on.",
        ),
        *rows_of(["", "documents", "MB", "passes", *(f"seed {seed}" for seed in found["seeds"])], corpora),
        "Fewer bits per byte, pairs of equal seed, and the 95 % interval (Student's t, two degrees of freedom):",
        *rows_of(["", "mean", "interval"], gains),
        "What refining left. Of copies one stays, which may be another's: what good pages lose there, others keep.",
        f"Left on good pages by their sites: {marks}.",
        *rows_of(["", "of the raw bytes", "left"], kinds),
    ]


def refinery_endurance(found: dict[str, Any]) -> list[str]:
    """Memory as the input grows, and random kills."""
    kills = found["kills"]
    rows = [
        (f"{each['megabytes']:,}", *(each[name][key] for name in ("prepare", "tokenize") for key in each[name]))
        for each in found["memory"]
    ]
    return [
        *section(
            "Memory and kills",
            "`python -m benchmarks.refinery.endurance`: two workers, the largest memory of all processes together",
            "(goal: the same for any size, under 2,048 MiB). The machine did other work too, so seconds say little.",
        ),
        *rows_of(["input, MB", "prepare, MiB", "seconds", "tokenize, MiB", "seconds"], rows),
        f"kill -9 at {kills['kills']} random points of {kills['runs']} runs over {kills['megabytes']} MB: after",
        f"{kills['runs'] - kills['unequal']} of the {kills['runs']} all files are those of one worker that was left",
        "alone, to the byte.",
        "",
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
    refinery_rules,
    refinery_duplicates,
    refinery_personal,
    refinery_planted,
    refinery_bpe,
    refinery_effect,
    refinery_endurance,
    public,
)
