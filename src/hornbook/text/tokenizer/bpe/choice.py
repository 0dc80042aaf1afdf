"""Choose between our BPE kernels and the tokenizers library, whose results are the same byte for byte.

Compiling the kernels takes longer than the library takes for some ten megabytes of text. So they are compiled for
larger folders only, and used wherever they are on disk.
"""

from hornbook.kernels.ahead import Job, compile_ahead
from hornbook.kernels.cache import is_ready

LEAST_BYTES = 10_000_000
"""Of documents on disk (zstd: some four times as much text), beyond which kernels are worth their compilation.

Both sides were measured (docs/figures.md, "Cold and warm start"): compiling, and the library per megabyte.
"""


def training_is_compiled() -> bool:
    """Whether the kernels that learn merges are ready."""
    from hornbook.text.tokenizer.bpe import count as bpe_count
    from hornbook.text.tokenizer.bpe import learn as bpe_learn

    return is_ready(bpe_count._count, bpe_learn._lay_out, bpe_learn._find_first_pairs, bpe_learn._learn)


def encoding_is_compiled() -> bool:
    """Whether the kernel that encodes is ready."""
    from hornbook.text.tokenizer.bpe import encode as bpe_encode

    return is_ready(bpe_encode._encode_texts)


def jobs_for(size: int) -> list[Job]:
    """What has to be compiled before `size` bytes of documents are tokenized; nothing for a small folder."""
    if size < LEAST_BYTES:
        return []
    wanted = (encoding_is_compiled, _encode), (training_is_compiled, _learn)
    return [job for is_compiled, job in wanted if not is_compiled()]


def compile_for(size: int) -> None:
    """Compile the kernels if `size` bytes of documents are worth it."""
    compile_ahead(jobs_for(size))


def _learn() -> None:
    from hornbook.text.tokenizer.bpe.count import WordCounts
    from hornbook.text.tokenizer.bpe.learn import learn_merges
    from hornbook.text.tokenizer.bpe.tables import PATTERN, STYLES

    counts = WordCounts(STYLES[PATTERN])
    counts.add(["aa aa"])
    learn_merges(counts, list(range(256)), 257, 2)


def _encode() -> None:
    from hornbook.text.tokenizer.bpe.encode import Encoder
    from hornbook.text.tokenizer.bpe.tables import PATTERN, STYLES, Merges

    Encoder(Merges(STYLES[PATTERN], list(range(256)), [(97, 97, 256)])).encode(["aa"])
