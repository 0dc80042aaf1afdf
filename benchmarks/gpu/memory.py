"""Memory and time of the loss over a large vocabulary: in chunks, as hornbook does, and over all logits at once.

Peaks are above what is there before (hidden states and matrix). Rounds in turn.
"""

from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu.worker import begin, peak_bytes, reset_peak, seconds_of
from hornbook.model.config.model_config import LMHead, ModelConfig
from hornbook.model.heads.head import Head, lm_head
from hornbook.model.layers.embedding import Embedding

ROUNDS, TIMES = 5, 4


def main() -> None:
    """Both forms, plain and compiled."""
    output, spec, device = begin()
    output.write({})  # none of an earlier call
    rows, width, vocab = (64, 32, 512) if spec["dry_run"] else (8192, 2048, 128_256)
    dtype = torch.float32 if spec["dry_run"] else torch.bfloat16
    with device:
        embedding = Embedding(vocab, width)
        torch.nn.init.normal_(embedding.weight, std=0.02)
        head = lm_head(LMHead(), ModelConfig(width=width, heads=4, layers=1), vocab, embedding)
        hidden = torch.randn(1, rows, width, dtype=dtype, requires_grad=True)
        targets, weights = torch.randint(vocab, (1, rows)), torch.ones(1, rows)
    forms: dict[str, Any] = {"chunks": lambda: chunks(head, hidden, targets, weights)}
    forms["all logits"] = lambda: whole(head, hidden, targets).backward()
    if device.type == "cuda":
        compiled = torch.compile(whole, dynamic=False)
        forms["all logits, compiled"] = lambda: compiled(head, hidden, targets).backward()
        head.loss_and_grad_ = torch.compile(head.loss_and_grad_, dynamic=False)
    figures: dict[str, Any] = {"rows": rows, "width": width, "vocab": vocab, "forms": {name: {} for name in forms}}
    for number in range(ROUNDS + 1):  # the first compiles
        for name, call in forms.items():
            embedding.weight.grad = hidden.grad = None
            before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
            reset_peak(device)
            seconds = seconds_of(call, device, 1 if spec["dry_run"] else TIMES)
            entry = figures["forms"][name]
            entry["above_bytes"] = max(peak_bytes(device) - before, 0)
            entry.setdefault("seconds", []).extend([seconds] if number else [])
        output.write(figures)
    print({name: (min(each["seconds"]), each["above_bytes"]) for name, each in figures["forms"].items()})


def chunks(head: Head, hidden: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> None:
    """hornbook's loss, forward and backward."""
    head.losses(hidden, targets, weights)["loss"].backward()


def whole(head: Head, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss over all logits at once, in float32."""
    logits = F.linear(hidden, head.matrix.to(hidden.dtype)).float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


if __name__ == "__main__":
    main()
