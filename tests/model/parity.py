"""Our Transformer beside transformers' models: the same folder, the same tokens, logits and gradients compared.

For tests and for `benchmarks.training.parity`. Every parameter is random and logits have unit deviation, so that
nothing is at a value that hides a mistake (norms of one, biases and routers of zero).
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from hornbook.files.json_files import read_json
from hornbook.model.attention.key_value_cache import KVCache
from hornbook.model.build_model import build_model
from hornbook.model.config.head_config import LabelHeadConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.hf.hf import read_hf, write_hf
from hornbook.model.hf.hf_config import identify
from hornbook.model.transformer import Source, Transformer
from tests.model.architectures import DRAWS, LABEL_DRAWS, VOCAB

WRITTEN_OUT = {"attn_implementation": "eager", "experts_implementation": "eager"}
"""Of transformers' ways the ones that are written as formulas."""
LENGTH = 23
"""Of rows: longer than what attention does without blocks."""


@dataclass(frozen=True)
class Pair:
    """The same weights on both sides."""

    theirs: Any
    ours: Transformer
    config: ModelConfig
    folder: Path
    """As transformers saved it."""

    @property
    def offset(self) -> int:
        """What their position_ids begin with; -1: they take none."""
        architecture = identify(read_json(self.folder / "config.json"))
        assert architecture is not None
        if architecture.position_ids is None:
            return -1
        return getattr(self.config.position, "offset", 0) if architecture.position_ids == "from offset" else 0


