"""A certificate that a folder means the same to transformers as to hornbook.

The one idea: ask the other side. The folder is loaded by transformers and by our own reader, both compute float32
logits of the same random tokens, and both tokenizers read the same texts. Beside it, the stored tensors are
compared bit for bit with the ones they were written from. What does not agree is listed, never averaged away.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.extras import install_command
from hornbook.files.json_files import read_json, write_json
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.heads.label_answers import text_place
from hornbook.model.hf.hf import left_out, read_hf
from hornbook.model.hf.hf_config import identify, why_native
from hornbook.model.hf.remote.source import FILE as FILE_OF_CODE
from hornbook.model.hf.remote.source import remote_class
from hornbook.model.hf.tables.vocabulary_names import Architecture
from hornbook.model.hf.texts import TokenizerFigures, compare_texts, compare_tokenizers
from hornbook.model.storage.load import Loaded, load_model
from hornbook.model.storage.safetensors_folder import named
from hornbook.model.transformer import Source

TOLERANCE = 1e-5
"""Largest difference of two float32 logits, as a share of the largest logit, that is asked no further."""
MOST = 1e-4
"""No difference above this is rounding: a part that is read wrongly by a thousandth never passes."""
FILE = "certificate.json"
MAX_LOGITS = 2**26
"""Logits of one comparison: 256 MiB. A longer context is compared in part, its last positions always."""


AUTO = {
    "decoder": "AutoModelForCausalLM",
    "encoder": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}
"""Family -> the class of transformers that chooses its own by config.json."""
LABEL_AUTO = {
    "classification": "AutoModelForSequenceClassification",
    "regression": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
    "replaced": "AutoModelForPreTraining",
}
"""Kind of a head for labels, or of replaced tokens -> the same."""


class MissingTransformers(UsageError):
    """The certificate needs an optional package."""


@dataclass(frozen=True)
class Compared:
    """The result of comparisons with other programs; `problems` lists what does not agree."""

    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing disagrees."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The content of certificate.json."""
        return {"ok": self.ok, **dataclasses.asdict(self), "problems": list(self.problems)}

    def require(self) -> Self:
        """Itself if it is ok, else IntegrityError with every problem."""
        if not self.ok:
            raise IntegrityError("the certificate failed:\n  " + "\n  ".join(self.problems))
        return self


@dataclass(frozen=True, kw_only=True)
class Certificate(Compared):
    """Results of the comparison with transformers."""

    architecture: str
    compared_with: str | None
    """transformers and its version; None where it has no such architecture."""
    tolerance: float
    max_difference: float | None
    """Largest difference of two logits."""
    largest_logit: float | None
    relative_difference: float | None
    tokens: int
    """Tokens whose logits were compared."""
    positions: int
    """Last position compared, plus one."""
    tensors_equal: bool | None
    """The stored tensors are the given ones, rounded to the stored type; None if none were given."""
    tokenizer: TokenizerFigures | None
    texts: int
    """Prompts and chats that both sides continue alike."""
    note: str
    """Why transformers was not asked, if it was not."""
    torch: str

    def summary(self) -> str:
        """One line for people."""
        if self.relative_difference is None:
            return f"read back by hornbook as {self.architecture}, tensors equal; {self.note}"
        return (
            f"loaded back by {self.compared_with} as {self.architecture}, logits equal "
            f"(max diff {self.relative_difference:.1e} of the largest logit, over {self.tokens} tokens)"
        )


