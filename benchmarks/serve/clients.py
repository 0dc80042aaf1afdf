"""Other people's programs on what hornbook exports and serves: does each load it, with the same logits and texts?

`python -m benchmarks.serve.clients --pythons PYTHON...` makes a tiny model of random values of each architecture, has
`hornbook export` write it (Hugging Face, ONNX, GGUF), serves the decoders, and lets every given Python run
`client_side.py` with the clients that are installed there. It writes benchmarks/results/clients.json: a row for each
client, version and architecture.
"""

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report
from benchmarks.serve.servers import hornbook, library_text

SIDE = Path(__file__).with_name("client_side.py")
RESULTS = report.RESULTS / "clients.json"
FORMS = ("hf", "onnx", "gguf")
SHAPE = (
    "model.layers=2",
    "model.width=64",
    "model.heads=4",
    "model.vocab=none",
    "model.position.length=256",
    "train.sequence=256",
)
NEW_TOKENS, VOCAB = 12, 1000
"""VOCAB is no multiple of 64, as most sizes that people choose: the embedding is trained with more rows."""
MODELS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "GPT-2": ("gpt2-124m", "bpe", ("model.mlp.hidden=256",)),
    "LLaMA": ("tiny", "bpe", ()),
    "Qwen3": (
        "qwen3-0.6b",
        "bpe",
        ("model.mlp.hidden=256", "model.attention.kv_heads=2", "model.attention.head_dim=16"),
    ),
    "NeoX": ("tiny-neox", "bpe", ()),
    "Mixtral": ("tiny-mixtral", "bpe", ("model.mlp.hidden=64",)),
    "BERT": ("bert-base", "wordpiece", ("model.mlp.hidden=256",)),
    "tiny-bert": ("tiny-bert", "wordpiece", ()),
    "tiny-classify": ("tiny-classify", "wordpiece", ("model.head.labels=['code','docstring']",)),
    "ModernBERT": ("tiny-modernbert", "bpe", ("model.layers=4",)),
    "T5": ("tiny-t5", "unigram", ("model.encoder_layers=2",)),
    "BART": ("tiny-bart", "bpe", ("model.encoder_layers=2",)),
}
"""Architecture: recipe, kind of tokenizer, settings besides SHAPE."""
CHATS = ("Who are you?", "Add 2 and 3.")
AUTO = {"decoder": "CausalLM", "encoder": "MaskedLM", "encoder_decoder": "Seq2SeqLM"}


def config_of(name: str) -> Any:
    """The shape of a recipe, made small."""
    from hornbook.settings.resolve import resolve

    recipe, _, settings = MODELS[name]
    return resolve(recipe, [*SHAPE, *settings], {}).recipe.model


