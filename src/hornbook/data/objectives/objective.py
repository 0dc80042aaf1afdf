"""From the configuration of an objective to what makes its batches.

Objectives over rows of text change causal rows in place; those of encoder-decoders make pairs. A mixture has parts
of one of the two. Whatever is drawn follows from (seed, source, row, epoch).
"""

from collections.abc import Sequence

from hornbook.data.batch_builder import BatchBuilder, BuildContext
from hornbook.data.config import Causal, FillInTheMiddle, Masked, OnLabels, Prefix
from hornbook.data.corpus import Stream
from hornbook.data.labelled.labelled import build_labelled
from hornbook.data.objectives.masked import Masking
from hornbook.data.objectives.objective_parts import Part, cumulated, family_of, objective_parts
from hornbook.data.objectives.pair_parts import check_rows, check_sequence, check_spans, pair_tables
from hornbook.data.objectives.pair_plan import PairPlans, build_pair_plan
from hornbook.data.objectives.pair_rows import PairRows
from hornbook.data.objectives.prefix import Prefixing
from hornbook.data.order.random_keys import epoch_key, stream_keys
from hornbook.data.packing.plan import ConcatPlan, Plan, TablePlan, build_plan
from hornbook.data.packing.text_rows import ObjectiveTransform, TextRows, TransformMixture
from hornbook.data.vocabulary import load_vocabulary
from hornbook.errors import UsageError


def batch_builder(context: BuildContext) -> BatchBuilder:
    """What makes batches.

    Raises:
        UsageError: the tokenizer lacks tokens that the objective needs, rows are too short, spans too long.
    """
    objective = context.config.objective
    if isinstance(objective, OnLabels):
        return build_labelled(context, objective)
    if isinstance(objective, Causal | FillInTheMiddle):
        return _text_rows(context, None)
    parts = list(objective_parts(objective))
    if family_of(parts) == "encoder-decoder":
        return _pair_rows(context, parts)
    keys = stream_keys(context.seed, [stream.source for stream in context.streams], evaluation=context.evaluation)
    return _text_rows(context, TransformMixture([_transform(part, context) for part in parts], cumulated(parts), keys))


def _text_rows(context: BuildContext, transforms: TransformMixture | None) -> TextRows:
    config, sequence = context.config, context.sequence
    plans = [_text_plan(context, stream) for stream in context.streams]
    mask = config.document_mask
    return TextRows(
        context.corpus, context.streams, plans, sequence=sequence, document_mask=mask, transforms=transforms
    )


def _text_plan(context: BuildContext, stream: Stream) -> Plan:
    if context.evaluation:
        return ConcatPlan(stream, context.sequence)
    return build_plan(stream, context.sequence, context.config.packing, context.corpus.root / "plans")


def _transform(part: Part, context: BuildContext) -> ObjectiveTransform | None:
    if isinstance(part.objective, Masked):
        return Masking(part.objective, load_vocabulary(context.corpus), evaluation=context.evaluation, key=part.key)
    return Prefixing() if isinstance(part.objective, Prefix) else None


def _pair_rows(context: BuildContext, parts: Sequence[Part]) -> PairRows:
    corpus, streams, config, sequence, seed, evaluation = context
    if config.packing != "concat":
        raise UsageError(
            f'data.packing: "{config.packing}" packs plain text, and {parts[0].key} fills rows by what text becomes: '
            'leave it at "concat"'
        )
    columns, roles = pair_tables(parts, load_vocabulary(corpus))
    check_sequence(parts, columns, roles, sequence)
    mask, cache = config.document_mask, None if evaluation else corpus.root / "plans"
    keys = stream_keys(seed, [stream.source for stream in streams], evaluation=evaluation)

    def plan(stream: int, epoch: int) -> TablePlan:
        key, kept = epoch_key(keys, stream, epoch), None if epoch else cache
        return build_pair_plan(streams[stream], sequence, columns, roles, key, document_mask=mask, cache=kept)

    plans = PairPlans(plan, len(streams), vary=len(parts) > 1)
    if not evaluation:  # what is held out may be short
        check_spans(parts, columns, roles, streams, sequence, document_mask=mask)
        check_rows(parts, streams, plans)
    return PairRows(corpus, streams, plans, columns, roles, keys)
