"""The diagonal of a model's Fisher information, for elastic weight consolidation (`train.loss.anchor`).

    F_i = mean over tokens x of E_{y ~ p(y | x, w)} [(d log p(y | x, w) / d w_i)^2]

Labels are sampled from the model. With those of the text the same mean is the empirical Fisher, another matrix that
does not tend to the curvature (Kunstner et al. 2019, arXiv 1905.12558). The labels of a row are drawn independently
given its inputs, and a score has mean 0, so cross terms vanish in expectation: the square of a whole row's gradient
estimates the sum over its tokens, and one backward pass serves all of them.

The file holds F and the weights w* where it was taken, as `fisher.NAME` and `weights.NAME` by our names of parameters,
and in its header the digest of w*: a Fisher of another model is refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.files.durable import publish_file, storage_errors, temporary_name
from hornbook.files.safetensors import read_header, read_metadata
from hornbook.model.storage.safetensors_folder import Reader
from hornbook.model.surgery.adapters.adapter_files import tensors_digest
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.penalties import Anchor

DIGEST = "hornbook.model"
"""Key of the header."""
_CHUNK = 1024
"""Tokens whose logits are held at once."""


@dataclass(frozen=True)
class Fisher:
    """The diagonal, and where it was taken."""

    importance: dict[str, Tensor]
    tokens: int
    """Over so many predicted tokens."""


def fisher_diagonal(engine: Engine, batches: Iterable[Batch], seed: int) -> Fisher:
    """Of a model that this process has whole, over rows of text, one in each batch. Changes nothing but gradients."""
    model, generator = engine.model, torch.Generator(engine.world.device).manual_seed(seed)
    assert model.head is not None
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    totals, tokens = {name: torch.zeros_like(each, dtype=torch.float32) for name, each in trained.items()}, 0
    model.eval()
    for batch in batches:
        hidden, _ = model(**engine.inputs(batch))
        weights = batch.weights.to(hidden.device)
        labels = [_sample(model.head.logits(each), generator) for each in hidden.detach().flatten(0, 1).split(_CHUNK)]
        loss = model.head.losses(hidden, torch.cat(labels).view_as(weights), weights)["loss"]
        found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        for total, gradient in zip(totals.values(), found, strict=True):
            if gradient is not None:
                total.addcmul_(gradient.float(), gradient.float())
        tokens += int(batch.weights.count_nonzero())
    if not tokens:
        raise UsageError("there is no text to take the Fisher information on: give --data with more of it")
    return Fisher({name: total / tokens for name, total in totals.items()}, tokens)


def _sample(logits: Tensor, generator: torch.Generator) -> Tensor:
    return torch.multinomial(logits.detach().softmax(-1), 1, generator=generator).squeeze(1)


def write_fisher(path: Path, found: Fisher, engine: Engine) -> None:
    """Write the diagonal with the weights that it belongs to. Raises StorageError."""
    weights = {name: each.detach().float().cpu() for name, each in engine.model.named_parameters()}
    # As `read_merged` gives them to who compares: without blocks of multi-token prediction.
    digest = tensors_digest((name, each) for name, each in weights.items() if not name.startswith("mtp."))
    tensors = {f"fisher.{name}": each.cpu() for name, each in found.importance.items()}
    tensors |= {f"weights.{name}": weights[name] for name in found.importance}
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_name(path)
        save_file(tensors, temporary, {DIGEST: digest, "tokens": str(found.tokens)})
        publish_file(temporary, path)


class FisherFile:
    """A file of `write_fisher`."""

    def __init__(self, path: Path) -> None:
        """IntegrityError where it is damaged, UsageError where it is not there or something else."""
        if not path.is_file():
            raise UsageError(
                f"train.loss.anchor.fisher: {path} is not there: `hornbook fisher RUN --out {quoted(path)}` makes it"
            )
        self.path, self._reader = path, Reader()
        self._entries = read_header(path)
        self.digest = read_metadata(path).get(DIGEST)
        """Of the weights that it was taken at."""
        if self.digest is None:
            raise UsageError(f"train.loss.anchor.fisher: {path} is no Fisher information: `hornbook fisher` makes one")

    def check(self, digest: str, model: Path) -> None:
        """UsageError if it was taken at other weights than those with this digest, of `model`."""
        if digest != self.digest:
            raise UsageError(
                f"train.loss.anchor.fisher: {self.path} was taken at other weights than those of {model}: "
                f"`hornbook fisher {quoted(model)} --out OTHER` takes it there"
            )

    def read(self, name: str) -> Anchor:
        """Importance and weights of a parameter. IntegrityError where it lacks them."""
        names = f"fisher.{name}", f"weights.{name}"
        if lacking := [each for each in names if each not in self._entries]:
            raise IntegrityError(f"{self.path} lacks {lacking[0]}: it is of another model, so take it anew")
        return Anchor(*(self._reader.read(each, self._entries[each]) for each in names))
