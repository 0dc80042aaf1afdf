"""A model as an ONNX file: token ids in, logits out, of any number and length of texts; checked by onnxruntime.

Folder, names of files and inputs are those of Optimum and transformers.js: `onnx/model.onnx`, config.json and the
tokenizer; `input_ids`, of an encoder `attention_mask` too and, where the model knows them, `token_type_ids`. An encoder
that classifies texts gives one row of logits for each, the others one for each token.

torch's exporter traces the model with sizes that are symbols. Our attention plans by sizes that are numbers, so for the
trace every layer attends by its formula (`FullAttention.attend` stands in); nothing else of the model changes.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.files.json_files import write_json
from hornbook.model.attention.attention import FullAttention
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiled_attention import ScoringOptions, scoring_of
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.replaced_config import ReplacedHead
from hornbook.model.hf.certificate import Compared
from hornbook.model.transformer import Transformer

FILE = "onnx/model.onnx"
TOLERANCE = 1e-4
"""Largest difference of two logits, as a share of the largest one: both sides compute in float32."""
SHAPES = ((1, 1), (2, 7), (3, 32))
"""Texts and tokens of each comparison, within the model's positions."""


@dataclass(frozen=True)
class OnnxCertificate(Compared):
    """What onnxruntime made of the file."""

    compared_with: str
    relative_difference: float
    """Largest difference of two logits, as a share of the largest one."""
    tolerance: float
    tokens: int

    def summary(self) -> str:
        """One line for people."""
        return f"{self.compared_with}: logits within {self.relative_difference:.1e} over {self.tokens} tokens"


class _LogitsOfRows(nn.Module):
    """The model as a function of the inputs of the file."""

    def __init__(self, model: Transformer, config: ModelConfig) -> None:
        super().__init__()
        self.model, self.config = model, config

    def forward(
        self,
        input_ids: Int[Tensor, "batch time"],
        attention_mask: Int[Tensor, "batch time"] | None = None,
        token_type_ids: Int[Tensor, "batch time"] | None = None,
    ) -> Float[Tensor, "batch *time outputs"]:
        with _attending_by_formula(self.model, attention_mask):
            return _logits(self.model, self.config, input_ids, token_type_ids)


def _logits(model: Transformer, config: ModelConfig, tokens: Tensor, types: Tensor | None) -> Tensor:
    hidden, _ = model(tokens, types=types)
    assert model.head is not None
    return model.head.logits(hidden[:, 0] if judges_texts(config) else hidden)


def judges_texts(config: ModelConfig) -> bool:
    """Whether the output is a row for each text: an encoder has the label of a text at its first token."""
    return config.kind == "encoder" and config.head.kind == "classification"


def require_onnx(config: ModelConfig) -> None:
    """Raise UsageError for what is not written, naming it."""
    layers = [config.layer(number) for number in range(config.layers)]
    refused = {
        f"a model of kind {config.kind!r}": config.kind == "encoder_decoder",
        f"a head of kind {config.head.kind!r}": isinstance(config.head, ReplacedHead),
        "attention of a kind other than full": any(layer.attention.kind != "full" for layer in layers),
        "experts": any(layer.mlp.kind == "experts" for layer in layers),
        f"positions of kind {config.position.kind!r}": config.position.kind in ("alibi", "relative"),
    }
    if wrong := [what for what, found in refused.items() if found]:
        raise UsageError(f"--to onnx has nothing for {' and '.join(wrong)}: export this model with --to hf")


def write_onnx(folder: Path, model: Transformer, config: ModelConfig) -> Path:
    """Write the file; values of large models stand beside it. Raises UsageError where the exporter is not installed."""
    path, most, names = folder / FILE, config.position.length, input_names(config)
    path.parent.mkdir(exist_ok=True)
    sizes = {0: torch.export.Dim("batch", max=2**16), 1: torch.export.Dim("time", max=most)}
    try:
        with _quiet():
            program = torch.onnx.export(
                _LogitsOfRows(model, config).eval(),
                tuple(torch.ones(2, min(8, most), dtype=torch.int64) for _ in names),
                input_names=names,
                output_names=["logits"],
                dynamic_shapes=dict.fromkeys(names, sizes),
                dynamo=True,
                verbose=False,
            )
    except ImportError as error:
        raise UsageError(f"--to onnx needs torch's exporter: {install_command('onnx')}") from error
    assert program is not None
    program.save(str(path))
    return path


