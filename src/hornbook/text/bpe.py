"""Train a byte-level BPE tokenizer (Sennrich et al., arXiv:1508.07909; bytes as in GPT-2) with the tokenizers library.

Text is split by GPT-4's pattern: words with one leading blank or mark, numbers of at most three digits, runs of
marks, line ends and blanks. The 256 bytes are always in the vocabulary, so every text can be encoded.
"""

from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from hornbook.text.config import BPE
from hornbook.text.special_tokens import spell_special_tokens
from hornbook.text.tokenizer import END_OF_TEXT, Tokenizer

PATTERN = (
    r"(?i:'(?:[sdmt]|ll|ve|re))|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_MIN_FREQUENCY = 2


def train_bpe(config: BPE, texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts. Where the text has too few repeated pairs, the vocabulary is smaller than asked."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=spell_special_tokens(config),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(texts, trainer)
    return Tokenizer(raw.to_str(pretty=True), None, END_OF_TEXT)
