"""The gated delta rule: a linear recurrence whose state is corrected, not only added to (arXiv 2412.06464).

Per head, with keys k_t, values v_t, queries q_t, a decay g_t <= 0 (a logarithm) and a rate b_t in (0, 1), the state
S [key_dim, value_dim] maps keys to values. It is 0 before a document begins, and

    S_t = e^g_t S_{t-1} + b_t k_t (v_t - e^g_t S_{t-1}^T k_t)^T,      o_t = S_t^T q_t                               (1)

`recurrent_delta_rule` is (1) step by step. `chunked_delta_rule` computes the same in chunks of C tokens, so that almost
all work is matrix products and time stays linear (Yang et al. 2024, arXiv 2406.06484, with decay: 2412.06464, section
3.3). Within a chunk, let G_i be the sum of g up to token i, M_ij = 1 if i >= j are of one document, c_i = e^G_i if the
chunk's first tokens up to i continue the document before it, else 0, and D_ij = M_ij e^(G_i - G_j). With the chunk's
K, V, Q as matrices and S the state before it,

    (I + A) X = diag(b) (V - diag(c) K S),     A_ij = b_i (k_i . k_j) D_ij for i > j                                (2)
    O = diag(c) Q S + ((Q K^T) * D) X                                                                               (3)
    S' = c_C S + K^T diag(D_C) X                                                                                    (4)

X are the corrections that (1) writes, b_t (v_t - ...). (2) is solved for V and K apart, for all chunks at once; only
(3) and (4) go from chunk to chunk. A document's first token resets M, c and D, so several documents share a chunk.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from hornbook.model.config.attention_config import DELTA_CHUNK as CHUNK

Keys = Float[Tensor, "batch heads time key_dim"]
Values = Float[Tensor, "batch heads time value_dim"]
Rates = Float[Tensor, "batch heads time"]
State = Float[Tensor, "batch heads key_dim value_dim"]
Starts = Bool[Tensor, "batch time"]
"""True at the first token of a document."""


def recurrent_delta_rule(
    query: Keys,
    key: Keys,
    value: Values,
    decay: Rates,
    rate: Rates,
    starts: Starts | None = None,
    state: State | None = None,
) -> tuple[Values, State]:
    """Equation (1), one token after the other; the state goes on from `state`, and the last one is returned."""
    current, outputs = _zero_state(key, value) if state is None else state, list[Tensor]()
    parts = (query, key, value, decay[..., None].exp(), rate[..., None])
    for t, (q, k, v, kept, b) in enumerate(zip(*(part.unbind(2) for part in parts), strict=True)):
        if starts is not None:
            current = current.masked_fill(starts[:, t, None, None, None], 0.0)
        current = current * kept[..., None]
        correction = b * (v - _read(current, k))
        current = current + k[..., None] * correction[..., None, :]
        outputs.append(_read(current, q))
    return torch.stack(outputs, 2), current


def _read(state: State, key: Float[Tensor, "batch heads key_dim"]) -> Float[Tensor, "batch heads value_dim"]:
    return (key[..., None, :] @ state).squeeze(-2)


def _zero_state(key: Tensor, value: Tensor) -> State:
    return value.new_zeros(*key.shape[:2], key.shape[3], value.shape[3])


def chunked_delta_rule(
    query: Keys,
    key: Keys,
    value: Values,
    decay: Rates,
    rate: Rates,
    starts: Starts | None = None,
    state: State | None = None,
) -> tuple[Values, State]:
    """Equations (2) to (4): what `recurrent_delta_rule` gives, in time linear in the number of tokens."""
    time, current = key.shape[2], _zero_state(key, value) if state is None else state
    together, continuing = _documents(starts, time, key.device)
    decay = _cut(decay)
    pair = _decays(decay, together)
    before, behind = decay.cumsum(-1).exp() * continuing, pair[..., -1, :]
    query, key, value, rate = _cut(query), _cut(key), _cut(value), _cut(rate)[..., None]
    system = (rate * key) @ key.transpose(-1, -2) * pair
    sides = torch.cat([rate * value, rate * before[..., None] * key], -1)
    values, keys = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True).split(
        [value.shape[-1], key.shape[-1]], -1
    )
    scores = query @ key.transpose(-1, -2) * pair
    query, key, carried = query * before[..., None], key * behind[..., None], before[..., -1, None, None]
    outputs: list[Tensor] = []
    # Unbound once: the gradient of an index is as large as what is indexed, for every chunk again.
    parts = (values, keys, query, scores, carried, key.transpose(-1, -2))
    for v, k, q, score, kept, write in zip(*(part.unbind(2) for part in parts), strict=True):
        corrections = v - k @ current
        outputs.append(q @ current + score @ corrections)
        current = kept * current + write @ corrections
    return torch.stack(outputs, 2).flatten(2, 3)[:, :, :time], current


def _cut(x: Float[Tensor, "batch heads time ..."]) -> Float[Tensor, "batch heads chunks position ..."]:
    """In chunks, the last one filled up with zeros, which change no state."""
    missing = -x.shape[2] % CHUNK
    if missing:
        x = F.pad(x, (0, 0) * (x.dim() - 3) + (0, missing))
    return x.unflatten(2, (-1, CHUNK))


def _decays(
    decay: Float[Tensor, "batch heads chunks position"], together: Bool[Tensor, "... position position"]
) -> Float[Tensor, "batch heads chunks position position"]:
    """D. Each exponent is summed apart: a difference of two long sums would lose digits."""
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=decay.device).tril(-1)
    between = decay[..., None].expand(*decay.shape, CHUNK).masked_fill(~later, 0.0).cumsum(-2)
    return between.masked_fill(~together, -torch.inf).exp()


def _documents(starts: Starts | None, time: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """M, and where c is not 0; they broadcast to [batch, heads, chunks, position (, position)]."""
    causal = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=device).tril()
    if starts is None:
        return causal, torch.ones(CHUNK, dtype=torch.bool, device=device)
    number = F.pad(starts.long(), (0, -time % CHUNK)).unflatten(1, (-1, CHUNK)).cumsum(-1)[:, None]
    return (number[..., :, None] == number[..., None, :]) & causal, number == 0
