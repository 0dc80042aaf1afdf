"""What a microbatch of a recipe keeps for backward: arithmetic, without torch."""

from hornbook.errors import UsageError
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import SavedBytes, saved_bytes
from hornbook.settings.recipe import Recipe


def activation_bytes(recipe: Recipe, vocab: int, rows: int) -> SavedBytes:
    """Bytes that a rank keeps of `rows` rows; `auto` precision counts as bf16, and a masked model as if it predicted
    all tokens.

    Raises UsageError where they are not known before the model runs.
    """
    if recipe.surgery:
        raise UsageError("what a model after surgery keeps for backward is not known before it runs")
    sequence = -(-recipe.train.sequence // recipe.parallel.context.ranks)
    shape = Rows(rows, sequence, itemsize=4 if recipe.train.precision == "fp32" else 2)
    return saved_bytes(recipe.model, vocab, shape, recipe.parallel.recompute)
