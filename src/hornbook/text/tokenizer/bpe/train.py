"""Train a byte-level BPE tokenizer (Sennrich et al., arXiv:1508.07909; bytes as in GPT-2).

Text is split by GPT-4's pattern: words with one leading blank or other character, numbers of at most three digits,
runs of punctuation, of line ends and of whitespace. The 256 bytes are always in the vocabulary, so every text can be
encoded.
"""

from collections.abc import Iterable

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from hornbook.text.config.text import BPE
from hornbook.text.tokenizer.bpe.choice import training_is_compiled
from hornbook.text.tokenizer.bpe.tables import PATTERN, STYLES, byte_characters
from hornbook.text.tokenizer.pieces import train_on_words
from hornbook.text.tokenizer.special_tokens import spell_special_tokens
from hornbook.text.tokenizer.tokenizer import END_OF_TEXT, Tokenizer

_MIN_FREQUENCY = 2


def train_bpe(config: BPE, texts: Iterable[list[str]]) -> Tokenizer:
    """Train on batches of texts. Where the text has too few repeated pairs, the vocabulary is smaller than asked.

    Special tokens have the first ids, then the bytes in the order of their characters, then the merges: as the trainer
    of the tokenizers library numbers them, whose result this is, byte for byte; it does it where our kernels would have
    to be compiled first (`bpe/choice`).
    """
    return _train_by_kernels(config, texts) if training_is_compiled() else _train_by_library(config, texts)


def _train_by_library(config: BPE, texts: Iterable[list[str]]) -> Tokenizer:
    raw, spelled = _untrained(models.BPE()), spell_special_tokens(config)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=spelled,
        initial_alphabet=sorted(byte_characters()),
        show_progress=False,
    )
    train_on_words(raw, texts, trainer)
    return Tokenizer(raw.to_str(pretty=True), None, END_OF_TEXT)


def _train_by_kernels(config: BPE, texts: Iterable[list[str]]) -> Tokenizer:
    from hornbook.text.tokenizer.bpe.count import WordCounts
    from hornbook.text.tokenizer.bpe.learn import learn_merges

    counts = WordCounts(STYLES[PATTERN])
    for batch in texts:
        counts.add(batch)
    characters, spelled = byte_characters(), spell_special_tokens(config)
    specials = len(spelled)
    spelled += sorted(characters)
    ids = {character: number for number, character in enumerate(spelled[specials:], specials)}
    pairs: list[tuple[str, str]] = []
    for left, right in learn_merges(counts, [ids[character] for character in characters], config.vocab, _MIN_FREQUENCY):
        pairs.append((spelled[left], spelled[right]))
        spelled.append(spelled[left] + spelled[right])
    model = models.BPE({token: number for number, token in enumerate(spelled)}, pairs)
    raw = _untrained(model)
    raw.add_special_tokens(spelled[:specials])
    return Tokenizer(raw.to_str(pretty=True), None, END_OF_TEXT)


def _untrained(model: models.BPE) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer(model)
    raw.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return raw