def make_pair(name: str, seed: int, folder: Path) -> Pair:
    """A random model of transformers, saved to `folder` and read from there by both."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    draw = Random(f"{name}{seed}")
    class_name, arguments = (DRAWS | LABEL_DRAWS)[name](draw)
    cls = getattr(transformers, class_name)
    torch.manual_seed(draw.randrange(2**31))
    model = cls(cls.config_class(**arguments, **WRITTEN_OUT)).eval()
    if name == "t5_v1_1":  # only a file with two different tensors makes transformers untie them
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.lm_head.weight))
    randomise(model)
    model.save_pretrained(folder)
    theirs = reload(folder)
    return Pair(theirs, *load(folder), folder)


def reload(folder: Path) -> Any:
    """What transformers reads from a folder, which must be nothing more and nothing less than it expects."""
    import transformers

    cls = getattr(transformers, read_json(folder / "config.json")["architectures"][0])
    model, info = cls.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **WRITTEN_OUT)
    wrong = {kind: info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[kind]}
    assert not wrong, wrong
    return model.eval()


def load(folder: Path) -> tuple[Transformer, ModelConfig]:
    """What our importer reads."""
    config, vocab, stream = read_hf(folder)
    model = build_model(config, vocab, "cpu")
    model.load_state_dict(dict(stream))
    return model.eval(), config


def randomise(model: Any) -> None:
    """Every stored tensor random; then the last norm scaled so that logits have unit deviation."""
    norms = {name for name, module in model.named_modules() if "Norm" in type(module).__name__}
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            module, _, own = name.rpartition(".")
            if tensor.dim() > 1:
                tensor.copy_(torch.randn_like(tensor) / (1.0 if "mbed" in name else tensor.shape[-1] ** 0.5))
            else:
                center = 1.0 if module in norms and own == "weight" and "Gemma" not in type(model).__name__ else 0.0
                tensor.copy_(center + 0.3 * torch.randn_like(tensor))
        ids = torch.randint(4, VOCAB, (2, LENGTH))
        used: list[nn.Module] = []
        hooks = [
            model.get_submodule(name).register_forward_hook(lambda module, *_: used.append(module)) for name in norms
        ]
        deviation = their_logits(model, ids, *((ids,) if model.config.is_encoder_decoder else ())).std()
        for hook in hooks:
            hook.remove()
        for parameter in used[-1].parameters():
            offset = 1.0 if "Gemma" in type(model).__name__ else 0.0
            parameter.copy_((offset + parameter) / deviation - offset)


def their_logits(theirs: Any, ids: Tensor, source: Tensor | None = None, **options: Any) -> Tensor:
    """Logits, of a span the two scores beside each other; options: attention_mask, position_ids, token_type_ids."""
    if source is not None:
        return theirs(input_ids=source, decoder_input_ids=ids, use_cache=False, **options).logits
    found = theirs(input_ids=ids, **options)
    if type(theirs).__name__ == "ElectraForPreTraining":
        return found.logits[..., None]
    return found.logits if "logits" in found else torch.stack([found.start_logits, found.end_logits], -1)


def our_logits(ours: Transformer, *arguments: Any, **options: Any) -> Tensor:
    """Logits of a forward pass."""
    assert ours.head is not None
    return ours.head.logits(ours(*arguments, **options)[0])


def read_as(config: ModelConfig, ours: Tensor, theirs: Tensor) -> Tensor:
    """What they give of each row of ours: all tokens, or where the label of a text is read."""
    if theirs.dim() == ours.dim():
        return ours
    return ours[..., 0 if config.kind == "encoder" else -1, :]


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest, as a share of the largest of theirs."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def tokens(*shape: int) -> Tensor:
    """Random ids, none of which a model takes for padding."""
    return torch.randint(4, VOCAB, shape)


# ---- One stack


def plain(pair: Pair) -> float:
    """Rows of one document, of several lengths."""
    rows = [tokens(2, 1), tokens(3, 5), tokens(2, LENGTH)]
    return max(difference(our_logits(pair.ours, ids), their_logits(pair.theirs, ids)) for ids in rows)


def padded(pair: Pair, side: str) -> float:
    """Documents of several lengths in rows of one; ours has the padding as a piece of its own."""
    lengths, worst = (LENGTH, 9, 17), 0.0
    ids = tokens(3, LENGTH)
    mask, positions = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        part = slice(LENGTH - length, LENGTH) if side == "left" else slice(0, length)
        mask[row, part], positions[row, part] = 1, torch.arange(length)
    options = {"attention_mask": mask}
    if pair.offset >= 0:
        options["position_ids"] = positions + pair.offset
    theirs = their_logits(pair.theirs, ids, **options)
    pieces = [tuple(n for n in ((LENGTH - n, n) if side == "left" else (n, LENGTH - n)) if n) for n in lengths]
    ours = our_logits(pair.ours, ids, positions, pieces)
    for row in range(3):
        real = mask[row].bool()
        worst = max(worst, difference(ours[row, real], theirs[row, real]))
    return worst


def packed(pair: Pair) -> float:
    """Documents one after the other in a row of ours, each alone in theirs."""
    lengths = [(7, 1, 15), (20, 3)]
    ids = tokens(2, LENGTH)
    ours = our_logits(pair.ours, ids, None, lengths)
    pieces = [each for row in (0, 1) for each in _cut(ids[row], ours[row], lengths[row])]
    return max(difference(logits, their_logits(pair.theirs, piece[None])[0]) for piece, logits in pieces)


def _cut(ids: Tensor, logits: Tensor, lengths: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(ids.split(lengths), logits.split(lengths), strict=True))


def cached(pair: Pair) -> float:
    """A prompt, then one token, then several, against the whole row."""
    ids, cache = tokens(2, LENGTH), KVCache()
    steps = [our_logits(pair.ours, part, cache=cache) for part in ids.split((LENGTH - 5, 1, 4), 1)]
    return difference(torch.cat(steps, 1), their_logits(pair.theirs, ids))


def typed(pair: Pair) -> float:
    """Token types given."""
    ids = tokens(2, LENGTH)
    types = torch.randint(0, pair.config.embedding.types, ids.shape)
    return difference(our_logits(pair.ours, ids, types=types), their_logits(pair.theirs, ids, token_type_ids=types))


# ---- Two stacks


def plain_pair(pair: Pair) -> float:
    """A source and a target of other length."""
    source, ids = tokens(2, LENGTH), tokens(2, 19)
    return difference(our_logits(pair.ours, ids, source=Source(source)), their_logits(pair.theirs, ids, source))


def padded_pair(pair: Pair) -> float:
    """Sources and targets padded at the right."""
    lengths, source, ids, worst = (LENGTH, 8), tokens(2, LENGTH), tokens(2, 19), 0.0
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    pieces = [tuple(n for n in (length, LENGTH - length) if n) for length in lengths]
    ours = our_logits(pair.ours, ids, source=Source(source, None, pieces))
    theirs = their_logits(pair.theirs, ids, source, attention_mask=mask)
    for row in range(2):
        worst = max(worst, difference(ours[row], theirs[row]))
    return worst


def packed_pairs(pair: Pair) -> float:
    """Pairs one after the other in a row of ours, each alone in theirs."""
    own, others = (4, 6, 9), (9, 1, 13)
    source, ids = tokens(1, LENGTH), tokens(1, 19)
    ours = our_logits(pair.ours, ids, None, [own], source=Source(source, None, [others]))
    parts = zip(_cut(ids[0], ours[0], own), source[0].split(others), strict=True)
    return max(
        difference(logits, their_logits(pair.theirs, piece[None], one[None])[0]) for (piece, logits), one in parts
    )


def cached_pair(pair: Pair) -> float:
    """A target step by step, the source encoded once."""
    source, ids, cache = tokens(2, LENGTH), tokens(2, 19), KVCache()
    memory = pair.ours.encode(Source(source))
    steps = [our_logits(pair.ours, part, cache=cache, memory=memory) for part in ids.split((14, 1, 4), 1)]
    return difference(torch.cat(steps, 1), their_logits(pair.theirs, ids, source))


# ---- Heads for labels


def packed_labels(pair: Pair) -> float:
    """Documents one after the other in a row of ours, each alone in theirs."""
    lengths, ids = (7, 1, 15), tokens(1, LENGTH)
    ours = our_logits(pair.ours, ids, None, [lengths])[0].split(lengths)
    theirs = [their_logits(pair.theirs, piece[None])[0] for piece in ids[0].split(lengths)]
    return _over_all(pair, ours, theirs)


def padded_labels(pair: Pair) -> float:
    """Documents of several lengths, padded at the right in theirs and alone in ours."""
    lengths, ids = (LENGTH, 9, 17), tokens(3, LENGTH)
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    ids = torch.where(mask.bool(), ids, pair.theirs.config.pad_token_id)
    theirs = their_logits(pair.theirs, ids, attention_mask=mask)
    ours = [our_logits(pair.ours, row[None, :length])[0] for row, length in zip(ids, lengths, strict=True)]
    cut = [row if theirs.dim() == 2 else row[:length] for row, length in zip(theirs, lengths, strict=True)]
    return _over_all(pair, ours, cut)


def _over_all(pair: Pair, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The difference over all documents: one may have but three logits, all of them small by chance."""
    read = [read_as(pair.config, own, wanted).flatten() for own, wanted in zip(ours, theirs, strict=True)]
    return difference(torch.cat(read), torch.cat([each.flatten() for each in theirs]))


