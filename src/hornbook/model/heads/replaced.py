"""Replaced-token detection (ELECTRA, Clark et al. 2020, arXiv 2003.10555, section 2).

With m masked positions of rows x, p_G(. | x) the generator's prediction and D the discriminator's logit,

    y_i = a draw from p_G(. | x) where i is masked, else the original token o_i
    loss = mean over m of -log p_G(o_i | x)
           + lambda mean over all tokens of BCE(D(y)_i, y_i != o_i)

No gradient goes through the draw, and a draw that is the original is no replacement. Draws are a function of the row's
key and the position, as dropout is, so a step done again, or on other ranks, has the same.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.config.init_config import NormalValues
from hornbook.model.generate.sampling import drawn
from hornbook.model.heads.head import Head, chunk_rows
from hornbook.model.layers.dropout import site_keys, uniform

GENERATED, CORRUPTED = "generated.states", "generated.tokens"
"""Auxiliary values of the Transformer: states of the generator [batch, time, width], and what the model read
[batch, time]; the objective reads both."""
_SITE = 63  # of the draws; no layer draws there
_COPIES = 8
"""A draw takes several copies of the logits in float64, so fewer of them are held at once than for a loss."""


class Chosen(NamedTuple):
    """Tokens of a batch that the generator replaces."""

    rows: Int[Tensor, " chosen"]
    """Where they are, of all tokens in a line."""
    keys: Int[Tensor, " batch"]
    """Keys of the draws (`hornbook.model.layers.dropout.row_keys`)."""


class Detector(Head):
    """One number of each token, in float32: the logit of its being replaced."""

    def __init__(self, width: int, transform: nn.Module, generator: Any) -> None:
        """generator: `hornbook.model.transformer.Generator`, or None."""
        super().__init__(1, width, None, transform, bias=True)
        self.generator = generator
        self.initial = {"weight": NormalValues(std=0.02)}  # under every scheme: those are about language models

    def losses(self, *_given: Any, **_named: Any) -> Any:
        """Raises UsageError: the objective of both models is in `hornbook.parallel.gradients.detection`."""
        raise UsageError(
            "a model that tells replaced tokens has a loss in pretraining alone, beside its generator: train another "
            "head on it with `hornbook train --from`"
        )

    def token_losses(self, *_given: Any, **_named: Any) -> Any:
        """As `losses`."""
        return self.losses()

    def logits(self, hidden: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch 1"]:
        assert self.before is not None
        hidden = self.before(hidden)
        wide = torch.promote_types(hidden.dtype, self.weight.dtype)
        return F.linear(hidden.to(wide), self.weight, self.bias)


@torch.no_grad()
def replaced(
    tokens: Int[Tensor, "batch time"], states: Float[Tensor, "batch time width"], head: Head, chosen: Chosen
) -> Int[Tensor, "batch time"]:
    """The tokens, with draws from the distribution of the generator's head in place of the chosen ones."""
    time = tokens.shape[1]
    numbers = uniform(site_keys(chosen.keys, 0, _SITE), range(time), range(1), 1).flatten()[chosen.rows]
    read = states.flatten(0, 1)[chosen.rows]
    size, real = max(chunk_rows(read, head.matrix) // _COPIES, 1), head.num_real_tokens
    parts = zip(read.split(size), numbers.double().split(size), strict=True)
    found = [
        drawn(head.logits(part)[:, :real], number).clamp(max=(real or len(head.matrix)) - 1) for part, number in parts
    ]
    return tokens.flatten().index_copy(0, chosen.rows, torch.cat(found)).view_as(tokens)