def input_names(config: ModelConfig) -> list[str]:
    """What the file asks for, int64 [batch, time] each."""
    of_encoders = ["attention_mask", "token_type_ids"][: 1 + (config.embedding.types > 1)]
    return ["input_ids", *(of_encoders if config.kind == "encoder" else [])]


def certify_onnx(folder: Path, model: Transformer, config: ModelConfig, vocab: int) -> OnnxCertificate:
    """Compare the file's logits with ours; the result is written beside it. Raises UsageError without onnxruntime."""
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports] - of the extra onnx
    except ImportError as error:
        raise UsageError(
            f"the certificate needs onnxruntime: {install_command('onnx')}, or leave it out with --no-certificate"
        ) from error
    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    generator, worst, count = torch.Generator().manual_seed(0), 0.0, 0
    for batch, time in SHAPES:
        given = _texts(config, vocab, batch, min(time, config.position.length), generator)
        with torch.no_grad():  # ours text by text, without padding
            rows = zip(given["input_ids"], given["token_type_ids"], given["attention_mask"] > 0, strict=True)
            answers = [_logits(model, config, row[None, real], kind[None, real]) for row, kind, real in rows]
            ours = torch.cat(answers if judges_texts(config) else [each[0] for each in answers])
        asked = {name: given[name].numpy() for name in input_names(config)}
        theirs = torch.from_numpy(session.run(["logits"], asked)[0])
        theirs = theirs if judges_texts(config) else theirs[given["attention_mask"] > 0]
        difference = (ours - theirs).abs().max() / ours.abs().max()
        worst = float(torch.maximum(torch.tensor(worst), difference))  # NaN stays NaN
        count += int(given["attention_mask"].sum())
    program = f"onnxruntime {onnxruntime.__version__}"
    problem = f"{program}: logits differ by {worst:.2e} of the largest one; {TOLERANCE:g} is allowed"
    found = OnnxCertificate(() if worst <= TOLERANCE else (problem,), program, worst, TOLERANCE, count)
    write_json(folder / "certificate.json", found.to_json())
    return found


def _texts(
    config: ModelConfig, vocab: int, batch: int, time: int, generator: torch.Generator
) -> dict[str, Int[Tensor, "batch time"]]:
    """Random texts; of an encoder each has a token less than the one before, and padding there."""
    encoder, types = config.kind == "encoder", max(config.embedding.types, 1) if config.kind == "encoder" else 1
    sizes = (time - torch.arange(batch) * encoder).clamp(min=1)
    return {
        "input_ids": torch.randint(0, vocab, (batch, time), generator=generator),
        "token_type_ids": torch.randint(0, types, (batch, time), generator=generator),
        "attention_mask": (torch.arange(time) < sizes[:, None]).long(),
    }


@contextlib.contextmanager
def _attending_by_formula(model: nn.Module, seen: Tensor | None) -> Iterator[None]:
    layers = [each for each in model.modules() if isinstance(each, FullAttention)]
    for layer in layers:
        layer.attend = partial(attend_by_symbols, seen=seen)
    try:
        yield
    finally:
        for layer in layers:
            layer.attend = None


def attend_by_symbols(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: AttentionMask,
    seen: Int[Tensor, "batch time"] | None = None,
    **options: Unpack[ScoringOptions],
) -> Tensor:
    """Attention [batch, heads, time, dim] as its formula, for sizes that are symbols; `seen`: keys that are no padding.

    Queries of padding see the same keys, so what is found for them is finite, and of no use.
    """
    scale, softcap, bias, sinks, dropout = scoring_of(query, options)
    assert bias is None
    assert dropout is None
    groups, time = query.shape[1] // key.shape[1], query.shape[2]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = (query @ key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    position = torch.arange(time, device=query.device)
    distance = position[:, None] - position
    causal, window = mask.kind == "causal", mask.window
    unseen = distance < 0 if causal else torch.zeros_like(distance, dtype=torch.bool)
    if window is not None:
        unseen = unseen | (distance >= window if causal else distance.abs() > window // 2)
    if seen is not None:
        unseen = unseen | (seen == 0)[:, None, None]
    scores = scores.masked_fill(unseen, torch.finfo(scores.dtype).min)  # a query that sees nothing stays finite
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    return scores.softmax(-1)[..., :time] @ value


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notices, which are for those who change it."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