def certify(
    folder: Path,
    *,
    reference: Path | None = None,
    source: Mapping[str, Tensor] | None = None,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> Certificate:
    """Compare `folder` as hornbook reads it with `reference` (by default the same folder) as transformers does.

    source: the tensors the folder was written from, by our names. seed: of the random tokens. The result is written to
    `certificate.json` in `folder`, whether it is ok or not. Errors: MissingTransformers; IntegrityError and
    UsageError where the folder cannot be read at all.
    """
    if broken := [name for name, tensor in (source or {}).items() if not bool(tensor.isfinite().all())]:
        raise IntegrityError(
            f"{named(broken)}: values that are no numbers (NaN or infinite), so the model computes nothing: take an "
            "earlier checkpoint, or get the file again"
        )
    ours = load_model(folder)
    architecture = identify(read_json(folder / "config.json"))
    problems: list[str] = []
    tensors_equal = None if source is None else _compare_tensors(folder, source, problems)
    logits, tokenizer, compared_with, allowed, texts = None, None, None, tolerance, 0
    own = architecture is None and (folder / FILE_OF_CODE).is_file()
    if architecture is not None or own:
        with _quiet_transformers() as transformers:
            compared_with = f"transformers {transformers.__version__}"
            theirs = _load_theirs(transformers, folder if own else reference or folder, ours.config, problems, own=own)
            problems += positions_problem(architecture, ours.config, getattr(theirs.config, "pad_token_id", None))
            logits = _compare_logits(ours, theirs, architecture, seed)
            if tolerance < logits.relative <= MOST:
                allowed = max(tolerance, 2 * _rounding(theirs, ours, architecture, seed))
            tokenizer = compare_tokenizers(transformers, reference or folder, ours.tokenizer, problems)
            if not problems and logits.relative <= allowed:
                texts = compare_texts(transformers, folder if own else reference or folder, ours, theirs, problems)
        if not logits.relative <= allowed:  # not: >, which is false for NaN
            problems.append(f"logits differ by {logits.relative:.2e} of the largest one; {allowed:.1e} is allowed")
    certificate = Certificate(
        architecture=architecture.name if architecture else read_json(folder / "config.json")["architectures"][0],
        compared_with=compared_with,
        tolerance=allowed,
        max_difference=logits.difference if logits else None,
        largest_logit=logits.largest if logits else None,
        relative_difference=logits.relative if logits else None,
        tokens=logits.tokens if logits else 0,
        positions=logits.positions if logits else 0,
        tensors_equal=tensors_equal,
        tokenizer=tokenizer,
        texts=texts,
        problems=tuple(problems),
        note="" if architecture else why_native(ours.config) + (f"; {FILE_OF_CODE} computes it" if own else ""),
        torch=version("torch"),
    )
    write_json(folder / FILE, certificate.to_json())
    return certificate


def positions_problem(architecture: Architecture | None, config: ModelConfig, pad: int | None) -> list[str]:
    """Problems where transformers counts positions from the id of padding, as RoBERTa does; [] if there are none."""
    begin, offset = (0 if pad is None else pad) + 1, getattr(config.position, "offset", 0)
    if architecture is None or architecture.position_ids != "from offset" or begin == offset:
        return []
    return [
        f"{architecture.name} counts positions from the id of padding ({pad}), and those of this model begin at "
        f"{offset}: train with model.position.offset = {begin}, or with a tokenizer whose padding is {offset - 1}"
    ]


@contextmanager
def _quiet_transformers() -> Iterator[Any]:
    """The library without progress bars and notices, which belong to no one here; its settings are put back."""
    try:
        import transformers
    except ImportError as error:
        raise MissingTransformers(
            f"the certificate compares with transformers, which is not installed: {install_command('hf')}"
        ) from error
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield transformers
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def _load_theirs(
    transformers: Any, folder: Path, config: ModelConfig, problems: list[str], *, own: bool = False
) -> nn.Module:
    """`own`: by the classes of our modelling file, and never by a file of the folder, which may be anybody's."""
    parts = (config.mlp, *(layer.mlp for layer in (*config.first, *config.pattern)))
    mixed = any(isinstance(part, ExpertsConfig) for part in parts)  # their fast ways ask for widths of 16 bytes
    auto = getattr(transformers, LABEL_AUTO.get(config.head.kind, AUTO[config.kind]))
    if own:
        from hornbook.model.hf.remote import models

        auto = getattr(models, (remote_class(config) or ("",))[0])
    model, info = auto.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        **({"experts_implementation": "eager"} if mixed else {}),
    )
    unused = left_out(folder)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found := set(map(str, info[kind])) - set(unused):
            problems.append(f"transformers reports {kind.replace('_', ' ')}: {named(found)}")
    if config.kind == "decoder" and config.head.kind in LABEL_AUTO:
        model.config.pad_token_id = -1  # the random tokens are none of them padding: a row ends where it ends
    return model.eval()


def _compare_tensors(folder: Path, source: Mapping[str, Tensor], problems: list[str]) -> bool:
    _, _, stream = read_hf(folder, dtype=None)
    differing, seen = [], set()
    for name, stored in stream:
        seen.add(name)
        if name not in source or not torch.equal(stored, source[name].detach().to("cpu", stored.dtype)):
            differing.append(name)
    differing += source.keys() - seen
    if differing:
        problems.append(f"stored tensors differ from the given ones: {named(differing)}")
    return not differing


