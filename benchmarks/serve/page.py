"""The section of docs/figures.md that results/serve.json becomes."""

from typing import Any

from benchmarks.report import rows_of, section


def serve(found: dict[str, Any]) -> list[str]:
    """Speed and latency by clients, beside transformers, and what became of requests of all sorts."""
    peers = found["transformers"]
    rows = [
        (
            clients,
            each["tokens_per_second"],
            peers[clients]["one after the other"],
            peers[clients]["one batch"],
            *(each[kind][share] for kind in ("first_ms", "token_ms") for share in ("p50", "p95")),
        )
        for clients, each in found["clients"].items()
    ]
    header = ["clients", "tokens/s", "transformers, one after the other", "transformers, one batch"]
    header += ["first token p50 ms", "p95", "between tokens p50 ms", "p95"]
    storm = found["robustness"]
    left, statuses = storm["left"], [(kind, count) for kind, count in storm["statuses"].items()]
    return section(
        "Serving",
        "`python -m benchmarks.serve.load`: a model of 8 layers, 384 wide, float32, over HTTP to clients that stream",
        "64 tokens each behind prompts of 16 to 128 bytes; transformers generates the same without a server, the",
        "prompts of all clients as one padded batch or one by one.",
        f"Load of the machine before: {found['load_average_before']:.1f}.",
        *(f"Left out: {name} ({why})." for name, why in found["left_out"].items()),
        *rows_of(header, rows),
        f"{storm['requests']:,} requests, 64 at a time, to 8 slots and a queue of 24: by kind and status. Afterwards",
        f"{left['running']} texts ran and {left['waiting']} waited, the process had grown by",
        f"{storm['grown_mib']:.1f} MiB, and a greedy text was the same as before: {storm['same_answer_after']}.",
        *rows_of(["kind and status", "requests"], statuses),
    )
