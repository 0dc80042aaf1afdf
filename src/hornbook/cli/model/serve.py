"""`hornbook serve`: answer HTTP requests with a model, by OpenAI's interface."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.model.generate import load_speaker
from hornbook.cli.result import Result
from hornbook.cli.shell import Device, Target, say
from hornbook.errors import DoesNotFitError, UsageError
from hornbook.progress import progress_bar

if TYPE_CHECKING:
    from hornbook.model.storage.load import Loaded

KEY = "HORNBOOK_API_KEY"


def serve(
    target: Target,
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name by which others call this machine; repeatable.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the model; by default that of its folder.")] = None,
    context: Annotated[
        int | None, typer.Option(min=2, help="Tokens of prompt and text together; by default the model's positions.")
    ] = None,
    slots: Annotated[int, typer.Option(min=1, max=4096, help="Texts that are generated together.")] = 16,
    queue: Annotated[int, typer.Option(min=0, help="Texts that may wait for a slot; others get status 503.")] = 128,
    seconds: Annotated[float, typer.Option(min=0.1, help="A request that takes longer is ended.")] = 300.0,
    device: Device = "auto",
) -> Result:
    """Serve a decoder over HTTP: /v1/completions, /v1/chat/completions and /v1/models, as OpenAI's clients ask.

    It listens on 127.0.0.1 alone unless --host says otherwise. With the environment variable HORNBOOK_API_KEY requests
    must bring that key. Chats need a chat template beside the tokenizer. SIGTERM or Ctrl-C ends it once what is under
    way has ended; a second one at once.
    """
    from hornbook.serve.app import build_app
    from hornbook.serve.limits import Limits
    from hornbook.serve.server import Address, serve_app
    from hornbook.serve.service import Service
    from hornbook.serve.serving_engine import Engine

    key = _key()
    with progress_bar() as progress:
        progress("load the model", 0, None)
        loaded = load_speaker(target, device)
    limits = Limits(slots=slots, queue=queue, seconds=seconds, context=_context(loaded, context))
    address = Address(host, port, tuple(allow_host or ()))
    called = name or target.resolve().name
    engine = Engine(loaded, limits)
    _check_memory(loaded, engine.cache_bytes(), limits.slots)
    service = Service(loaded, called, engine)
    app = build_app(service, hosts=address.hosts, key=key)
    if not address.is_local:
        who = "anyone who has the key" if key else f"ANYONE: set {KEY} to ask for a key"
        say(f"[yellow]warning[/] {host} is reached from other machines, by {who}; nothing is encrypted")

    def report(bound: int) -> None:
        say(f"{called} at http://{host}:{bound}/v1 ({limits.context:,} tokens, {slots} slots); Ctrl-C ends")

    serve_app(app, address, report, drain_seconds=limits.drain_seconds)
    return Result({"model": called, "steps": service.engine.steps}, None, report=["the server has ended"])


def _key() -> str | None:
    """The key that requests must bring, without white space around it, such as the end of a file's line."""
    key = os.environ.get(KEY)
    if key is not None and not key.strip():
        raise UsageError(f"{KEY} is set and empty, which would let anyone in: give it a key, or unset it")
    return None if key is None else key.strip()


def _context(loaded: "Loaded", wanted: int | None) -> int:
    from hornbook.model.surgery.adapters.prompt import prompt_length

    if loaded.config.kind != "decoder":
        raise UsageError(
            f"{loaded.folder}: a server needs a decoder, and this is an {loaded.config.kind}: use `hornbook generate`"
        )
    most = loaded.config.position.length - prompt_length(loaded.model)
    if wanted is not None and wanted > most:
        raise UsageError(f"--context {wanted}: the model has {most} positions: give at most that")
    return wanted or most


def _check_memory(loaded: "Loaded", needed: int, slots: int) -> None:
    """Raise DoesNotFitError unless full slots find room: a server that dies of it takes all texts with it."""
    from hornbook.run.machine.process_memory import free_memory

    free = free_memory(next(loaded.model.parameters()).device)
    if needed > free:
        raise DoesNotFitError(
            f"{slots} full slots need {needed / 1e9:,.1f} GB of keys and values, and {free / 1e9:,.1f} GB are free: "
            "choose fewer --slots or a smaller --context"
        )
