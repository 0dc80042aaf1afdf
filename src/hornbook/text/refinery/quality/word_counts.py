"""Counts of the words of one document, for the rules: kinds of words, stop words, repeated n-grams.

Loops over words call functions only in rare cases: a call in a kernel passes each array as ten values.
"""

import numpy as np

from hornbook.kernels.compiled import GOLDEN, MIX_FIRST, compiled, load64
from hornbook.kernels.packed import hash_bytes
from hornbook.text.refinery.words.characters import LETTER, SYMBOL, decode

COLUMNS = (
    *("words", "plain_words", "plain_word_characters", "alphabetic_words", "stop_words"),
    *(f"top_{n}_gram_characters" for n in (2, 3, 4)),
    *(f"duplicate_{n}_gram_characters" for n in range(5, 11)),
)
"""Plain words have more than symbols, alphabetic ones a letter; stop words are the different ones of the language that
has most of them. Characters of the top n-grams include one space between words, those of duplicates do not."""
_WORDS, _PLAIN, _PLAIN_CHARACTERS, _ALPHABETIC, _STOP, _TOP, _DUPLICATE = 0, 1, 2, 3, 4, 5, 8
_INVERSE = np.uint64(pow(int(GOLDEN), -1, 2**64))
_ONE, _HALF, _ASCII = np.uint64(1), np.uint64(32), np.uint8(0x80)
_CACHED = 15
"""Bits of a table of uint32 that takes 128 KiB, which second-level caches hold."""


@compiled
def table_bits(count):
    """log2 of the size of a hash table that `count` entries fill by half at most.

    By an eighth while the table fits into the second-level cache: then branches on taken slots are predicted better.
    """
    bits = 4
    while (1 << bits) < 2 * count or (bits < _CACHED and (1 << bits) < 8 * count):
        bits += 1
    return bits


@compiled
def same_bytes(data, one, other, size):
    """Whether two spans of bytes are equal."""
    while size >= 8:
        if load64(data, one) != load64(data, other):
            return False
        one, other, size = one + 8, other + 8, size - 8
    while size > 0 and data[one] == data[other]:
        one, other, size = one + 1, other + 1, size - 1
    return size == 0


@compiled
def count_words(data, starts, ends, count, kind, stop_keys, stop_languages, languages, row):
    """Fill `row` [COLUMNS] for the words data[starts[i]:ends[i]], i < count.

    Stop words: sorted hashes (uint64), and the languages of each as bits.
    """
    row[_WORDS] = count
    if count == 0:
        return
    lengths, places = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    _count_kinds(data, starts, ends, count, kind, lengths, places, row)
    joined, sums, inverses = _join(data, starts, ends, places)
    bits = table_bits(count)
    table, words = np.zeros(1 << bits, np.uint32), np.empty(count, np.uint32)
    _name_words(joined, places, sums, inverses, table, bits, words)
    row[_STOP] = _stop_words(data, starts, ends, words, stop_keys, stop_languages, languages)
    grams, longer = words, np.empty(count, np.uint32)
    for n in range(2, min(4, count) + 1):
        row[_TOP + n - 2] = _top_gram(grams, words, n, lengths, table, bits, longer)
        grams = longer.copy()
    for n in range(5, min(10, count) + 1):
        row[_DUPLICATE + n - 5] = _duplicate_grams(joined, places, sums, inverses, lengths, n, table, bits)


@compiled
def _count_kinds(data, starts, ends, count, kind, lengths, places, row):
    """Count kinds of words; fill `lengths` and `places` with the characters and bytes of all words before each."""
    plain, plain_characters, alphabetic = 0, 0, 0
    for i in range(count):
        place, end, length = starts[i], ends[i], 0
        any_bits, all_bits = np.uint8(0), np.uint8(SYMBOL)
        while place < end:
            if data[place] < _ASCII:
                bits, width = kind[data[place]], 1
            else:
                code, width = decode(data, place, end)
                bits = kind[code]
            any_bits |= bits
            all_bits &= bits
            length += 1
            place += width
        lengths[i + 1] = lengths[i] + length
        places[i + 1] = places[i] + end - starts[i]
        alphabetic += any_bits & LETTER != 0
        if not all_bits:
            plain += 1
            plain_characters += length
    row[_PLAIN], row[_PLAIN_CHARACTERS], row[_ALPHABETIC] = plain, plain_characters, alphabetic


