"""Training steps of a recipe beside peers on the same card: tokens per second, memory.

Each contender is a process that runs alone, since two do not fit; peers are found by the variables of
`benchmarks.contenders.peers_here`, and what is not there is told. torchtitan may have its float8 too, beside ours.
"""

import statistics
import sys
from dataclasses import replace
from typing import Any

from benchmarks.contenders.peers_here import find
from benchmarks.contenders.processes import ROOT, Contender, Process
from benchmarks.gpu.step import TINY, TINY_ATTENTION
from benchmarks.gpu.worker import begin

ROUNDS, STEPS = 3, 10
PROGRAM = str(ROOT / "benchmarks" / "peers" / "large.py")
GPT2 = ("GPT2", {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0})
LLAMA_KEYS = {"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
LLAMA_KEYS |= {"num_key_value_heads": 8, "intermediate_size": 8192, "max_position_embeddings": 8192}
LLAMA = ("Llama", LLAMA_KEYS | {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True})
LITGPT_GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "padded_vocab_size": 50304, "intermediate_size": 3072}
LITGPT_GPT2 |= {"parallel_residual": False, "rotary_percentage": 1.0, "gelu_approximate": "tanh", "block_size": 1024}
BLOCKS = 8
LLAMA_8B = ("Llama", LLAMA[1] | {"hidden_size": 4096, "num_hidden_layers": BLOCKS, "intermediate_size": 14336})
LLAMA_8B[1]["tie_word_embeddings"] = False
SIZES: dict[str, dict[str, Any]] = {
    "gpt2-124m": {"transformers": GPT2, "litgpt": LITGPT_GPT2, "nanoGPT": {}},
    "llama-1b": {
        "transformers": LLAMA,
        "litgpt": {"name": "Llama-3.2-1B"},
        "torchtitan": {"flavor": "1B", "layers": 16},
    },
    "llama-3-8b": {"transformers": LLAMA_8B, "litgpt": {"name": "Llama-3-8B", "n_layer": BLOCKS}}
    | {"torchtitan": {"flavor": "8B", "layers": BLOCKS}},
}
"""Of each recipe, what a peer makes its model of."""
WITHOUT = {"modded-nanogpt": "its script is a run of its own, not a step: parts `five minutes` of this command"}
FLOAT8 = ", float8"
"""Behind the name of a contender with float8 products in its linear layers."""
EIGHT_BIT = ("hornbook", "torchtitan")


def contenders(recipe: str) -> tuple[list[Contender], dict[str, str]]:
    """(hornbook and the peers that are here, why others are left out)."""
    made = [Contender(name, [sys.executable, PROGRAM]) for name in ("hornbook", "transformers")]
    missing = dict(WITHOUT)
    for name in ("litgpt", "nanoGPT", "torchtitan"):
        found = find(name)
        if found.missing or name not in SIZES[recipe]:
            missing[name] = found.missing or "it has no such model"
        else:
            made.append(Contender(name, [found.python, PROGRAM], home=found.home))
    eights = [replace(each, name=each.name + FLOAT8, precision="float8") for each in made if each.name in EIGHT_BIT]
    if "torchtitan" not in SIZES[recipe]:
        missing |= {each.name: "for the llamas" for each in eights}
        return made, missing
    return made + eights, missing


def spec_of(spec: dict[str, Any], device: str, vocab: int) -> dict[str, Any]:
    """What the contenders of a part are told; tiny where it is dry."""
    shape = {"rows": spec["rows"], "sequence": spec["sequence"], "vocab": vocab}
    sizes, words = dict(SIZES[spec["recipe"]]), list(spec["words"])
    if spec["dry_run"]:
        shape = {"rows": 2, "sequence": 64, "vocab": 256}
        words += [*TINY, *TINY_ATTENTION.get(spec["recipe"], [])]
        sizes |= {"transformers": ("GPT2", {"n_layer": 2, "n_head": 4, "n_embd": 64, "vocab_size": 256})}
        tiny = {"n_layer": 2, "n_head": 4, "n_embd": 64}
        sizes |= {"litgpt": tiny | {"padded_vocab_size": 256}, "nanoGPT": tiny | {"vocab_size": 256}}
        sizes |= {"torchtitan": {"flavor": "debugmodel", "layers": 2}}
    told = {"shape": shape, "device": device, "recompute": False, "micro_batch": shape["rows"], "words": words}
    return told | {"recipe": spec["recipe"], **sizes, "nanogpt": sizes.get("nanoGPT")}


def measure(contender: Contender, spec: dict[str, Any], steps: int) -> dict[str, Any]:
    """One contender: its rate, its memory, or what went wrong."""
    shape = spec["shape"]
    try:
        process = Process(contender, spec | {"loop": contender.name.removesuffix(FLOAT8), "precision": "bf16"})
        answers = [process.ask(seed=number, steps=steps) for number in range(ROUNDS + 1)]
        process.close()
    except (RuntimeError, OSError) as error:
        return {"problem": str(error)}
    seconds = statistics.median(answer["seconds"] for answer in answers[1:])
    rate = shape["rows"] * shape["sequence"] * steps / seconds
    return {"tokens_per_second": rate, "peak_bytes": answers[-1]["peak_bytes"], "last_loss": answers[-1]["losses"][-1]}


def main() -> None:
    """All contenders in turn but those that an earlier call measured, each written as it is known."""
    output, spec, device = begin()
    from hornbook.settings.resolve import resolve

    vocab = resolve(spec["recipe"], [], environ={}).recipe.model.vocab
    assert vocab is not None
    found, missing = contenders(spec["recipe"])
    told = spec_of(spec, str(device), vocab)
    known = {name: each for name, each in output.before.get("contenders", {}).items() if "problem" not in each}
    figures: dict[str, Any] = {"contenders": known, "left_out": missing}
    for contender in [each for each in found if each.name not in known]:
        made = replace(contender, compile=not spec["dry_run"])
        figures["contenders"][contender.name] = measure(made, told, 1 if spec["dry_run"] else STEPS)
        output.write(figures)
        print(contender.name, figures["contenders"][contender.name], flush=True)


if __name__ == "__main__":
    main()
