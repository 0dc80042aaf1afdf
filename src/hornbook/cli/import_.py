"""`hornbook import`: a local Hugging Face folder to a checkpoint of ours."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hornbook.cli.shell import DryRun, Json, answer, say


def import_(
    source: Annotated[Path, typer.Argument(metavar="HF_DIR", help="Local folder: config.json and safetensors.")],
    *,
    out: Annotated[Path, typer.Option("--out", metavar="CHECKPOINT", help="Folder to write; it must not exist yet.")],
    certificate: Annotated[
        bool, typer.Option("--certificate/--no-certificate", help="Compare with transformers on the original.")
    ] = True,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Read GPT-2, LLaMA or Qwen3 weights and write them as a checkpoint to train from, evaluate or generate with.

    Only safetensors are read, never pickles. Exit code 3 if a file is damaged or the certificate fails.
    """
    from hornbook.cli.export import report_text
    from hornbook.cli.out_folder import appearing, check_free, file_sizes
    from hornbook.model.certificate import MissingTransformers, certify
    from hornbook.model.hf import read_hf, write_hf

    config, vocab, stream = read_hf(source)
    check_free(out)
    report: dict[str, Any] = {"source": str(source), "out": str(out), "model": config.model_dump(mode="json")}
    if dry_run:
        shape = f"{config.layers} layers, width {config.width}, {vocab} rows of embedding"
        answer(
            report | {"dry_run": True}, f"would import {source} ({shape}) to {out}; nothing written", as_json=as_json
        )
        return
    found, note = None, "not certified (--no-certificate)"
    with appearing(out) as partial:
        tensors = dict(stream)
        write_hf(partial, tensors, config, vocab, source if (source / "tokenizer.json").exists() else None)
        if certificate:
            try:
                found = certify(partial, reference=source, source=tensors).require()
            except MissingTransformers as error:
                note = f"imported, but {error}"
        report["files"] = file_sizes(partial)
    report["certificate"] = found.to_json() if found else None
    last = found.summary().replace("loaded back", "original loaded") if found else note
    answer(report, report_text(out, report["files"], last), as_json=as_json)
    if found is None and not as_json:
        say(f"[yellow]warning[/] {note}")
