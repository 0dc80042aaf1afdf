"""Post-training quantization: linear layers of a trained model as codes, and folders that hold them.

Embeddings, head and norms are not quantized. Products are computed in floating point with the values that the codes
stand for, so a model takes less memory and computes no faster. A folder has config.json with our configuration, and
quantized.safetensors with codes and all that is not quantized, under our names.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save_file
from torch import Tensor

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.json_files import read_json, write_json
from hornbook.files.safetensors import read_header
from hornbook.kernels.torch_versions import allocate
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.surgery_config import Integers, Nf4
from hornbook.model.hf.hf_tokenizer import copy_tokenizer
from hornbook.model.layers.linear import Linear
from hornbook.model.storage.safetensors_folder import Reader, mismatches, refuse_mismatches
from hornbook.model.surgery.added import matching_linears
from hornbook.model.surgery.calibration import Report, calibrate, second_moments
from hornbook.model.surgery.quantization.gptq import gptq, output_error
from hornbook.model.surgery.quantization.integers import IntegerCode, Quantized, put_code, quantize
from hornbook.model.surgery.quantization.nf4 import Nf4Code, add_nf4
from hornbook.model.transformer import Transformer
from hornbook.settings.fields import refuse_untrusted_parts

QUANTIZED = "quantized.safetensors"
_FORMAT = re.compile(r"int([2-8])(?:-(tensor|channel|group([1-9]\d*)))?")
_NF4 = re.compile(r"nf4(?:-group([1-9]\d*))?")
LEAST_GROUP, MOST_GROUP = 8, 256
"""Of the sizes that are proposed."""
_STEP = TypeAdapter(Integers | Nf4)


@dataclass(frozen=True)
class Figures:
    """What quantization did to the weights."""

    layers: int
    bytes_before: int
    """As float32."""
    bytes_after: int
    error: float
    """L2 norm of what rounding changed, relative to the weights."""
    output_errors: tuple[float, float] | None = None
    """L2 norm of what it changed in a layer's outputs on the text of a calibration, relative to them, the mean over
    layers: had they been rounded to nearest, and as they were rounded."""


@dataclass(frozen=True)
class Sample:
    """Text to calibrate on."""

    microbatches: Sequence[dict[str, Any]]
    """Arguments of `Transformer.forward`, where the model is."""
    act_order: bool = False
    report: Report = lambda _done, _of: None


def parse_format(text: str) -> Integers | Nf4:
    """`int8` (a scale for each output), `int4` (for each 32 of a row), `int8-tensor`, `int4-group64`, `nf4-group32`.

    Raises UsageError that lists the forms.
    """
    if nf4 := _NF4.fullmatch(text):
        return _nf4(text, nf4[1])
    match = _FORMAT.fullmatch(text)
    if match is None:
        raise UsageError(f"--quantize {text}: write int8, int4, nf4, or bits and shares as int8-tensor, int4-group64")
    bits, per, group = int(match[1]), match[2], match[3]
    if group:
        return Integers(bits=bits, per="group", group=int(group))
    return Integers.model_validate({"bits": bits, "per": per or ("channel" if bits > 4 else "group")})


def _nf4(text: str, block: str | None) -> Nf4:
    try:
        return Nf4() if block is None else Nf4(block=int(block))
    except ValidationError as error:
        raise UsageError(f"--quantize {text}: {error.errors()[0]['msg']}") from error


def _check_rows(rows: Mapping[str, int], step: Integers | Nf4) -> None:
    """UsageError unless groups fill the rows of all layers (name -> values in a row); it names a form that does."""
    group = step.block if isinstance(step, Nf4) else step.group if step.per == "group" else 1
    odd = next((name for name, size in rows.items() if size % group), None)
    if odd is None:
        return
    form, common = "nf4" if isinstance(step, Nf4) else f"int{step.bits}", math.gcd(*rows.values())
    fitting = [size for size in range(MOST_GROUP, LEAST_GROUP - 1, -2) if common % size == 0]
    smaller = [size for size in fitting if size <= group]
    remedy = f"{form}-group{(smaller or fitting[::-1])[0]}" if fitting else "int4-channel or int8"
    raise UsageError(
        f"--quantize {form}: {odd} has rows of {rows[odd]} values, which groups of {group} do not divide: "
        f"take --quantize {remedy}"
    )


@torch.no_grad()
def quantize_model(model: Transformer, step: Integers | Nf4, sample: Sample | None = None) -> Figures:
    """Replace the weights of the layers the step names by codes, in place. UsageError for shares that do not fit.

    sample: text whose errors are made good (GPTQ); None rounds to nearest, as do layers that no text reaches.
    """
    layers = matching_linears(model, step.targets, "--quantize targets")
    _check_rows({name: layer.weight.shape[1] for name, layer in layers.items()}, step)
    count, left = _Count(), dict(layers)

    def act(name: str, layer: Linear, moments: Tensor) -> None:
        assert isinstance(step, Integers)
        weight = left.pop(name).weight.detach()
        found = gptq(weight, moments, step, act_order=sample is not None and sample.act_order)
        count.errors.append(
            tuple(output_error(weight, each.restored(), moments) for each in (quantize(weight, step), found))
        )
        count.put(layer, step, found)

    if sample is not None:
        calibrate(model, sample.microbatches, layers, second_moments, act, sample.report)
    for layer in left.values():
        count.put(layer, step, None)
    return count.figures()


class _Count:
    """Figures so far."""

    def __init__(self) -> None:
        self._layers = self._before = self._after = 0
        self._apart = self._size = 0.0
        self.errors = list[tuple[float, ...]]()

    def put(self, layer: Linear, step: Integers | Nf4, found: Quantized | None) -> None:
        """Replace the weight of a layer by these codes, or by those nearest."""
        weight = layer.weight.detach()
        shape = (weight.shape[0], weight.shape[1])
        with torch.device(weight.device):
            code = Nf4Code(shape, step.block) if isinstance(step, Nf4) else IntegerCode(shape, step)
        if found is not None and isinstance(code, IntegerCode):
            code.hold(found)
        else:
            code.take(weight)
        put_code(layer, code)
        self._layers += 1
        self._before += weight.numel() * 4
        self._after += sum(buffer.numel() * buffer.element_size() for buffer in code.buffers())
        self._apart += float((layer.matrix(torch.float32) - weight).double().square().sum())
        self._size += float(weight.double().square().sum())

    def figures(self) -> Figures:
        """Of all layers."""
        error = (self._apart / self._size) ** 0.5 if self._size else 0.0
        outputs = [sum(each) / len(each) for each in zip(*self.errors, strict=True)]
        return Figures(self._layers, self._before, self._after, error, (outputs[0], outputs[1]) if outputs else None)


def write_quantized(
    folder: Path,
    model: Transformer,
    config: ModelConfig,
    vocab: int,
    step: Integers | Nf4,
    tokenizer: Path | None,
    decoder_start: int | None = None,
) -> None:
    """Write a quantized model. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    save_file({name: each.detach().cpu().contiguous() for name, each in tensors.items()}, folder / QUANTIZED)
    own = {"model": config.model_dump(mode="json"), "quantized": step.model_dump(mode="json")}
    keys = {"architectures": ["HornbookQuantized"], "vocab_size": vocab, "hornbook": own}
    start = {} if decoder_start is None else {"decoder_start_token_id": decoder_start}
    write_json(folder / "config.json", keys | start)
    if tokenizer is not None:
        copy_tokenizer(tokenizer, folder, config.position.length)


