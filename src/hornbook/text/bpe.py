"""Train a byte-level BPE tokenizer (Sennrich et al., arXiv:1508.07909; bytes as in GPT-2).

Text is split by GPT-4's pattern: words with one leading blank or mark, numbers of at most three digits, runs of
marks, line ends and blanks. The 256 bytes are always in the vocabulary, so every text can be encoded.
"""

from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from hornbook.text.bpe_styles import PATTERN, STYLES
from hornbook.text.bpe_tables import byte_letters
from hornbook.text.config import BPE
from hornbook.text.special_tokens import spell_special_tokens
from hornbook.text.tokenizer import END_OF_TEXT, Tokenizer

_MIN_FREQUENCY = 2


def train_bpe(config: BPE, texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts. Where the text has too few repeated pairs, the vocabulary is smaller than asked.

    Special tokens have the first ids, then the bytes in the order of their letters, then the merges: as the trainer
    of the tokenizers library numbers them, whose result this is, byte for byte.
    """
    from hornbook.text.bpe_count import WordCounts
    from hornbook.text.bpe_learn import learn_merges

    counts = WordCounts(STYLES[PATTERN])
    for batch in texts:
        counts.add(batch)
    letters, spelled = byte_letters(), spell_special_tokens(config)
    specials = len(spelled)
    spelled += sorted(letters)
    ids = {letter: number for number, letter in enumerate(spelled[specials:], specials)}
    pairs: list[tuple[str, str]] = []
    for left, right in learn_merges(counts, [ids[letter] for letter in letters], config.vocab, _MIN_FREQUENCY):
        pairs.append((spelled[left], spelled[right]))
        spelled.append(spelled[left] + spelled[right])
    model = models.BPE({token: number for number, token in enumerate(spelled)}, pairs)
    return Tokenizer(_definition(model, spelled[:specials]), None, END_OF_TEXT)


def _definition(model: models.BPE, specials: list[str]) -> str:
    raw = tokenizers.Tokenizer(model)
    raw.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    raw.add_special_tokens(specials)
    return raw.to_str(pretty=True)
