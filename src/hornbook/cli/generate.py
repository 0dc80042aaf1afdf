"""`hornbook generate`: continue a prompt, or prompts line by line, as the text comes."""

import dataclasses
import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.shell import Json, answer, say
from hornbook.errors import UsageError

if TYPE_CHECKING:
    from hornbook.model.load import Loaded
    from hornbook.model.sampling import Sampling


def generate(
    target: Annotated[
        Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run (its newest checkpoint) or a checkpoint.")
    ],
    *,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", help="What to continue; without it, lines of stdin.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=0, help="Tokens to generate at most.")] = 128,
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same text.")] = 0,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the most likely token.")] = False,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1 bolder, above 1 wilder; 0 is greedy.")
    ] = 0.8,
    top_k: Annotated[int, typer.Option("--top-k", help="Only the k most likely tokens; 0 is all.")] = 50,
    top_p: Annotated[float, typer.Option("--top-p", help="Only the most likely tokens with this share in all.")] = 1.0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")] = "auto",
    as_json: Json = False,
) -> None:
    """Continue a prompt. stdout has the prompt and its continuation, stderr the speed.

    A text ends at the model's end-of-text token. One longer than the model's positions goes on from its last half.
    Without -p each line of stdin is a prompt of its own; --json prints one object per prompt.
    """
    from hornbook.model.load import load_model
    from hornbook.model.sampling import Sampling
    from hornbook.parallel.mesh import choose_device
    from hornbook.run.checkpoint_path import checkpoint_path

    sampling = Sampling(temperature, top_k, top_p, greedy, seed)
    loaded = load_model(checkpoint_path(target), device=choose_device(device))
    if loaded.tokenizer is None:
        raise UsageError(f"{loaded.folder}: it has no tokenizer.json, so there is no text to read or write")
    for each in _prompts(prompt):
        _respond(loaded, each, tokens, sampling, as_json=as_json, echo=prompt is not None or not sys.stdin.isatty())


def _prompts(prompt: str | None) -> Iterator[str]:
    if prompt is not None:
        yield _utf8(prompt)
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # judged by _utf8
    if sys.stdin.isatty():
        say("one prompt per line; Ctrl-D ends")
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        yield _utf8(line.rstrip("\n"))


def _respond(
    loaded: "Loaded", prompt: str, max_tokens: int, sampling: "Sampling", *, as_json: bool, echo: bool
) -> None:
    """Generate, showing the text piece by piece (or one JSON object at the end)."""
    pieces: list[str] = []
    ids: list[int] = []
    start = time.perf_counter()
    if echo and not as_json:
        _show(prompt)
    for piece in _stream(loaded, prompt, max_tokens, sampling, ids):
        pieces.append(piece)
        if not as_json:
            _show(piece)
    seconds = time.perf_counter() - start
    ended = "length" if len(ids) == max_tokens else "end of text"
    if as_json:
        answer(_record(prompt, "".join(pieces), ids, sampling) | {"ended": ended, "seconds": round(seconds, 3)})
    else:
        _show("\n")
    say(f"{len(ids)} tokens, {len(ids) / max(seconds, 1e-9):,.0f} tok/s, ended by {ended}")


def _stream(loaded: "Loaded", prompt: str, max_tokens: int, sampling: "Sampling", ids: list[int]) -> Iterator[str]:
    """Pieces of text; the ids are collected in `ids` on the way."""
    from hornbook.model.generate import generate as generate_ids
    from hornbook.model.generate import stream_text

    tokenizer = loaded.tokenizer
    assert tokenizer is not None
    before = [tokenizer.delimiter_id, *tokenizer.encode(prompt)]
    stream = generate_ids(
        loaded.model,
        before,
        max_tokens=max_tokens,
        **dataclasses.asdict(sampling),
        stop=(tokenizer.end_id, tokenizer.delimiter_id),
        vocab=tokenizer.vocab_size,
        length=loaded.config.position.length,
    )

    def collected() -> Iterator[int]:
        for token in stream:
            ids.append(token)
            yield token

    return stream_text(collected(), tokenizer, before)


def _utf8(prompt: str) -> str:
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError("the prompt is not UTF-8 text") from error
    return prompt


def _record(prompt: str, text: str, ids: list[int], sampling: "Sampling") -> dict[str, Any]:
    return {"prompt": prompt, "text": text, "tokens": len(ids), "ids": ids, **dataclasses.asdict(sampling)}


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
