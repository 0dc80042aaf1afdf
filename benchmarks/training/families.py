"""CPU training of encoders and encoder-decoders beside transformers' BERT and T5 in a plain loop: tokens/s, memory.

Run with `python -m benchmarks.training.families` (`--cpu`: `benchmarks.cpus`). All contenders read one random
checkpoint and learn from the same rows, in turn (`benchmarks.contenders.processes`).
`documents` cuts the encoder's rows into texts of 16 to 512 tokens: hornbook trains on the rows as they are, each text
seeing itself alone; the plain loop pads the texts.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks import cpus, report
from benchmarks.contenders.processes import ROOT, Contender, Process, compare, interleave

PEERS = ROOT / "benchmarks" / "peers"
SHAPE = {"rows": 8, "sequence": 512, "vocab": 8192}
BOUND = "matrix products alone"
CASES = {
    "BERT": {"family": "encoder", "dropout": 0.0, "documents": False},
    "T5 v1.1": {"family": "encoder_decoder", "dropout": 0.0, "documents": False},
    "BERT, documents": {"family": "encoder", "dropout": 0.0, "documents": True},
    "BERT, dropout 0.1": {"family": "encoder", "dropout": 0.1, "documents": False},
    "T5 v1.1, dropout 0.1": {"family": "encoder_decoder", "dropout": 0.1, "documents": False},
}


def make_checkpoint(case: dict[str, Any], folder: Path) -> None:
    """A random model of 6 layers (T5: 4 and 4), 384 wide, as transformers writes it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    if case["family"] == "encoder":
        settings = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}
        dropout = {"hidden_dropout_prob": case["dropout"], "attention_probs_dropout_prob": case["dropout"]}
        config = transformers.BertConfig(vocab_size=SHAPE["vocab"], **settings, **dropout)
        transformers.BertForMaskedLM(config).save_pretrained(folder)
        return
    settings = {"d_model": 384, "num_layers": 4, "num_heads": 6, "d_kv": 64, "d_ff": 1024}
    gated = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "decoder_start_token_id": 0}
    config = transformers.T5Config(vocab_size=SHAPE["vocab"], dropout_rate=case["dropout"], **settings, **gated)
    model = transformers.T5ForConditionalGeneration(config)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 0.05)  # two tensors: else it is tied
    model.save_pretrained(folder)


def contenders(case: dict[str, Any]) -> list[Contender]:
    """Ours, transformers with the attentions it has for the model, eager and compiled, and the bound."""
    attentions = ("sdpa", "eager") if case["family"] == "encoder" else ("eager",)
    theirs = [sys.executable, str(PEERS / "transformers_family.py")]
    return [
        Contender("hornbook", [sys.executable, "-m", "benchmarks.peers.ours_family"]),
        Contender(BOUND, [sys.executable, str(PEERS / "bound_family.py")]),
        *(
            Contender(f"transformers {attention}{' compiled' if compiled else ''}", theirs, attention, compiled)
            for attention in attentions
            for compiled in ((False,) if case["documents"] else (False, True))
        ),
    ]


def measure(case: dict[str, Any], precision: str, rounds: int, steps: int) -> dict[str, Any]:
    """Interleaved rounds of all contenders, and the peak memory of each.

    Memory is without what the idle process had (parameters among it), gradients and two moments.
    """
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(case, Path(folder))
        spec = {"shape": SHAPE, "precision": precision, "folder": folder, **case}
        processes = [Process(each, spec) for each in contenders(case)]
        idle = {each.name: each.ask(seed=0, steps=0)["peak_bytes"] for each in processes}
        answers = interleave(processes, rounds, steps)
        states = 3 * (Path(folder) / "model.safetensors").stat().st_size
    found = compare(answers, SHAPE["rows"] * SHAPE["sequence"] * steps)
    peaks = {name: answer[-1]["peak_bytes"] - idle[name] - states for name, answer in answers.items() if name != BOUND}
    return {**found, "above_states_bytes": peaks, "rounds": rounds, "steps_per_round": steps}


def run(quick: bool = False) -> dict[str, Any]:
    """All cases, printed and written to benchmarks/results/families.json; quick takes fewer rounds."""
    rounds, steps = (1, 1) if quick else (5, 1)
    figures: dict[str, Any] = {"shape": SHAPE, "cases": {}}
    for precision in cpus.precisions():
        for name, case in CASES.items():
            found = measure(case, precision, rounds, steps)
            figures["cases"].setdefault(name, {})[precision] = found
            print(name, precision, found["ours_over"], flush=True)
    report.show("families", figures, keep=not quick)
    return figures


if __name__ == "__main__":
    cpus.main("benchmarks.training.families", run, "quick")
