"""The labels of several streams, looked up by place."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int64

from hornbook.data.corpus import Corpus, Stream
from hornbook.text.config.labels import ClassLabels, TagLabels

_BLOCK = 1 << 20


class LabelTable:
    """Labels beside the tokens of some streams of a labelled set."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = list(streams)
        self._outputs = max((shard.outputs for stream in streams for shard in stream.shards), default=1)

    def at(self, streams: Int64[np.ndarray, " n"], places: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n outputs"]:
        """Label of the token at place `places[i]` of the stream with number `streams[i]`; NaN where it has none."""
        found = np.empty((len(places), self._outputs), np.float32)
        for number, stream in enumerate(self._streams):
            of_stream = np.flatnonzero(streams == number)
            shards = np.searchsorted(stream.starts, places[of_stream], side="right") - 1
            for shard in np.unique(shards):
                labels = stream.shards[shard].labels
                assert labels is not None
                some = of_stream[shards == shard]
                found[some] = labels[places[some] - stream.starts[shard]]
        return found


def only_label(corpus: Corpus) -> str | None:
    """The label that all of the training data has, where one is chosen of several; None: there are others too.

    Reads on until two labels differ.
    """
    kind = corpus.labels
    if not isinstance(kind, ClassLabels | TagLabels) or (isinstance(kind, ClassLabels) and kind.multiple):
        return None
    seen: set[int] = set()
    for shard in (shard for stream in corpus.train.values() for shard in stream.shards):
        labels = shard.labels
        assert labels is not None
        for first in range(0, len(labels), _BLOCK):
            part = labels[first : first + _BLOCK, 0]
            seen |= set(np.unique(part[~np.isnan(part)]).astype(int).tolist())
            if len(seen) > 1:
                return None
    return kind.labels[seen.pop()] if seen else None