@dataclass(frozen=True)
class _Logits:
    difference: float
    largest: float
    tokens: int
    positions: int

    @property
    def relative(self) -> float:
        return self.difference / self.largest if self.largest else float("nan")


class _Question(NamedTuple):
    """The random tokens of one comparison."""

    ids: Tensor
    positions: Tensor
    source: Tensor | None
    """What the encoder of an encoder-decoder reads."""


def _rounding(theirs: nn.Module, ours: Loaded, architecture: Architecture | None, seed: int) -> float:
    """By how much their float32 logits are off from their float64 ones, as a share of the largest.

    It grows with depth, width and length. Two sound computations in float32 each err about so much, so they differ by
    at most twice as much.
    """
    exact = copy.deepcopy(theirs).double()
    difference = largest = 0.0
    for question in _questions(ours, architecture, seed):
        a = _their_logits(theirs, question, architecture, ours.config)
        b = _their_logits(exact, question, architecture, ours.config)
        difference, largest = max(difference, float((a - b).abs().max())), max(largest, float(b.abs().max()))
    return difference / largest if largest else 0.0


def _questions(ours: Loaded, architecture: Architecture | None, seed: int) -> Iterator[_Question]:
    for batch, start, end in _grid(ours.config.position.length, ours.vocab):
        if start and (architecture is None or architecture.position_ids is None):
            continue  # positions other than from the row's begin cannot be asked of it
        generator = torch.Generator().manual_seed(seed + end)
        ids = torch.randint(0, ours.vocab, (batch, end - start), generator=generator)
        source = None
        if ours.config.kind == "encoder_decoder":
            source = torch.randint(0, ours.vocab, (batch, max(end // 2, 1)), generator=generator)
        yield _Question(ids, torch.arange(start, end).expand(batch, -1), source)


def _compare_logits(ours: Loaded, theirs: nn.Module, architecture: Architecture | None, seed: int) -> _Logits:
    difference = largest = 0.0
    tokens = last = 0
    for question in _questions(ours, architecture, seed):
        a = _our_logits(ours, question)
        b = _their_logits(theirs, question, architecture, ours.config)
        if a.dim() > b.dim():
            a = a[:, text_place(ours.config.kind)]
        # torch's max carries NaN on, Python's does not
        difference = float(torch.tensor([difference, float((a - b).abs().max())]).max())
        largest = float(torch.tensor([largest, float(b.abs().max())]).max())
        tokens, last = tokens + question.ids.numel(), max(last, int(question.positions[0, -1]) + 1)
    return _Logits(difference, largest, tokens, last)


@torch.no_grad()
def _our_logits(ours: Loaded, question: _Question) -> Tensor:
    source = None if question.source is None else Source(question.source)
    hidden, _ = ours.model(question.ids, question.positions, source=source)
    assert ours.model.head is not None
    return ours.model.head.logits(hidden)


@torch.no_grad()
def _their_logits(
    theirs: nn.Module, question: _Question, architecture: Architecture | None, config: ModelConfig
) -> Tensor:
    """Raises UsageError where transformers itself cannot run the model."""
    try:
        return _run_theirs(theirs, question, architecture, config)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"transformers cannot run {type(theirs).__name__} as config.json has it ({type(error).__name__}: {text}): "
            "correct config.json, or leave the certificate out with --no-certificate"
        ) from error


def _run_theirs(
    theirs: nn.Module, question: _Question, architecture: Architecture | None, config: ModelConfig
) -> Tensor:
    if question.source is not None:
        return theirs(input_ids=question.source, decoder_input_ids=question.ids, use_cache=False).logits
    options: dict[str, Any] = {"use_cache": False} if config.kind == "decoder" else {}
    if architecture is not None and architecture.position_ids is not None:
        offset = getattr(config.position, "offset", 0) if architecture.position_ids == "from offset" else 0
        options["position_ids"] = question.positions + offset
    found = theirs(input_ids=question.ids, **options)
    if config.head.kind == "replaced":
        return found.logits[..., None]
    scores = [found.start_logits, found.end_logits] if config.head.kind == "span" else None
    return found.logits if scores is None else torch.stack(scores, -1)


def _grid(context: int, vocab: int) -> list[tuple[int, int, int]]:
    """(rows, first position, end) of each comparison: short, middling, as long as fits, and the last positions."""
    longest = min(context, max(MAX_LOGITS // vocab, 16))
    grid = [(2, 0, 1), (2, 0, min(17, longest)), (1, 0, longest)]
    return grid if longest == context else [*grid, (1, context - 16, context)]
