"""The labels of several streams, looked up by place."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32, Int64

from hornbook.data.corpus import Stream


class LabelTable:
    """Labels beside the tokens of some streams of a labelled set."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = list(streams)
        self._outputs = next(
            (shard.labels.shape[1] for stream in streams for shard in stream.shards if shard.labels is not None), 1
        )

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
