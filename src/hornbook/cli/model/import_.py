"""`hornbook import`: convert a local Hugging Face folder to a hornbook checkpoint, with more tokens where asked."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from hornbook.cli.model.out_folder import Certify, certify_model, check_free, new_model, report_text, with_tokenizer
from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, say
from hornbook.errors import IntegrityError, UsageError, quoted


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="HF_DIR", help="A local folder with config.json and safetensors, or a run (its newest)."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(metavar="CHECKPOINT", help="Folder to write; new or empty.")],
    add_tokens: Annotated[
        Path | None, typer.Option(help="File of tokens to add to the tokenizer, one per line.")
    ] = None,
    certificate: Certify = True,
    dry_run: DryRun = False,
) -> Result:
    """Convert a Hugging Face model to a checkpoint that train --from, eval and generate read.

    Decoders, masked encoders and encoder-decoders; docs/parity.md lists the architectures.
    Only safetensors are read, never pickles. Exit code 3 if a file is damaged or the certificate fails.
    """
    from hornbook.model.hf.generation_config import is_foreign
    from hornbook.model.hf.hf import left_out, read_hf, write_hf
    from hornbook.model.surgery.folders import decoder_start_of

    source = _folder_of(source)
    config, vocab, stream = read_hf(source)
    check_free(out)
    if add_tokens is not None:
        return _extend(source, add_tokens, out, dry_run=dry_run)
    report: dict[str, Any] = {"source": str(source), "out": str(out), "model": config.model_dump(mode="json")}
    if dry_run:
        shape = f"{config.layers} layers, width {config.width}, {vocab} rows of embedding"
        return Result(report | {"dry_run": True}, f"would import {source} ({shape}) to {out}; nothing written")
    with new_model(out, "import", source, report) as partial:
        tensors = dict(stream)
        start, like = decoder_start_of(source), source if is_foreign(source) else None
        write_hf(partial, tensors, config, vocab, with_tokenizer(source), decoder_start=start, like=like)
        found, note = certify_model(partial, "imported", wanted=certificate, reference=source, source=tensors)
    report["certificate"] = found.to_json() if found else None
    report["left_out"] = left_out(source)
    if report["left_out"]:
        names = ", ".join(report["left_out"])
        say(f"[yellow]warning[/] {names}: left out, for config.json names another head")
    last = found.summary().replace("loaded back", "original loaded") if found else note
    notes = [f"[yellow]warning[/] {note}"] if found is None else []
    if with_tokenizer(source) is None:
        notes.append(f"[yellow]warning[/] {_without_tokenizer(source)}")
    return Result(report, report_text(out, report["files"], last), notes=notes)


def _folder_of(source: Path) -> Path:
    """The model folder, or a run's newest checkpoint; else UsageError with the way to get a model."""
    from hornbook.files.run_directory import RunDir
    from hornbook.model.surgery.adapters.adapter_files import is_adapter
    from hornbook.run.checkpoints.find_checkpoint import HOW_TO_GET, checkpoint_path

    if not source.is_dir():
        what = "is a file" if source.exists() else "no such folder"
        raise UsageError(f"{source}: {what}. import takes a local folder with a Hugging Face model; {HOW_TO_GET}")
    given = source
    if not (source / "config.json").exists() and RunDir(source).checkpoints.is_dir():
        source = checkpoint_path(source)
    if is_adapter(source):
        raise UsageError(
            f"{given} is an adapter, not a whole model: merge it with `hornbook export {quoted(given)} --out FOLDER`"
        )
    if not (source / "config.json").exists():
        raise UsageError(f"{source}: it has no config.json, so it is not a Hugging Face model; {HOW_TO_GET}")
    return source


def _without_tokenizer(source: Path) -> str:
    """Name the tokenizer files of a folder without tokenizer.json, and the remedy."""
    from hornbook.model.hf.hf_tokenizer import OTHER_FORMS

    forms = [name for name in OTHER_FORMS if (source / name).exists()]
    remedy = "so generate, eval and chat cannot read text: put the tokenizer.json of the model there"
    if forms:
        remedy = (
            "so generate, eval and chat cannot read text: write the file with transformers, "
            f"AutoTokenizer.from_pretrained({str(source)!r}).save_pretrained({str(source)!r})"
        )
    instead = (
        f"it has {', '.join(forms)} alone, which hornbook does not read" if forms else "it has no tokenizer at all"
    )
    return f"imported without a tokenizer: {source} has no tokenizer.json, {instead}, {remedy}, and import again"


def _extend(source: Path, file: Path, out: Path, *, dry_run: bool) -> Result:
    """Write the model and its tokenizer with new tokens, whose embedding rows are the means of their pieces."""
    from hornbook.model.hf.generation_config import is_foreign
    from hornbook.model.hf.hf import read_hf, write_hf
    from hornbook.model.hf.hf_tokenizer import SETTINGS
    from hornbook.model.surgery.folders import decoder_start_of
    from hornbook.model.surgery.grown_vocabulary import extended, pieces_of, write_extended_tokenizer
    from hornbook.text.tokenizer.tokenizer import Tokenizer

    if not (source / "tokenizer.json").exists():
        raise UsageError(f"{source}: it has no tokenizer.json to add tokens to")
    try:
        tokens = [line for line in file.read_text(encoding="utf-8").split("\n") if line]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--add-tokens {file} cannot be read: {error}") from error
    config, vocab, stream = read_hf(source)
    old = Tokenizer.load(source)
    known, pieces = old.vocab_size, pieces_of(tokens, old)
    if known > vocab:
        raise IntegrityError(f"{source}: its tokenizer has {known} ids, but its model only {vocab} embedding rows")
    rows = max(vocab, known + len(tokens))  # as before if the new tokens find room, else one for each token
    config = config.model_copy(update={"vocab": rows})
    mean = sum(map(len, pieces)) / max(len(pieces), 1)
    last = f"{len(tokens)} new tokens (of {mean:.1f} pieces on average) behind {known}; {rows} rows of embedding"
    report: dict[str, Any] = {"source": str(source), "out": str(out), "added": len(tokens), "vocab": rows}
    if dry_run:
        return Result(report | {"dry_run": True}, f"would import {source} to {out}: {last}; nothing written")
    with new_model(out, "import", source, report) as partial:
        scratch = partial.with_name(f"{partial.name}-tokenizer")
        try:
            write_extended_tokenizer(source, tokens, scratch)
            for name in SETTINGS:
                if (source / name).exists():
                    shutil.copyfile(source / name, scratch / name)
            like = source if is_foreign(source) else None
            tensors = dict(extended(stream, known, pieces, rows))
            write_hf(partial, tensors, config, rows, scratch, decoder_start=decoder_start_of(source), like=like)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return Result(report, report_text(out, report["files"], last))
