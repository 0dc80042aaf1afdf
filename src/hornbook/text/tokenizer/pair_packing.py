"""Texts that are read together, as one row of tokens: delimiter, texts with the end token between, end token.

As in stored documents the end token stands last only where it differs from the delimiter. Between two texts it stands
as often as in the tokenizer's own template of pairs (BERT: `[CLS] a [SEP] b [SEP]`; RoBERTa: twice).
"""

from collections.abc import Sequence

from hornbook.text.tokenizer.tokenizer import Tokenizer


def joined(tokenizer: Tokenizer, parts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """(tokens, types) of one text or several, given as token ids; types are 0, and 1 from the second on (BERT's)."""
    tokens: list[int] = []
    begins: list[int] = []
    for part in parts:
        tokens += [tokenizer.end_id] * tokenizer.ends_between if begins else [tokenizer.delimiter_id]
        begins.append(len(tokens))
        tokens += part
    if tokenizer.end_id != tokenizer.delimiter_id:
        tokens.append(tokenizer.end_id)
    first = begins[1] if len(begins) > 1 else len(tokens)
    return tokens, [0] * first + [1] * (len(tokens) - first)