def typed_labels(pair: Pair) -> float:
    """Two texts in a row, told apart by token types."""
    ids = tokens(2, LENGTH)
    types = (torch.arange(LENGTH) > 9).long().expand(2, -1) * (pair.config.embedding.types > 1)
    theirs = their_logits(pair.theirs, ids, token_type_ids=types)
    return difference(read_as(pair.config, our_logits(pair.ours, ids, types=types), theirs), theirs)


# ---- Gradients and export


def gradients(pair: Pair) -> float:
    """Of a random sum of logits, by every parameter; each as a share of its largest, or of 1 % of the largest of all.

    A bias is compared with its weight's besides: a softmax does not see a shift of all keys, so that theirs have none.
    Their gradients go through our importer, as though they were weights: the tables say which is which.
    """
    two = pair.config.kind == "encoder_decoder"
    ids, source = tokens(2, LENGTH), tokens(2, 11) if two else None
    with torch.enable_grad():
        for model in (pair.theirs, pair.ours):
            model.zero_grad()
        ours = our_logits(pair.ours, ids, source=None if source is None else Source(source))
        theirs = their_logits(pair.theirs, ids, source)
        factors = torch.randn_like(theirs)
        (read_as(pair.config, ours, theirs) * factors).sum().backward()
        (theirs * factors).sum().backward()
    expected = _their_gradients(pair)
    largest = max(float(each.abs().max()) for each in expected.values() if not each.isnan().any())
    worst = 0.0
    for name, parameter in pair.ours.named_parameters():
        if parameter.grad is None or expected[name].isnan().any():  # of buffers there
            continue
        beside = expected.get(name.removesuffix("bias") + "weight", expected[name])
        scale = max(float(expected[name].abs().max()), float(beside.abs().max()), 0.01 * largest)
        worst = max(worst, float((parameter.grad - expected[name]).abs().max()) / scale)
    return worst


