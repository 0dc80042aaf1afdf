"""`hornbook tokenize`: train a tokenizer and encode documents to token shards."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.data.compare_tokenizers import figures_table, load_samples, load_tokenizers, sort_words
from hornbook.cli.data.train_proxy import Proxy, noise, proxy_table, train_proxies
from hornbook.cli.result import Result, table
from hornbook.cli.shell import DryRun, people, split_target, split_targets
from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.progress import progress_bar, size_text
from hornbook.settings.fields import parse_number
from hornbook.settings.resolve import resolve
from hornbook.text.config.text import TextConfig, TokenizerFile

if TYPE_CHECKING:
    from hornbook.text.tokenizer.compare.compare import TextSample
    from hornbook.text.tokenizer.tokenize import TokenReport
    from hornbook.text.tokenizer.tokenizer import Tokenizer


PROXY_BYTES = "1M"  # under a minute per tokenizer on two cores, both seeds


def tokenize(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA [--section.key value]...",
            help="A folder written by `hornbook prepare`, and settings. With --compare: tokenizers and texts.",
        ),
    ] = None,
    *,
    vocab: Annotated[str | None, typer.Option(metavar="N", help="Train a tokenizer of this size, such as 16k.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="PATH", help="Use this tokenizer.json, or that of a folder or run.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Number of processes; 0: one per core.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the tokenizer and tokens of other settings.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Compare tokenizers (tokenizer.json, folders, bpe:16k, unigram:8k ...) on texts; write nothing.",
        ),
    ] = False,
    train_proxy: Annotated[
        bool, typer.Option("--train-proxy", help="With --compare: also train the same small model with each.")
    ] = False,
    proxy_bytes: Annotated[
        str | None, typer.Option(metavar="N", help="Bytes of text for the small models (1M).")
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Train or load a tokenizer, and encode all documents into token shards for training and validation.

    Settings come from the recipe given to prepare. A killed tokenize resumes; any number of workers writes the
    same bytes.
    """
    from hornbook.text.tokenizer.tokenize import tokenize as run

    if proxy_bytes is not None and not train_proxy:
        raise UsageError("--proxy-bytes is the amount of text for --train-proxy: give both, or neither")
    if compare or train_proxy:
        options = (("--vocab", vocab), ("--tokenizer", tokenizer), ("--workers", workers), ("--overwrite", overwrite))
        if idle := [name for name, value in (*options, ("-n", dry_run)) if value]:
            raise UsageError(
                f"{', '.join(idle)}: of no use with --compare, which writes nothing; write bpe:16k to train a tokenizer"
            )
        return _compare(words or [], read_count(proxy_bytes or PROXY_BYTES) if train_proxy else 0)
    data, config = _config(words or [], vocab, tokenizer)
    if dry_run:
        return _plan(data, config)
    with progress_bar() as progress:
        report = run(data, config, workers=workers, overwrite=overwrite, progress=progress)
    return Result({"data": str(data), **report.to_json()}, report=report_tables(report, data))


def _config(words: list[str], vocab: str | None, tokenizer: str | None) -> tuple[Path, TextConfig]:
    """The data folder, and its stored [text] section with the settings of the command line."""
    from hornbook.text.refinery.pipeline.folder import TEXT_TOML, read_text_config

    target, overrides = split_target(words, "data folder")
    if target is None:
        raise UsageError("name the folder that `hornbook prepare` wrote: hornbook tokenize DATA")
    if vocab is not None and tokenizer is not None:
        raise UsageError("--vocab trains a tokenizer and --tokenizer uses an existing one: give one of them")
    data = Path(target)
    kind = read_text_config(data).tokenizer.kind
    if vocab is not None:
        overrides = [
            *(["text.tokenizer.kind=bpe"] if kind == "file" else []),
            *overrides,
            f"text.tokenizer.vocab={vocab}",
        ]
    if tokenizer is not None:
        overrides += ["text.tokenizer.kind=file", f"text.tokenizer.path={_tokenizer_path(tokenizer)}"]
    return data, resolve(str(data / TEXT_TOML), overrides).recipe.text


