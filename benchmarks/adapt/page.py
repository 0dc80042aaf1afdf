"""Sections of docs/figures.md on tuning and adaptation."""

import statistics
from typing import Any

from benchmarks.report import rows_of, section


def preference(found: dict[str, Any]) -> list[str]:
    """Losses and gradients beside trl's."""
    keys = ("loss", "loss_difference", "gradient_difference", "gradient_share")
    rows = [(name, *(f"{each[key]:.3g}" for key in keys)) for name, each in found["cases"].items()]
    return section(
        "Fine-tuning by answers and preferences beside trl",
        "`python -m benchmarks.adapt.preference`: small models of these presets' kinds, one batch, the same weights,",
        f"trl {found['trl']}; largest difference of a gradient's values, and as a share of the largest of its tensor.",
        f"Limit {found['limit']:.0e}.",
        *rows_of(("case", "loss", "difference", "of gradients", "as a share"), rows),
    )


def continual(found: dict[str, Any]) -> list[str]:
    """What continued training learns and forgets."""

    def cell(part: dict[str, float]) -> str:
        return f"{part['mean']:.3f} +- {part['half']:.3f}"

    lines: list[str] = []
    for domain, part in found["domains"].items():
        rows = [(name, cell(each["domain"]), cell(each["general"])) for name, each in part["losses"].items()]
        said = [f"{name}: {'shown' if each['shown'] else 'not shown'}" for name, each in part["claims"].items()]
        lines += [f"{domain}. {'; '.join(said)}.", ""]
        lines += [*rows_of(("stage", f"loss on {domain}", f"loss on {found['general']}"), rows), ""]
    return section(
        "What continued training learns and forgets",
        f"`python -m benchmarks.adapt.continual`: {found['base_tokens']:,} tokens of {found['general']}, then",
        f"{found['domain_tokens']:,} of a new domain; losses on held-out text in nats per token, mean and 95 %",
        "interval (Student's t) of three seeds. Union: a new model on both texts.",
        "",
        *lines,
    )


def smaller(found: dict[str, Any]) -> list[str]:
    """What a small model gains from a larger one."""

    def cell(part: dict[str, float]) -> str:
        return f"{part['mean']:.3f} +- {part['half']:.3f}"

    rows = [(name, cell(each["loss"]), cell(each["gain"])) for name, each in found["models"].items()]
    return section(
        "Small models: from scratch, distilled, pruned",
        f"`python -m benchmarks.adapt.smaller`: a model of four layers trained on {found['teacher_tokens']:,} tokens",
        f"of {found['text']}, and models of two layers, half the heads and half the channels, each trained on",
        f"{found['tokens']:,} tokens; held-out loss in nats per token, mean and 95 % interval of three seeds.",
        *rows_of(("", "loss", "better than from scratch by"), rows),
    )


def finetune(found: dict[str, Any]) -> list[str]:
    """Labels learned beside Trainer."""

    def cell(part: dict[str, float]) -> str:
        return f"{part['mean']:.4f} +- {part['half']:.4f}"

    rows = [
        (
            name,
            *(cell(each[side]["score"]) for side in ("hornbook", "trainer")),
            cell(each["difference"]),
            *(statistics.median(each[side]["seconds"]) for side in ("hornbook", "trainer")),
            each["faster"],
        )
        for name, each in found["models"].items()
    ]
    return section(
        "Fine-tuning on labels beside transformers' Trainer",
        f"`python -m benchmarks.adapt.finetune FILE...` ({', '.join(found['files'])}): {found['epochs']} epochs from",
        "the same weights, float32, same rows, batch and schedule; three seeds, in turn. Score: which file a text is",
        "from (bert, accuracy); order of shuffled words (t5, nats per token); mean and 95 % interval (Student's t).",
        *rows_of(("model", "hornbook", "Trainer", "difference", "seconds", "Trainer's", "times as fast"), rows),
    )


def rounded(found: dict[str, Any]) -> list[str]:
    """What a model loses by fewer bits and fewer weights."""
    rows = [
        (name, f"{each['lost']['mean']:.4f} +- {each['lost']['half']:.4f}") for name, each in found["models"].items()
    ]
    return section(
        "Rounded and sparse weights, with text and without it",
        f"`python -m benchmarks.adapt.rounded`: a model of four layers trained on {found['tokens']:,} tokens of",
        f"{found['text']}; held-out loss in nats per token above that of the model as it was trained, mean and 95 %",
        "interval of three seeds.",
        *rows_of(("", "loses"), rows),
    )


def speculative(found: dict[str, Any]) -> list[str]:
    """Drafted text beside text of one token at a time."""
    keys = ("tokens_per_second", "times_as_fast", "tokens_per_pass", "drafted", "accepted", "equal_texts")
    rows = [
        (how, name, *(each.get(key, "") for key in keys))
        for how, ways in found["results"].items()
        for name, each in ways.items()
    ]
    return section(
        "Drafted text",
        f"`python -m benchmarks.adapt.speculative`: models trained on {found['tokens']:,} tokens of {found['text']};",
        f"{found['new_tokens']} tokens behind each of {found['prompts']} prompts, in turn, on one thread. Times as",
        "fast as the same model without drafts; equal texts: of greedy ones, with its text.",
        *rows_of(("", "", "tokens/s", "times as fast", "tokens a pass", "drafts", "accepted", "equal texts"), rows),
    )


def lora(found: dict[str, Any]) -> list[str]:
    """LoRA and QLoRA beside peft in the Trainer."""
    rows = [
        (
            f"{targets}, {precision}",
            name,
            f"{rate:,.0f}",
            f"{case['ours_over'][name]:.2f}",
            f"{case['peak_bytes'][name] / 2**20:,.0f}",
            f"{case['above_idle_bytes'][name] / 2**20:,.0f}",
        )
        for targets, cases in found["cases"].items()
        for precision, case in cases.items()
        for name, rate in case["tokens_per_second"].items()
    ]
    shape, clock = found["shape"], "processor time" if found["clock"] == "cpu_seconds" else "time"
    return section(
        "LoRA and QLoRA beside peft in transformers' Trainer",
        "`python -m benchmarks.adapt.lora`: a LLaMA of 6 layers, 512 wide, rank",
        f"{found['adapter']['rank']}, {shape['rows']} rows of {shape['sequence']} tokens, one step of each in turn, by",
        f"{clock}. peft's nf4 is bitsandbytes' 4-bit layers; without a row they were not measured. Memory: the peak,",
        "and what of it is above the idle process.",
        *rows_of(("", "", "tokens/s", "hornbook is x", "peak MiB", "MiB above idle"), rows),
    )


SECTIONS = (preference, continual, smaller, finetune, lora, rounded, speculative)
