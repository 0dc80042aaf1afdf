"""Sections of docs/figures.md on tuning and adaptation."""

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


SECTIONS = (preference, "continual", "smaller", "finetune", lora, "rounded", "speculative")