@compiled
def _join(data, starts, ends, places):
    """The bytes of all words, joined; for each word the sum over the bytes before it, and BASE ** -(its start).

    The sum of byte * BASE ** position over a span, times BASE ** -(its start), does not depend on where the span is:
    a hash of words, and of windows of words joined without spaces, where `ab c` equals `a bc`. Equal hashes are
    checked by their bytes.
    """
    count = len(places) - 1
    joined = np.empty(places[count] + 8, np.uint8)
    sums, inverses = np.empty(count + 1, np.uint64), np.empty(count + 1, np.uint64)
    place, total, power, inverse = 0, np.uint64(0), np.uint64(1), np.uint64(1)
    for i in range(count):
        sums[i], inverses[i] = total, inverse
        for at in range(starts[i], ends[i]):
            joined[place] = data[at]
            total += (np.uint64(data[at]) + _ONE) * power
            power *= GOLDEN
            inverse *= _INVERSE
            place += 1
    sums[count], inverses[count] = total, inverse
    return joined, sums, inverses


@compiled
def _name_words(joined, places, sums, inverses, table, bits, words):
    """Set words[i] to the index of the first word equal to word i."""
    shift, mask = np.uint64(64 - bits), np.uint64(len(table) - 1)
    for i in range(len(words)):
        value = (sums[i + 1] - sums[i]) * inverses[i]
        # The upper `bits` bits of the mixed hash are a slot; a taken slot holds the first of equal words.
        at = ((value ^ (value >> _HALF)) * MIX_FIRST) >> shift
        words[i] = i
        while table[at]:
            j = np.int64(table[at]) - 1
            if (sums[j + 1] - sums[j]) * inverses[j] == value:
                size = places[i + 1] - places[i]
                if places[j + 1] - places[j] == size and same_bytes(joined, places[j], places[i], size):
                    words[i] = j
                    break
            at = (at + _ONE) & mask
        if words[i] == i:
            table[at] = i + 1


@compiled
def _stop_words(data, starts, ends, words, keys, masks, languages):
    """Number of different stop words of the language with most of them."""
    found = np.zeros(languages, np.int64)
    for i in range(len(words)):
        if words[i] == i:
            key = hash_bytes(data, starts[i], ends[i])
            place = np.searchsorted(keys, key)
            if place < len(keys) and keys[place] == key:
                for language in range(languages):
                    found[language] += (masks[place] >> np.uint64(language)) & _ONE
    return found.max()


@compiled
def _top_gram(grams, words, n, lengths, table, bits, longer):
    """Characters of all occurrences of the most frequent n-gram (of equals the first).

    Sets longer[i] to the first n-gram equal to that at i; an n-gram is its first n - 1 words (`grams`) and the last.
    """
    shift, mask = np.uint64(64 - bits), np.uint64(len(table) - 1)
    windows = len(words) - n + 1
    counts = np.zeros(windows, np.uint32)
    table[:] = 0
    for i in range(windows):
        gram, word = grams[i], words[i + n - 1]  # equal pairs are equal n-grams: both name first occurrences
        at = ((np.uint64(gram) * GOLDEN ^ np.uint64(word)) * MIX_FIRST) >> shift
        first = np.int64(i)
        while table[at]:
            j = np.int64(table[at]) - 1
            if grams[j] == gram and words[j + n - 1] == word:
                first = j
                break
            at = (at + _ONE) & mask
        if first == i:
            table[at] = i + 1
        longer[i] = first
        counts[first] += 1
    best = np.argmax(counts)
    return (lengths[best + n] - lengths[best] + n - 1) * np.int64(counts[best])


@compiled
def _duplicate_grams(joined, places, sums, inverses, lengths, n, table, bits):
    """Characters of n-grams that occurred before, without overlaps: the search continues after each."""
    shift, mask = np.uint64(64 - bits), np.uint64(len(table) - 1)
    table[:] = 0
    i, total = 0, 0
    while i + n < len(places):
        value = (sums[i + n] - sums[i]) * inverses[i]
        at, found = ((value ^ (value >> _HALF)) * MIX_FIRST) >> shift, False
        while table[at] and not found:
            j = np.int64(table[at]) - 1
            if (sums[j + n] - sums[j]) * inverses[j] == value:
                size = places[i + n] - places[i]
                found = places[j + n] - places[j] == size and same_bytes(joined, places[j], places[i], size)
            at = (at + _ONE) & mask
        # An n-gram within one that was counted is neither counted nor stored, so shares cannot exceed 1.
        if found:
            total += lengths[i + n] - lengths[i]
            i += n
        else:
            table[at] = i + 1
            i += 1
    return total