def _their_gradients(pair: Pair) -> dict[str, Tensor]:
    values = {name: each.detach().clone() for name, each in pair.theirs.state_dict().items()}
    with torch.no_grad():
        for parameter in pair.theirs.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        for name in values.keys() - dict(pair.theirs.named_parameters(remove_duplicate=False)).keys():
            pair.theirs.get_buffer(name).fill_(math.nan)
        with tempfile.TemporaryDirectory() as folder:
            pair.theirs.save_pretrained(folder)
            found = dict(read_hf(Path(folder))[2])
        pair.theirs.load_state_dict(values)
    return found


def exported(pair: Pair) -> bool:
    """Whether what we write is to transformers what it saved itself: tensors and logits, to the bit."""
    config, vocab, stream = read_hf(pair.folder)
    with tempfile.TemporaryDirectory() as folder:
        write_hf(Path(folder), dict(stream), config, vocab, None)
        back = reload(Path(folder))
    back.config.pad_token_id = pair.theirs.config.pad_token_id  # of the tokenizer, of which there is none here
    ids = tokens(2, LENGTH)
    source = ids if pair.config.kind == "encoder_decoder" else None
    with torch.no_grad():
        same = torch.equal(their_logits(back, ids, source), their_logits(pair.theirs, ids, source))
    ours, theirs = back.state_dict(), pair.theirs.state_dict()
    return same and ours.keys() == theirs.keys() and all(torch.equal(ours[name], each) for name, each in theirs.items())


Case = Callable[[Pair], float]
_ONE: dict[str, Case] = {
    "plain": plain,
    "left padding": lambda pair: padded(pair, "left"),
    "right padding": lambda pair: padded(pair, "right"),
    "packed": packed,
}
CASES: dict[str, dict[str, Case]] = {
    "decoder": {**_ONE, "cached": cached, "gradients": gradients},
    "encoder": {**_ONE, "token types": typed, "gradients": gradients},
    "encoder_decoder": {
        "plain": plain_pair,
        "right padding": padded_pair,
        "packed": packed_pairs,
        "cached": cached_pair,
        "gradients": gradients,
    },
}
"""Family -> what is compared."""
LABEL_CASES: dict[str, Case] = {
    "right padding": padded_labels,
    "packed": packed_labels,
    "token types": typed_labels,
    "gradients": gradients,
}
"""What is compared of heads for labels."""


def cases_of(pair: Pair) -> dict[str, Case]:
    """What is compared of this model."""
    labelled = isinstance(pair.config.head, LabelHeadConfig)
    cases = dict(LABEL_CASES if labelled else CASES[pair.config.kind])
    if not pair.config.embedding.types:
        cases.pop("token types", None)
    return cases


def measure(pair: Pair, seed: int = 1) -> dict[str, float]:
    """Largest difference in each case, of tokens drawn from a seed."""
    torch.manual_seed(seed)
    found = {}
    for name, case in cases_of(pair).items():
        with torch.no_grad():
            found[name] = case(pair)
    return found
