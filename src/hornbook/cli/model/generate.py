"""`hornbook generate`: continue a prompt, or each line of stdin, printing the text while it is generated."""

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hornbook.cli.result import Json, Options, Result, Results, write
from hornbook.cli.shell import Device, Target, importing, read_utf8, require_utf8, say
from hornbook.errors import UsageError
from hornbook.progress import escape_controls

if TYPE_CHECKING:
    from hornbook.model.generate.prompts import Prompt
    from hornbook.model.generate.sampling import Sampling, TokenScore
    from hornbook.model.generate.speculative import Drafter, Tally
    from hornbook.model.generate.text_stream import StopStrings
    from hornbook.model.storage.load import Loaded
    from hornbook.text.tokenizer.chat_template import ChatTemplate

MaxTokens = Annotated[int, typer.Option(min=0, help="Maximum number of tokens to generate.")]
Stop = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="End before this text; repeatable.")]


@dataclasses.dataclass(frozen=True)
class SamplingOptions(Options):
    """How tokens are chosen: the fields of `Sampling`."""

    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0
    greedy: Annotated[bool, typer.Option("--greedy", help="Always choose the most likely token.")] = False
    temperature: Annotated[float, typer.Option(help="Below 1 more predictable, above 1 more varied; 0 is greedy.")] = (
        0.8
    )
    top_k: Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 means all.")] = 50
    top_p: Annotated[float, typer.Option(help="Sample from the most likely tokens with this total probability.")] = 1.0
    min_p: Annotated[float, typer.Option(help="Sample from tokens at least this share as likely as the likeliest.")] = (
        0.0
    )
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: tokens of prompt and text become less likely.")
    ] = 1.0
    presence_penalty: Annotated[float, typer.Option(help="Subtracted from the logits of generated tokens.")] = 0.0
    frequency_penalty: Annotated[
        float, typer.Option(help="The same, once for each time that a token was generated.")
    ] = 0.0

    def sampling(self) -> "Sampling":
        """Raises UsageError for a value that is out of bounds."""
        from hornbook.model.generate.sampling import Sampling

        return Sampling(**dataclasses.asdict(self))


DRAFT_TOKENS = 4


@dataclasses.dataclass(frozen=True)
class SearchOptions(Options):
    """Options of decoding beside those of sampling: stop texts, beams, drafts."""

    stop: Stop = None
    logprobs: Annotated[
        int | None, typer.Option(min=0, max=100, help="With --json: log-probabilities, and so many likely tokens.")
    ] = None
    beams: Annotated[
        int, typer.Option(min=1, help="Beams of beam search, which ends at the model's positions; 1: sampling.")
    ] = 1
    length_penalty: Annotated[
        float, typer.Option(help="With --beams: above 0 prefers longer texts, below 0 shorter ones.")
    ] = 1.0
    speculative: Annotated[
        bool,
        typer.Option("--speculative", help="Draft tokens by the model's multi-token prediction; check them at once."),
    ] = False
    draft: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Draft tokens by this smaller model; check them at once.")
    ] = None
    draft_tokens: Annotated[
        int | None, typer.Option(min=1, max=64, help=f"With --draft: tokens drafted at a time ({DRAFT_TOKENS}).")
    ] = None


