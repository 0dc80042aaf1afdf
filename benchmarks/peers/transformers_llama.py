"""Contender: the LLaMA of transformers in a plain loop. Usage: transformers_llama.py '{"weights": ..., ...}'."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent))
from worker import serve


def main() -> None:
    spec = json.loads(sys.argv[1])
    shape = spec["shape"]
    model = LlamaForCausalLM._from_config(
        LlamaConfig(
            vocab_size=shape["vocab"],
            hidden_size=shape["width"],
            num_hidden_layers=shape["layers"],
            num_attention_heads=shape["heads"],
            num_key_value_heads=shape["heads"],
            intermediate_size=shape["hidden"],
            max_position_embeddings=shape["sequence"],
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            use_cache=False,
        ),
        attn_implementation=spec["attention"],
        dtype=torch.float32,
    )
    missing, unexpected = model.load_state_dict(load_file(spec["weights"]), strict=False)
    assert missing == ["lm_head.weight"], missing  # tied to the embedding
    assert not unexpected, unexpected
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    run = torch.compile(model) if spec["compile"] else model
    bf16 = spec["precision"] == "bf16"

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = run(input_ids=tokens[:, :-1], labels=tokens[:, :-1], shift_labels=tokens[:, 1:].contiguous()).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    serve(step, shape)


main()
