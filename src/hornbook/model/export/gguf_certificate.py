"""A certificate that a GGUF file means to other programs what the model means to hornbook.

transformers reads the file with the package gguf, and llama.cpp (llama-cpp-python) runs it; each computes logits of the
same random tokens. The reference is our model with its weights rounded as the file stores them, so that nothing but the
arithmetic differs. llama.cpp rounds activations too where weights are q8_0 or half as wide as float32: what it may
differ by then is in `LLAMA_CPP`.
"""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.files.json_files import write_json
from hornbook.model.build_model import build_model
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.position_config import RopeConfig
from hornbook.model.export.gguf import Dtype, rounded
from hornbook.model.export.gguf_model import FILE, GgufPlan
from hornbook.model.hf.certificate import Compared
from hornbook.model.hf.tables.rope import write_scaling
from hornbook.model.hf.texts import TEXTS
from hornbook.model.surgery.operate import fill
from hornbook.model.transformer import Transformer
from hornbook.text.tokenizer.tokenizer import Tokenizer

TRANSFORMERS = 1e-4
"""Largest difference of two logits, as a share of the largest: both sides compute in float32."""
LLAMA_CPP: dict[Dtype, float] = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 3e-2, "q8_0": 0.25}
"""The same of llama.cpp. Small random models, the worst case, differ by 4e-6, 0.003, 0.02 and, in 8 bits, 0.03 to 0.12;
rows in another order by 1.4."""
MOST_TOKENS = 64
CERTIFICATE = "certificate.json"


@dataclass(frozen=True)
class Reading:
    """What one program makes of the file."""

    program: str
    relative_difference: float
    """Largest difference of two logits, as a share of the largest one."""
    allowed: float
    same_best: float
    """Share of the positions whose likeliest token is ours."""
    tokenizer_equal: bool
    """It gives the same ids for the texts of the other certificate."""


@dataclass(frozen=True)
class GgufCertificate(Compared):
    """Results of the comparison with other programs; `ok` if every installed one agrees."""

    dtype: str
    tokens: int
    readings: tuple[Reading, ...]
    note: str
    """Programs that were not asked, because they are not installed."""

    def summary(self) -> str:
        """One line for people."""
        told = [f"{each.program}: logits within {each.relative_difference:.1e}" for each in self.readings]
        return "; ".join([*told, self.note] if self.note else told)


def problems_of(readings: Sequence[Reading]) -> Iterator[str]:
    """Yield one sentence for each difference beyond its limit."""
    for each in readings:
        if not each.relative_difference <= each.allowed:
            yield (
                f"{each.program}: logits differ by {each.relative_difference:.2e} of the largest one; "
                f"{each.allowed:g} is allowed"
            )
        if not each.tokenizer_equal:
            yield f"{each.program}: its tokenizer gives other ids for the same texts"


def certify_gguf(
    folder: Path, config: ModelConfig, vocab: int, plan: GgufPlan, tensors: Mapping[str, Tensor], dtype: Dtype
) -> GgufCertificate:
    """Ask the programs that are installed about the file in `folder`; the result is written beside it.

    tensors: our parameters by name. Raises UsageError where none is installed.
    """
    stored: dict[str, Dtype] = {source: info.dtype for source, info in zip(plan.sources, plan.infos, strict=True)}
    model = fill(
        build_model(config, vocab, "meta"),
        ((name, rounded(each, stored[name])) for name, each in tensors.items()),
        None,
    )
    ids = torch.randint(
        0, vocab, (min(config.position.length, MOST_TOKENS),), generator=torch.Generator().manual_seed(0)
    )
    readings, missing = list[Reading](), list[str]()
    for program, needed, ask in (
        ("transformers", "gguf", _ask_transformers),
        ("llama.cpp", "llama_cpp", _ask_llama_cpp),
    ):
        if importlib.util.find_spec(needed) is None or importlib.util.find_spec("transformers") is None:
            missing.append(program)
            continue
        allowed = TRANSFORMERS if program == "transformers" else LLAMA_CPP[dtype]
        try:
            found = ask(folder / FILE, ids, config)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:  # it may not know all
            missing.append(f"{program} ({' '.join(str(error).split())[:100]})")
        else:
            readings.append(_compare(program, _logits(model, ids), *found, allowed))
    note = f"not asked, because not installed or not able: {', '.join(missing)}" if missing else ""
    if not readings:
        raise UsageError(
            f"no program could read the GGUF file ({note}): {install_command('gguf')}, or leave the certificate "
            "out with --no-certificate"
        )
    certificate = GgufCertificate(tuple(problems_of(readings)), dtype, len(ids), tuple(readings), note)
    write_json(folder / CERTIFICATE, certificate.to_json())
    return certificate


def _compare(program: str, ours: Tensor, theirs: Tensor, same_ids: bool, allowed: float) -> Reading:
    difference = float((ours - theirs).abs().max() / ours.abs().max())
    same = float((ours.argmax(-1) == theirs.argmax(-1)).float().mean())
    return Reading(program, difference, allowed, same, same_ids)


@torch.no_grad()
def _logits(model: Transformer, ids: Tensor) -> Tensor:
    hidden, _ = model.eval()(ids[None])
    assert model.head is not None
    return model.head.logits(hidden)[0]


@torch.no_grad()
def _ask_transformers(path: Path, ids: Tensor, config: ModelConfig) -> tuple[Tensor, bool]:
    """Its logits [tokens, vocab], and whether its tokenizer agrees.

    Its reader drops the scaling of rotary positions, which is put back: llama.cpp alone reads it from the file.
    """
    import transformers

    options: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, dtype=torch.float32, attn_implementation="eager", **options
    ).eval()
    if isinstance(config.position, RopeConfig) and config.position.scaling.kind != "none":
        model.config.rope_parameters = {"rope_theta": config.position.theta} | write_scaling(config.position.scaling)
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, **options)
    ours = Tokenizer.load(path.parent)
    same = all(theirs.encode(text, add_special_tokens=False) == ours.encode(text) for text in TEXTS)
    return model(input_ids=ids[None], use_cache=False).logits[0].float(), same


def _ask_llama_cpp(path: Path, ids: Tensor, _config: ModelConfig) -> tuple[Tensor, bool]:
    """The same of llama.cpp, whose cache is kept in float32 for this."""
    import llama_cpp  # pyright: ignore[reportMissingImports] - of the extra gguf

    model = llama_cpp.Llama(
        str(path), n_ctx=len(ids), logits_all=True, type_k=0, type_v=0, flash_attn=False, verbose=False
    )
    model.eval(ids.tolist())
    scores = torch.from_numpy(np.array(model.scores[: len(ids)], dtype=np.float32))
    ours = Tokenizer.load(path.parent)
    same = all(model.tokenize(text.encode(), add_bos=False) == ours.encode(text) for text in TEXTS)
    model.close()
    return scores, same
