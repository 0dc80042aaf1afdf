"""The noise of encoder-decoder objectives as a table for kernels, and checks that tokenizer and text suffice for it."""

import math
from collections.abc import Sequence

import numpy as np

from hornbook.data.batch_builder import BuildContext
from hornbook.data.config.objective import Component, Noise
from hornbook.data.corpus import Stream
from hornbook.data.objectives.infill import LONGEST_SPAN, poisson_bounds
from hornbook.data.objectives.pair_plan import SHORTEST, PairPlans, raw_length
from hornbook.data.objectives.pairs import NoiseTable, Roles
from hornbook.data.objectives.spans import span_counts
from hornbook.data.order.random_keys import cumulated
from hornbook.data.packing.plan import stream_ends
from hornbook.data.vocabulary import Vocabulary
from hornbook.errors import UsageError


def noise_table(components: Sequence[Component], vocabulary: Vocabulary) -> tuple[NoiseTable, Roles]:
    """The noise of each component, and token ids by role. Raises UsageError where the tokenizer lacks a role."""
    for component in components:
        _check_roles(component, vocabulary)
    special, noises = vocabulary.special, [_noise(component) for component in components]
    roles = Roles(
        np.array(special.sentinels, np.int32),
        -1 if special.mask is None else special.mask,
        -1 if vocabulary.begin_id is None else vocabulary.begin_id,
        vocabulary.end_id,
        vocabulary.pad_id,
        vocabulary.ends_sentence if any(noise.infill for noise in noises) else np.empty(0, np.bool_),
    )
    table = NoiseTable(
        cumulated([component.weight for component in components]),
        np.array([noise.infill for noise in noises]),
        np.array([noise.rate for noise in noises]),
        np.array([noise.mean_span for noise in noises]),
        np.array([-1 if noise.mode is None else special.modes[noise.mode] for noise in noises]),
        np.array([vocabulary.pad_id if noise.start == "pad" else vocabulary.end_id for noise in noises]),
        np.array([noise.permute for noise in noises]),
        np.array([poisson_bounds(noise.mean_span) if noise.infill else np.ones(LONGEST_SPAN + 1) for noise in noises]),
    )
    return table, roles


def _noise(component: Component) -> Noise:
    assert component.noise is not None
    return component.noise


def _check_roles(component: Component, vocabulary: Vocabulary) -> None:
    special, key, noise = vocabulary.special, component.key, _noise(component)
    if noise.infill:
        if special.mask is None:
            raise vocabulary.lacks(key, "a mask token", "infill", "[MASK] or <mask>")
        return
    name = "span" if noise.mode is None else "ul2"
    if not special.sentinels:
        raise vocabulary.lacks(key, "sentinel tokens", name, "<extra_id_0>, <extra_id_1>, ...")
    if noise.mode is not None and noise.mode not in special.modes:
        raise vocabulary.lacks(key, f"a mode token {noise.mode}", name, "[R], [S], [X]")


def check_sequence(components: Sequence[Component], table: NoiseTable, roles: Roles, sequence: int) -> None:
    """Raise UsageError where rows of `sequence` tokens are too short for a piece, or have more spans than sentinels."""
    for number, component in enumerate(components):
        longest = raw_length(table, roles, number, sequence)
        if longest < SHORTEST:
            raise UsageError(
                f"train.sequence {sequence} is too short for {component.key}: nothing fits; make it longer"
            )
        if _noise(component).infill:
            continue
        spans = int(span_counts(longest, table.rates[number], table.means[number])[1])
        if spans > len(roles.sentinels):
            raise UsageError(
                f"{component.key} takes {spans} spans out of a row of train.sequence {sequence}, and the tokenizer has "
                f"{len(roles.sentinels)} sentinel tokens: shorten train.sequence, lengthen mean_span, or tokenize with "
                f"text.tokenizer.sentinels = {spans} or more"
            )


def check_spans(components: Sequence[Component], table: NoiseTable, roles: Roles, context: BuildContext) -> None:
    """Raise UsageError where the mean span is longer than the longest piece of text."""
    sequence, longest = context.sequence, max(stream.tokens for stream in context.streams)
    if context.config.document_mask:
        ends = [np.diff(stream_ends(stream), prepend=0) for stream in context.streams]
        longest = max(int(sizes.max()) for sizes in ends if len(sizes)) - 1 - (roles.begin >= 0)
    for number, component in enumerate(components):
        piece, mean = min(longest, raw_length(table, roles, number, sequence)), _noise(component).mean_span
        if piece < mean < math.inf:
            raise UsageError(
                f"{component.key}.mean_span is {mean:g}, and no piece of text is longer than {piece} tokens (the "
                f"longest document has {longest}, train.sequence is {sequence}): shorten it, or give longer texts"
            )


def check_rows(components: Sequence[Component], streams: Sequence[Stream], plans: PairPlans) -> None:
    """Raise UsageError where a source has no text that is long enough for a piece."""
    for stream, plan in zip(streams, plans.first, strict=True):
        if plan.rows == 0:
            raise UsageError(
                f"data.weights: source {stream.source} has no document of {SHORTEST} tokens or more, which "
                f"{components[0].key} needs: give it weight 0, or more text"
            )