def _tokenizer_path(path: str) -> str:
    """The path; of a run that of its newest checkpoint."""
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path

    return str(checkpoint_path(path)) if RunDir(path).checkpoints.is_dir() else path


def _compare(words: list[str], proxy_bytes: int) -> Result:
    """Compare tokenizers; with `proxy_bytes`, also by small models trained on that amount of text."""
    from hornbook.text.ingest.skipped import SkippedRows
    from hornbook.text.tokenizer.compare.compare import compare

    targets, overrides = split_targets(words)
    if overrides:
        raise UsageError(f"--compare takes tokenizers and texts, but no settings: {overrides[0].partition('=')[0]}")
    named, texts = sort_words(targets)
    skipped = SkippedRows()
    samples, tokenizers = load_samples(texts, skipped=skipped), load_tokenizers(named, texts)
    found = compare(tokenizers, samples)
    people().print(figures_table(found, tokenizers))  # training small models takes a while
    for note in skipped.notes:
        people().print(note)
    value: dict[str, Any] = {"figures": [figures.to_json() for figures in found], **skipped.to_json()}
    if not proxy_bytes:
        return Result(value)
    proxies = _train_proxies(tokenizers, load_samples(texts, proxy_bytes // len(samples), held_out=False))
    lossy = [name for name in tokenizers if any(each.tokenizer == name and not each.lossless for each in found)]
    value["proxy"] = {"models": [proxy.to_json() for proxy in proxies], "noise": noise(proxies)}
    return Result(value, report=proxy_table(proxies, lossy))


def _train_proxies(tokenizers: "dict[str, Tokenizer]", samples: "list[TextSample]") -> list[Proxy]:
    with tempfile.TemporaryDirectory(prefix="hornbook-proxy-") as scratch:
        found: list[Proxy] = []
        with progress_bar() as progress:
            progress("train small models", 0, len(tokenizers))
            for proxy in train_proxies(tokenizers, samples, Path(scratch)):
                found.append(proxy)
                progress("train small models", len(found), len(tokenizers))
    return found


def read_count(text: str) -> int:
    """Parse a positive integer such as 64k or 1.5M. Raises UsageError."""
    number = parse_number(text)
    if not isinstance(number, int) or number <= 0:
        raise UsageError(f"--proxy-bytes {text}: write a number of bytes, such as 500k or 2M")
    return number


def _plan(data: Path, config: TextConfig) -> Result:
    kind = config.tokenizer
    what = f"use {kind.path}" if isinstance(kind, TokenizerFile) else f"train {kind.kind}, {kind.vocab:,} tokens"
    share = f"{config.validation:.1%} held out"
    text = f"would write {data / 'tokenizer'} and {data / 'tokens'}: {what}; {share}; nothing written"
    plan = {"dry_run": True, "data": str(data), "tokenizer": kind.model_dump(), "validation": config.validation}
    return Result(plan, text)


def report_tables(report: "TokenReport", data: Path) -> list[Any]:
    """The report for people: a table, notes and the next command."""
    made = "trained" if report.trained else "given"
    title = f"Tokens ({report.vocab:,} in the vocabulary, {made}; {report.seconds:.1f} s)"
    shown = table(title, ["source", "split"], ["documents", "tokens", "text", "bytes/token"])
    last = ""
    for (source, split), share in report.shares.items():
        shown.add_row("" if source == last else source, split, *_cells(share))
        last = source
    shown.add_section()
    shown.add_row("[bold]all[/]", "", *(f"[bold]{cell}[/]" for cell in _cells(report.total())))
    notes = "".join(f"note: {note}\n" for note in report.notes)
    return [shown, f"{notes}next: hornbook train RECIPE --data {quoted(data)}"]


def _cells(share: Any) -> tuple[str, ...]:
    return f"{share.documents:,}", f"{share.tokens:,}", size_text(share.bytes), f"{share.bytes_per_token:.2f}"