def is_quantized(folder: Path) -> bool:
    """Whether a folder holds codes."""
    return (folder / QUANTIZED).is_file()


def read_quantized(folder: Path, device: torch.device | str = "cpu") -> tuple[ModelConfig, int, Transformer]:
    """(configuration, rows of the embedding, model in evaluation mode). IntegrityError where the files do not fit."""
    keys = read_json(folder / "config.json")
    try:
        own, vocab = keys["hornbook"], int(keys["vocab_size"])
        refuse_untrusted_parts(own["model"], "config.json")
        config, step = ModelConfig.model_validate(own["model"]), _STEP.validate_python(own["quantized"])
    except UsageError:
        raise
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        raise IntegrityError(f"{folder / 'config.json'}: it does not describe a quantized model: {error}") from error
    model = build_model(config, vocab, "meta")
    _put_codes(model, step)
    allocate(model, device)
    targets = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in _checked(folder, targets):
            targets[name].copy_(tensor)
    return config, vocab, model.eval()


def _put_codes(model: Transformer, step: Integers | Nf4) -> None:
    """Codes without values, on meta."""
    if isinstance(step, Nf4):
        add_nf4(model, step)
        return
    for layer in matching_linears(model, step.targets, "quantized targets").values():
        outputs, inputs = layer.weight.shape
        with torch.device("meta"):
            code = IntegerCode((outputs, inputs), step)
        put_code(layer, code)


def _checked(folder: Path, targets: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    entries, reader = read_header(folder / QUANTIZED), Reader()
    problems = mismatches({name: tuple(each.shape) for name, each in targets.items()}, entries)
    refuse_mismatches(f"{folder / QUANTIZED}: the tensors do not fit its config", problems)
    yield from ((name, reader.read(name, entry)) for name, entry in entries.items())
