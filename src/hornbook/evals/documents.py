"""Documents of a corpus as token ids and as text, without their delimiters."""

import random
import re
from collections.abc import Iterator

import numpy as np

from hornbook.data.corpus import Corpus, Stream
from hornbook.text.tokenizer.tokenizer import Tokenizer


def documents(stream: Stream, special: set[int]) -> Iterator[np.ndarray]:
    """Token ids of each document, without its delimiter and end."""
    for shard in stream.shards:
        start, data = 0, shard.data
        for end in shard.ends.tolist():
            tokens = data[start:end]
            yield tokens[~np.isin(tokens, list(special))]
            start = end


def training_texts(corpus: Corpus, tokenizer: Tokenizer) -> Iterator[str]:
    """Text of every training document."""
    special = {corpus.delimiter_id, corpus.end_id}
    for stream in corpus.train.values():
        yield from (tokenizer.decode(tokens.tolist()) for tokens in documents(stream, special))


def held_out_texts(corpus: Corpus, tokenizer: Tokenizer, draw: random.Random) -> Iterator[str]:
    """Text of every validation document, in an order that `draw` decides."""
    special = {corpus.delimiter_id, corpus.end_id}
    shards = [shard for stream in corpus.validation.values() for shard in stream.shards]
    places = [(shard, number) for shard in shards for number in range(shard.documents)]
    draw.shuffle(places)
    for shard, number in places:
        start, end = (int(shard.ends[each]) if each >= 0 else 0 for each in (number - 1, number))
        yield tokenizer.decode([token for token in shard.data[start:end].tolist() if token not in special])


def words_of(text: str) -> list[str]:
    """What stands between white space."""
    return re.findall(r"\S+", text)