def make_model(name: str, folder: Path) -> Path:
    """The model of a recipe's shape with random values and its own tokenizer, as a run's checkpoint is stored."""
    import torch

    from hornbook.model.build_model import build_model
    from hornbook.model.config.parameter_count import embedding_rows
    from hornbook.model.hf.hf import write_hf
    from hornbook.text.config.text import BPE, Unigram, WordPiece
    from hornbook.text.tokenizer.chat_template import OURS
    from hornbook.text.tokenizer.files import save_tokenizer
    from hornbook.text.tokenizer.train import train_tokenizer

    kind, config = MODELS[name][1], config_of(name)
    objectives = {"encoder": ["masked"], "encoder_decoder": ["span" if kind == "unigram" else "infill"]}
    trained = {"bpe": BPE, "wordpiece": WordPiece, "unigram": Unigram}[kind]
    made = trained(vocab=VOCAB, objectives=objectives.get(config.kind, ["causal"]))
    tokenizer = train_tokenizer(made, [[library_text()[:200_000]]])
    save_tokenizer(tokenizer, folder / "tokenizer" / name)
    if config.kind == "decoder":
        (folder / "tokenizer" / name / "chat_template.jinja").write_text(OURS["plain"])
    rows = embedding_rows(config, tokenizer.vocab_size)
    model = build_model(config, rows, "cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        for path, each in model.named_parameters():
            if each.dim() < 2:  # norms and biases
                each.copy_(("norm" in path and path.endswith("weight")) + 0.1 * torch.randn_like(each))
            else:  # small embeddings: the next token is not the one before again
                each.copy_(torch.randn_like(each) * (0.15 if "embedding" in path else each.shape[-1] ** -0.5))
    write_hf(folder / "run" / name, model, config, rows, folder / "tokenizer" / name)
    return folder / "run" / name


def export(run: Path, folder: Path) -> dict[str, str]:
    """The folders of all forms that the model has, by form; without certificates, for the clients are asked here."""
    from hornbook.cli.main import main

    made = {}
    for form in FORMS:
        out = folder / form / run.name
        command = ["export", str(run), "--to", form, "--out", str(out), "--no-certificate"]
        if main(command) == 0:
            made[form] = str(out)
    return made


def reference(name: str, folder: Path) -> dict[str, Any]:
    """What hornbook makes of the exported model: tokens, logits and greedy texts of ten prompts."""
    import torch

    from hornbook.model.generate.generate import generate
    from hornbook.model.generate.prompts import encode_prompt, encode_spelled
    from hornbook.model.hf.texts import PROMPTS
    from hornbook.model.storage.load import load_model
    from hornbook.text.tokenizer.chat_template import Message, read_chat_template

    loaded = load_model(folder)
    model, tokenizer, kind = loaded.model, loaded.tokenizer, loaded.config.kind
    assert tokenizer is not None
    assert model.head is not None
    template = read_chat_template(folder, tokenizer)
    labels, mask = getattr(loaded.config.head, "labels", None), tokenizer.special.mask or 0
    start = json.loads((folder / "config.json").read_text()).get("decoder_start_token_id")
    found: dict[str, Any] = {"name": name, "kind": kind, "rows": loaded.vocab, "prompts": [], "new": NEW_TOKENS}
    found["auto"] = "SequenceClassification" if labels else AUTO[kind]
    ends = loaded.ends if kind == "decoder" else {tokenizer.end_id}
    found |= {"ends": sorted(ends), "mask": mask}
    arrays = {}
    for number, text in enumerate((*PROMPTS[: len(PROMPTS) - len(CHATS)], *CHATS)):
        chat, memory, asked = template is not None and text in CHATS, None, text
        if kind == "encoder":
            asked = text if labels else f"{text} {tokenizer.spell(mask)}"
            source = tokens = encode_spelled(tokenizer, asked)
        elif chat:
            assert template is not None
            source = tokens = template.encode([Message("user", text)])
        else:
            tokens, memory = encode_prompt(model, tokenizer, text, start, prefix=loaded.prefix)
            source = encode_spelled(tokenizer, text, source=True) if memory else tokens
        with torch.no_grad():
            hidden = model(torch.tensor([tokens]), memory=memory)[0][0]
            logits = model.head.logits(hidden[:1] if labels else hidden)
        if kind == "encoder":
            new = [int(logits[0 if labels else tokens.index(mask), : tokenizer.vocab_size].argmax())]
        else:
            size = tokenizer.vocab_size
            how: dict[str, Any] = {"max_tokens": NEW_TOKENS, "stop": ends, "vocab": size, "memory": memory}
            new = list(generate(model, tokens, greedy=True, **how))
        arrays |= {f"logits{number}": logits.numpy(), f"hidden{number}": hidden.numpy()}
        prompt = {"text": asked, "chat": chat, "ids": source, "start": tokens, "answer": new}
        found["prompts"].append(prompt | {"answer_text": labels[new[0]] if labels else tokenizer.decode(new)})
    np.savez(folder / "reference.npz", **arrays)
    return found


@contextlib.contextmanager
def served(cases: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Every decoder over HTTP, its address in the case."""
    with contextlib.ExitStack() as servers:
        for case in cases:
            if case["kind"] == "decoder":
                port = servers.enter_context(hornbook(Path(case["hf"]), "--name", "model", "--slots", "4")).port
                case["url"] = f"http://127.0.0.1:{port}/v1"
        yield


def make_cases(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """The models of `names`, exported into the folder, each with what hornbook makes of it."""
    cases = []
    for name in names:
        forms = export(make_model(name, folder), folder)
        cases.append(forms | reference(name, Path(forms["hf"])))
    return cases


def ask(python: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of the clients of one Python; they may use one thread, and no network but this machine's."""
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environ |= {"HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": "none", "OMP_NUM_THREADS": "1"}
    environ |= {"TOKENIZERS_PARALLELISM": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    subprocess.run([python, str(SIDE), str(folder)], check=True, env=environ)
    return json.loads((folder / "rows.json").read_text())


def run(pythons: Sequence[str], names: Sequence[str] = tuple(MODELS), kept: Path | None = None) -> dict[str, Any]:
    """Ask the clients of all Pythons and write the file, where rows of other clients and versions stay.

    `kept`: a folder whose models are used again, or that is made.
    """
    rows = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = kept or Path(scratch)
        listed = folder / "cases.json"
        cases = json.loads(listed.read_text()) if listed.exists() else make_cases(folder, names)
        listed.write_text(json.dumps(cases))
        with served(cases):
            (folder / "served.json").write_text(json.dumps([each for each in cases if each["name"] in names]))
            for python in pythons:
                rows += ask(python, folder)
    figures = {"new_tokens": NEW_TOKENS, "prompts": len(cases[0]["prompts"]), "rows": merged(rows)}
    print(report.table(HEADER, table(figures["rows"])))
    print(f"wrote {report.write('clients', figures)}")
    return figures


def merged(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each client, version and architecture, by name of the client."""
    unique = {(row["client"], row["version"], row["model"]): row for row in rows}
    return [unique[key] for key in sorted(unique, key=lambda key: (key[0].lower(), key[1], list(MODELS).index(key[2])))]


HEADER = ("client", *MODELS)


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A line for each client and version: by architecture the difference of logits, equal texts, or what failed."""
    lines: dict[str, dict[str, str]] = {}
    for row in rows:
        lines.setdefault(f"{row['client']} {row['version']}", {})[row["model"]] = cell(row)
    return [[name, *(cells.get(model, "") for model in MODELS)] for name, cells in lines.items()]


def cell(row: dict[str, Any]) -> str:
    """Figures of one row in few characters."""
    if row["error"]:
        return row["error"].split(":")[0]
    figures = [f"{row['difference']:.0e}"] if row["difference"] is not None else []
    return ", ".join([*figures, *([f"{row['equal']}/{row['texts']}"] if row["texts"] else [])])


def main() -> None:
    """`run` for the Pythons given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", nargs="+", required=True, help="interpreters that have clients installed")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=tuple(MODELS))
    parser.add_argument("--folder", type=Path, help="where the models are kept, to be used again")
    given = parser.parse_args()
    run(given.pythons, given.models, given.folder)


if __name__ == "__main__":
    main()