def generate(
    target: Target,
    *,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", help="The text to continue; without it, each line of stdin.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Each prompt is a user's message, answered by the model's chat template.")
    ] = False,
    tokens: MaxTokens = 128,
    options: SamplingOptions,
    search: SearchOptions,
    device: Device = "auto",
    as_json: Json = False,
) -> Results:
    """Continue a prompt, answer it, or fill its masks. stdout has the text, stderr the speed.

    A decoder continues the prompt, an encoder-decoder answers it, an encoder fills its masks. Spell masks and sentinels
    as the tokenizer does ([MASK], <extra_id_0>).
    With --chat the model's chat template asks it; `hornbook chat` remembers earlier turns.
    Text ends at the model's end-of-text token. When it fills the model's positions, it continues from its second half.
    Without -p, each line of stdin is a prompt of its own. --json prints one object per prompt.
    """
    sampling = options.sampling()
    if search.beams > 1 and (search.logprobs is not None or sampling.penalises or sampling.min_p):
        raise UsageError("--beams searches for the likeliest text: leave out --logprobs, --min-p and penalties")
    if search.beams > 1 and (search.speculative or search.draft):
        raise UsageError("--beams keeps several texts at once: leave out --speculative and --draft")
    loaded = load_speaker(target, device)
    wanted = Wanted(tokens, sampling, search, _drafter(loaded, search), _chat_template(loaded) if chat else None)
    for each in _prompts(prompt):
        if loaded.config.kind == "encoder":
            yield _fill(loaded, each)
            continue
        echo = loaded.config.kind == "decoder" and not chat and (prompt is not None or not sys.stdin.isatty())
        yield _respond(loaded, each, wanted, as_json=as_json, echo=echo)


