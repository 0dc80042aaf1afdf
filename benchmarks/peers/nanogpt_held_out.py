"""Mean loss of a checkpoint of nanoGPT's over all tokens of a file. Usage: nanogpt_held_out.py '{"home": ...}'.

Rows lie one behind the other, and each token but the first is predicted once, from those before it in its row.
"""

import json
import sys
from contextlib import nullcontext

import numpy as np
import torch

ROWS = 16


def main() -> None:
    """Load the model, score, print."""
    spec = json.loads(sys.argv[1])
    sys.path.insert(0, spec["home"])
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]  # of the folder given

    saved = torch.load(spec["checkpoint"], map_location=spec["device"], weights_only=True)
    sequence = saved["model_args"]["block_size"]
    model = GPT(GPTConfig(**saved["model_args"]))
    model.load_state_dict({name.removeprefix("_orig_mod."): each for name, each in saved["model"].items()})
    model.to(spec["device"]).eval()
    tokens = torch.from_numpy(np.fromfile(spec["tokens"], "<u2").astype(np.int64)).to(spec["device"])
    nats = torch.zeros((), dtype=torch.float64, device=spec["device"])
    bf16 = torch.autocast(spec["device"], torch.bfloat16) if spec["device"] == "cuda" else nullcontext()
    whole = (len(tokens) - 1) // sequence * sequence
    inputs, targets = tokens[:whole].view(-1, sequence), tokens[1 : whole + 1].view(-1, sequence)
    parts = list(zip(inputs.split(ROWS), targets.split(ROWS), strict=True))
    if whole + 1 < len(tokens):
        parts.append((tokens[None, whole:-1], tokens[None, whole + 1 :]))
    with torch.no_grad(), bf16:
        for rows, wanted in parts:
            nats += model(rows, wanted)[1].double() * wanted.numel()
    print(json.dumps({"loss": float(nats) / (len(tokens) - 1)}))


main()
