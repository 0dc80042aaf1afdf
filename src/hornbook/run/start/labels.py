"""What a head for labels takes from the data that it is trained on."""

from hornbook.data.corpus import Corpus
from hornbook.errors import UsageError
from hornbook.model.config.head import HeadConfig, LabelHeadConfig
from hornbook.settings.recipe import unlike


def labelled_head(head: HeadConfig, corpus: Corpus) -> HeadConfig:
    """The head with the list of labels that the data has, where the recipe names none.

    Raises UsageError where a head of labels does not fit those of the data.
    """
    labels = corpus.labels
    if not isinstance(head, LabelHeadConfig) or labels is None:
        return head
    if problem := unlike(head, labels, str(corpus.root)):
        raise UsageError(": ".join(problem))
    names = getattr(labels, "labels", [])
    if len(names) == 1 and not getattr(labels, "multiple", False):
        raise UsageError(f"every row of {corpus.root} has the label {names[0]!r}: there is nothing to tell apart")
    return head.model_copy(update={"labels": names}) if names else head