def load_speaker(target: Path, device: str) -> "Loaded":
    """A model with a tokenizer and a head that predicts tokens, ready to generate. Raises UsageError for any other."""
    with importing():
        from hornbook.model.config.head_config import LabelHeadConfig
        from hornbook.model.config.replaced_config import ReplacedHead
        from hornbook.model.layers.packed_linear import pack, packed_bytes
        from hornbook.model.storage.load import load_model
        from hornbook.parallel.device import choose_device
        from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
        from hornbook.run.machine.process_memory import available_bytes

    loaded = load_model(checkpoint_path(target), device=choose_device(device, option="device"))
    loaded.require_tokenizer()
    if isinstance(loaded.config.head, LabelHeadConfig):
        raise UsageError(
            f"{loaded.folder}: its head {loaded.config.head.kind!r} predicts labels: use `hornbook predict`"
        )
    if isinstance(loaded.config.head, ReplacedHead):
        raise UsageError(
            f"{loaded.folder}: its head 'replaced' tells replaced tokens and predicts none: fine-tune it with "
            "`hornbook train --from` and a head of labels"
        )
    if 2 * packed_bytes(loaded.model) < available_bytes():
        pack(loaded.model)
    return loaded


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What to make of each prompt."""

    max_tokens: int
    sampling: "Sampling"
    search: SearchOptions
    drafter: "Drafter | None" = None
    """Proposes tokens that the model checks several at a time."""
    template: "ChatTemplate | None" = None
    """A prompt is the message of a user, which the model answers."""
    tally: "Tally | None" = None
    """Of the drafts of the prompt at hand."""


def _drafter(loaded: "Loaded", search: SearchOptions) -> "Drafter | None":
    """What drafts tokens, if anything does. Raises UsageError for a draft model of another tokenizer."""
    from hornbook.model.generate.speculative import OtherModel, OwnBlocks, refuse_unsuited

    draft, count = search.draft, search.draft_tokens
    if search.speculative and draft is not None:
        raise UsageError(
            "--draft names a model that drafts in place of the model's own blocks: leave out --speculative"
        )
    if draft is None and count is not None:
        raise UsageError("--draft-tokens is of a draft model: name one, --draft MODEL, or leave it out")
    if not search.speculative and draft is None:
        return None
    refuse_unsuited(loaded.model)
    if draft is None:
        return OwnBlocks(loaded.model)
    other = load_speaker(draft, str(next(loaded.model.parameters()).device))
    if other.require_tokenizer().digest != loaded.require_tokenizer().digest:
        raise UsageError(f"--draft {draft}: its tokenizer is another one: drafts need the same tokens")
    return OtherModel(other.model, count or DRAFT_TOKENS, other.config.position.length)


def _chat_template(loaded: "Loaded") -> "ChatTemplate":
    """Raises UsageError where the model has none, or is no decoder."""
    from hornbook.text.tokenizer.chat_template import read_chat_template

    found = read_chat_template(loaded.tokenizer_folder, loaded.require_tokenizer())
    if found is None or loaded.config.kind != "decoder":
        lacks = "has no chat template" if found is None else f"is an {loaded.config.kind.replace('_', '-')}"
        raise UsageError(f"{loaded.folder} {lacks}, and --chat asks a decoder by its template: leave it out")
    return found


def _prompts(prompt: str | None) -> Iterator[str]:
    if prompt is not None:
        yield require_utf8(prompt)
        return
    read_utf8()
    if sys.stdin.isatty():
        say("one prompt per line; Ctrl-D ends")
    while True:
        if sys.stdin.isatty():
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return
        yield require_utf8(line.rstrip("\n"))


def _respond(loaded: "Loaded", prompt: str, wanted: Wanted, *, as_json: bool, echo: bool) -> Result:
    """Generate, showing the text piece by piece unless `as_json`."""
    from hornbook.model.generate.text_stream import StopStrings

    pieces: list[str] = []
    ids: list[int] = []
    scores: list[TokenScore] = []
    if wanted.drafter is not None:
        from hornbook.model.generate.speculative import Tally

        wanted = dataclasses.replace(wanted, tally=Tally())
    start, ends = time.perf_counter(), StopStrings(tuple(wanted.search.stop or ()))
    if echo and not as_json:
        write(prompt)
    for piece in _stream(loaded, prompt, wanted, ends, ids, scores):
        pieces.append(piece)
        if not as_json:
            write(piece)
    seconds = time.perf_counter() - start
    ended = "length" if len(ids) == wanted.max_tokens else "end of text"
    ended = ended if ends.found is None else "stop text"
    record = {"prompt": prompt, "text": "".join(pieces), "tokens": len(ids), "ids": ids}
    record |= dataclasses.asdict(wanted.sampling) | {"ended": ended, "seconds": round(seconds, 3)}
    if wanted.search.logprobs is not None:
        record["logprobs"] = [_shown_score(loaded, score) for score in scores[: len(ids)]]
    report = [speed_text(len(ids), seconds, ended)]
    if wanted.tally is not None:
        record["speculative"] = drafts = wanted.tally.record()
        told = f"{drafts['accepted']:,} of {drafts['drafted']:,} drafts accepted"
        report.append(f"{drafts['tokens_per_pass']:.2f} tokens for each pass of the model, {told}")
    return Result(record, "", report=report)


def _shown_score(loaded: "Loaded", score: "TokenScore") -> dict[str, Any]:
    decode = loaded.require_tokenizer().decode
    likely = [{"id": token, "text": decode([token]), "logprob": at} for token, at in score.top]
    return {"id": score.token, "logprob": score.log_probability, "top": likely}


def speed_text(tokens: int, seconds: float, ended: str) -> str:
    """Number of tokens, speed and reason of the end of a generated text."""
    return f"{tokens} tokens, {tokens / max(seconds, 1e-9):,.0f} tok/s, ended by {ended}"


def _fill(loaded: "Loaded", prompt: str) -> Result:
    """The prompt with its masks filled, and the most likely tokens of each mask for stderr."""
    from rich.markup import escape

    from hornbook.model.generate.prompts import encode_spelled, fill_masks

    tokenizer = loaded.require_tokenizer()
    tokens = encode_spelled(tokenizer, prompt)
    found = fill_masks(loaded.model, tokens, tokenizer.special.mask, tokenizer.vocab_size)
    for each in found:
        tokens[each.position] = each.tokens[0]
    delimiters = (tokenizer.delimiter_id, tokenizer.end_id)
    text = tokenizer.decode([token for token in tokens if token not in delimiters])
    choices = [
        [{"text": tokenizer.decode([token]), "id": token, "probability": share} for token, share in pairs]
        for pairs in (zip(each.tokens, each.probabilities, strict=True) for each in found)
    ]
    notes = [f"mask {number}: {each.describe(tokenizer)}" for number, each in enumerate(found, 1)]
    value = {"prompt": prompt, "text": text, "masks": choices}
    return Result(value, f"{text}\n", notes=[escape(escape_controls(note)) for note in notes])


def _stream(
    loaded: "Loaded", prompt: str, wanted: Wanted, ends: "StopStrings", ids: list[int], scores: "list[TokenScore]"
) -> Iterator[str]:
    """Pieces of text as they are generated; their token ids are appended to `ids`, and to `scores` what is wanted."""
    from hornbook.model.generate.generate import stream_text
    from hornbook.model.generate.prompts import Prompt, encode_prompt
    from hornbook.model.surgery.folders import decoder_start_of
    from hornbook.text.tokenizer.chat_template import Message

    tokenizer = loaded.require_tokenizer()
    alone = loaded.model.encoder is None
    stop = (*loaded.ends,) if alone else (tokenizer.end_id,)
    if wanted.template is None:
        start = decoder_start_of(loaded.base)
        begun = encode_prompt(loaded.model, tokenizer, prompt, start, prefix=loaded.prefix)
    else:
        begun = Prompt(wanted.template.encode([Message("user", prompt)]))
        stop += () if (end := wanted.template.turn_end()) is None else (end,)
    if wanted.search.beams == 1 and (note := _cut_note(loaded, len(begun.tokens))):
        say(note)
    made = _tokens(loaded, begun, wanted, stop, scores)

    def collected() -> Iterator[int]:
        for token in made:
            ids.append(token)
            if alone or token != tokenizer.delimiter_id:  # an answer may start with the delimiter, as documents do
                yield token

    return stream_text(collected(), tokenizer, begun.tokens, ends)


def _cut_note(loaded: "Loaded", tokens: int) -> str:
    """A line where a prompt of `tokens` tokens has more than the positions; generation then reads its end."""
    from hornbook.model.surgery.adapters.prompt import prompt_length

    room, ahead = loaded.config.position.length, prompt_length(loaded.model)
    if tokens + ahead <= room:
        return ""
    kept = max((room - ahead) // 2, 1)
    return f"note: of the prompt's {tokens:,} tokens the last {kept:,} are read: the model has {room:,} positions"


def _tokens(
    loaded: "Loaded", begun: "Prompt", wanted: Wanted, stop: tuple[int, ...], scores: "list[TokenScore]"
) -> Iterator[int]:
    from hornbook.model.generate.beam import beam_search
    from hornbook.model.generate.generate import generate as generate_ids
    from hornbook.model.generate.sampling import score_token
    from hornbook.model.generate.speculative import speculate
    from hornbook.model.surgery.adapters.prompt import prompt_length

    vocab, max_tokens, search = loaded.require_tokenizer().vocab_size, wanted.max_tokens, wanted.search
    top = search.logprobs
    if search.beams > 1 and max_tokens:
        room = loaded.config.position.length - len(begun.tokens) - prompt_length(loaded.model)
        best, *_ = beam_search(
            loaded.model,
            begun.tokens,
            beams=search.beams,
            length_penalty=search.length_penalty,
            max_tokens=min(max_tokens, max(room, 1)),
            stop=stop,
            memory=begun.memory,
            vocab=vocab,
        )
        return (token for token in best.tokens if token not in stop)
    options: dict[str, Any] = {
        **dataclasses.asdict(wanted.sampling),
        "max_tokens": max_tokens,
        "stop": stop,
        "vocab": vocab,
        "length": loaded.config.position.length,
        "observe": None if top is None else lambda logits, token: scores.append(score_token(logits, token, top)),
    }
    if wanted.drafter is not None:
        return speculate(loaded.model, begun.tokens, wanted.drafter, tally=wanted.tally, **options)
    return generate_ids(loaded.model, begun.tokens, memory=begun.memory, **options)
