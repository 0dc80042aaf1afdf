"""From the simple objectives of a mixture to a batch builder.

Objectives over rows of text change causal rows in place; those of encoder-decoders make pairs. A mixture has components
of one of the two. All draws follow from (seed, source, row, epoch).
"""

from collections.abc import Sequence

from hornbook.data.batch_builder import BatchBuilder, BuildContext
from hornbook.data.config.objective import Component, Family
from hornbook.data.corpus import Stream
from hornbook.data.objectives.noise_table import check_rows, check_sequence, check_spans, noise_table
from hornbook.data.objectives.pair_plan import PairPlans, build_pair_plan
from hornbook.data.objectives.pair_rows import PairRows
from hornbook.data.order.random_keys import cumulated, epoch_key
from hornbook.data.packing.plan import ConcatPlan, Plan, TablePlan, build_plan
from hornbook.data.packing.text_rows import ObjectiveTransform, TextRows
from hornbook.data.vocabulary import load_vocabulary
from hornbook.errors import UsageError


def build_components(context: BuildContext, components: Sequence[Component]) -> BatchBuilder:
    """The batch builder of a mixture; see `Objective.build`."""
    if family_of(components) == "encoder-decoder":
        return _pair_rows(context, components)
    return _text_rows(context, components)


def family_of(components: Sequence[Component]) -> Family:
    """The models that all components are for. Raises UsageError where they are not all for the same."""
    first = components[0]
    for other in components:
        if other.family != first.family:
            raise UsageError(
                f"{other.key} is for {other.family} models and {first.key} for {first.family} models, and a run "
                "trains one model: mix objectives of one family"
            )
    return first.family


def _text_rows(context: BuildContext, components: Sequence[Component]) -> TextRows:
    transforms: list[ObjectiveTransform | None] = [each.objective.transform(context, each.key) for each in components]
    plans = [_text_plan(context, stream) for stream in context.streams]
    return TextRows(context, plans, transforms, cumulated([each.weight for each in components]))


def _text_plan(context: BuildContext, stream: Stream) -> Plan:
    if context.evaluation:
        return ConcatPlan(stream, context.sequence)
    return build_plan(stream, context.sequence, context.config.packing, context.corpus.root / "plans")


def _pair_rows(context: BuildContext, components: Sequence[Component]) -> PairRows:
    streams, config, sequence = context.streams, context.config, context.sequence
    if config.packing != "concat":
        raise UsageError(
            f'data.packing: "{config.packing}" packs plain text, and {components[0].key} fills rows by what text '
            'becomes: leave it at "concat"'
        )
    table, roles = noise_table(components, load_vocabulary(context.corpus))
    check_sequence(components, table, roles, sequence)
    mask, cache = config.document_mask, None if context.evaluation else context.corpus.root / "plans"

    def plan(stream: int, epoch: int) -> TablePlan:
        key, kept = epoch_key(context.keys, stream, epoch), None if epoch else cache
        return build_pair_plan(streams[stream], sequence, table, roles, key, document_mask=mask, cache=kept)

    plans = PairPlans(plan, len(streams), vary=len(components) > 1)
    if not context.evaluation:  # validation texts may be short
        check_spans(components, table, roles, context)
        check_rows(components, streams, plans)
    return PairRows(context, plans, table, roles)
