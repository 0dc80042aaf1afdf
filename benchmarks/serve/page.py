"""The sections of docs/figures.md that results/serve.json and clients.json become."""

from typing import Any

from benchmarks.report import rows_of, section, with_range
from benchmarks.serve.clients import HEADER, table


def serve(found: dict[str, Any]) -> list[str]:
    """Speed and latency by clients, beside other servers."""
    found = found["speed"]
    rows = [
        (
            clients,
            name,
            with_range(each["tokens_per_second"]),
            with_range(each["ours_over"]),
            each.get("equal_answers", ""),
            *(each[kind][share] if kind in each else "" for kind in KINDS for share in ("p50", "p95")),
        )
        for clients, servers in found["clients"].items()
        for name, each in servers.items()
    ]
    header = ["clients", "", "tokens/s", "hornbook is x", "equal answers"]
    header += ["first token p50 ms", "p95", "between tokens p50 ms", "p95", "whole answer p50 ms", "p95"]
    return section(
        "Serving",
        "`python -m benchmarks.serve.load`: a model of 8 layers, 384 wide, with a vocabulary of 8,192, float32, over",
        "HTTP to clients that stream 64 tokens each behind 50 to 400 characters; servers in turn, on equal threads.",
        "llama.cpp's server in Python answers one request at a time. One padded batch: transformers generates for all",
        f"clients' prompts at once, without a server. Load of the machine before: {found['load_average_before']:.1f}.",
        *(f"Left out: {name} ({why})." for name, why in found["left_out"].items()),
        *rows_of(header, rows),
    )


KINDS = ("first_ms", "token_ms", "whole_ms")


def clients(found: dict[str, Any]) -> list[str]:
    """Programs and versions beside architectures."""
    failed: list[dict[str, Any]] = [row for row in found["rows"] if row["error"]]
    return section(
        "Clients",
        "`python -m benchmarks.serve.clients --pythons ...`: tiny models of random values, exported or served, in",
        "other people's programs. A cell: the largest difference from hornbook's logits, as a share of the largest (of",
        "hidden states: sentence-transformers, encoders in ctranslate2), and how many greedy texts are equal, of up",
        f"to {found['new_tokens']} tokens for {found['prompts']} prompts, two of them chats (encoders: the token at a",
        "mask, or the label). Empty: not asked, or the program or its format has no place for the architecture.",
        *rows_of(HEADER, table(found["rows"])),
        *(f"* {row['client']} {row['version']}, {row['model']}: {row['error'][:120]}" for row in failed),
        "",
    )
