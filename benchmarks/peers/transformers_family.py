"""Contender: transformers' BERT or T5 in a plain loop. Usage: transformers_family.py '{"family": ..., ...}'."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, AutoModelForSeq2SeqLM

sys.path.insert(0, str(Path(__file__).parent))
import family_data
from worker import serve

LOADERS = {"encoder": AutoModelForMaskedLM, "encoder_decoder": AutoModelForSeq2SeqLM}


def main() -> None:
    spec = json.loads(sys.argv[1])
    family = spec["family"]
    load = LOADERS[family].from_pretrained
    model = load(spec["folder"], attn_implementation=spec["attention"], dtype=torch.float32)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    run = torch.compile(model) if spec["compile"] else model
    bf16 = spec["precision"] == "bf16"

    def inputs(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = family_data.make(family, tokens, spec["documents"])
        if rows.source is not None:
            return {"input_ids": rows.source, "decoder_input_ids": rows.tokens, "labels": rows.labels}
        if not spec["documents"]:
            return {"input_ids": rows.tokens, "labels": rows.labels}
        return dict(zip(("input_ids", "labels", "attention_mask"), family_data.padded(rows), strict=True))

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = run(**inputs(tokens)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    serve(step, spec["shape"])


main()
