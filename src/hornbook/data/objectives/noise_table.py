"""The objectives of encoder-decoders as tables for kernels, once it is sure that tokenizer and text suffice."""

import math
from collections.abc import Sequence

import numpy as np

from hornbook.data.config.objectives import Denoiser, Infill, Span
from hornbook.data.corpus import Stream
from hornbook.data.objectives.infill import LONGEST_SPAN, poisson_bounds
from hornbook.data.objectives.objective_parts import Part, cumulated
from hornbook.data.objectives.pair_plan import SHORTEST, PairPlans, raw_length
from hornbook.data.objectives.pairs import Parts, Roles
from hornbook.data.objectives.spans import span_counts
from hornbook.data.packing.plan import stream_ends
from hornbook.data.vocabulary import Vocabulary
from hornbook.errors import UsageError


def pair_tables(parts: Sequence[Part], vocabulary: Vocabulary) -> tuple[Parts, Roles]:
    """Columns of the parts, and token ids by role. Raises UsageError where the tokenizer lacks a role."""
    for part in parts:
        _check_roles(part, vocabulary)
    special = vocabulary.special
    infills = any(isinstance(part.objective, Infill) for part in parts)
    roles = Roles(
        np.array(special.sentinels, np.int32),
        -1 if special.mask is None else special.mask,
        -1 if vocabulary.begin_id is None else vocabulary.begin_id,
        vocabulary.end_id,
        vocabulary.pad_id,
        vocabulary.ends_sentence if infills else np.empty(0, np.bool_),
    )
    columns = Parts(
        cumulated(parts),
        np.array([isinstance(part.objective, Infill) for part in parts]),
        np.array([_rate(part) for part in parts]),
        np.array([_mean(part) for part in parts]),
        np.array([_mode(part, vocabulary) for part in parts]),
        np.array([vocabulary.pad_id if part.start == "pad" else vocabulary.end_id for part in parts]),
        np.array([isinstance(part.objective, Infill) and part.objective.permute for part in parts]),
        np.array([_poisson(part) for part in parts]),
    )
    return columns, roles


def _rate(part: Part) -> float:
    if isinstance(part.objective, Infill):
        return part.objective.rate
    assert isinstance(part.objective, Span | Denoiser)
    return part.objective.density


def _mean(part: Part) -> float:
    assert isinstance(part.objective, Span | Infill | Denoiser)
    return math.inf if part.objective.mean_span is None else part.objective.mean_span


def _mode(part: Part, vocabulary: Vocabulary) -> int:
    return vocabulary.special.modes[part.objective.mode] if isinstance(part.objective, Denoiser) else -1


def _poisson(part: Part) -> np.ndarray:
    return poisson_bounds(_mean(part)) if isinstance(part.objective, Infill) else np.ones(LONGEST_SPAN + 1)


def _check_roles(part: Part, vocabulary: Vocabulary) -> None:
    special = vocabulary.special
    if isinstance(part.objective, Infill):
        if special.mask is None:
            raise vocabulary.lacks(part.key, "a mask token", "infill", "[MASK] or <mask>")
        return
    name = "ul2" if isinstance(part.objective, Denoiser) else "span"
    if not special.sentinels:
        raise vocabulary.lacks(part.key, "sentinel tokens", name, "<extra_id_0>, <extra_id_1>, ...")
    if isinstance(part.objective, Denoiser) and part.objective.mode not in special.modes:
        raise vocabulary.lacks(part.key, f"a mode token {part.objective.mode}", name, "[R], [S], [X]")


def check_sequence(parts: Sequence[Part], columns: Parts, roles: Roles, sequence: int) -> None:
    """Raise UsageError where rows of `sequence` tokens are too short for a piece, or have more spans than sentinels."""
    for number, part in enumerate(parts):
        longest = raw_length(columns, roles, number, sequence)
        if longest < SHORTEST:
            raise UsageError(f"train.sequence {sequence} is too short for {part.key}: nothing fits; make it longer")
        if isinstance(part.objective, Infill):
            continue
        spans = int(span_counts(longest, columns.rates[number], columns.means[number])[1])
        if spans > len(roles.sentinels):
            raise UsageError(
                f"{part.key} takes {spans} spans out of a row of train.sequence {sequence}, and the tokenizer has "
                f"{len(roles.sentinels)} sentinel tokens: shorten train.sequence, lengthen mean_span, or tokenize with "
                f"text.tokenizer.sentinels = {spans} or more"
            )


def check_spans(
    parts: Sequence[Part],
    columns: Parts,
    roles: Roles,
    streams: Sequence[Stream],
    sequence: int,
    *,
    document_mask: bool,
) -> None:
    """Raise UsageError where spans are meant to be longer than the longest piece of text there is."""
    longest = max(stream.tokens for stream in streams)
    if document_mask:
        ends = [np.diff(stream_ends(stream), prepend=0) for stream in streams]
        longest = max(int(sizes.max()) for sizes in ends if len(sizes)) - 1 - (roles.begin >= 0)
    for number, part in enumerate(parts):
        piece = min(longest, raw_length(columns, roles, number, sequence))
        if piece < _mean(part) < math.inf:
            raise UsageError(
                f"{part.key}.mean_span is {_mean(part):g}, and no piece of text is longer than {piece} tokens (the "
                f"longest document has {longest}, train.sequence is {sequence}): shorten it, or give longer texts"
            )


def check_rows(parts: Sequence[Part], streams: Sequence[Stream], plans: PairPlans) -> None:
    """Raise UsageError where a source has no text that is long enough for a piece."""
    for stream, plan in zip(streams, plans.first, strict=True):
        if plan.rows == 0:
            raise UsageError(
                f"data.weights: source {stream.source} has no document of {SHORTEST} tokens or more, which "
                f"{parts[0].key} needs: give it weight 0, or more text"
            )
