"""Full check of a shard against its checksums.

Each shard's .json states a digest per file and xxh3_64 of every 1 MiB block of the .bin, so that damage is
named to the block: which tokens, hence which documents, are not what was written.
"""

import json
from typing import Any

import numpy as np
import xxhash

from hornbook.data.corpus import Shard
from hornbook.errors import IntegrityError

BLOCK_BYTES = 2**20
_REMEDY = "restore the file, or write the shards again with `hornbook tokenize`"


def verify_shard(shard: Shard) -> None:
    """Compare all files of a shard with its .json and the index; IntegrityError says what differs and where."""
    stated = _read_sidecar(shard)
    _check_blocks(shard, stated["blocks"])
    if stated["digests"]["bin"] != shard.digest:
        raise IntegrityError(
            f"{shard.path('.bin')}: the index expects digest {shard.digest}, the shard's .json says"
            f" {stated['digests']['bin']}: {_REMEDY}"
        )
    for ending, name in ((".idx", "idx"), (".docs.parquet", "docs")):
        found = xxhash.xxh3_128_hexdigest(shard.path(ending).read_bytes())
        if found != stated["digests"][name]:
            raise IntegrityError(
                f"{shard.path(ending)}: expected digest {stated['digests'][name]}, found {found}: {_REMEDY}"
            )
    if np.any(shard.ends[1:] < shard.ends[:-1]):
        raise IntegrityError(f"{shard.path('.idx')}: ends of documents do not ascend: {_REMEDY}")


def _read_sidecar(shard: Shard) -> dict[str, Any]:
    path = shard.path(".json")
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        _ = stated["blocks"], stated["digests"]["bin"], stated["digests"]["idx"], stated["digests"]["docs"]
    except FileNotFoundError as error:
        raise IntegrityError(f"{path}: expected a file, found none: {_REMEDY}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(f"{path}: cannot be read ({error}): {_REMEDY}") from error
    return stated


def _check_blocks(shard: Shard, blocks: list[str]) -> None:
    data = shard.data.view(np.uint8)
    count = -(-len(data) // BLOCK_BYTES)
    if len(blocks) != count:
        raise IntegrityError(f"{shard.path('.json')}: expected {count} block checksums, found {len(blocks)}: {_REMEDY}")
    for number, expected in enumerate(blocks):
        first = number * BLOCK_BYTES
        found = xxhash.xxh3_64_hexdigest(data[first : first + BLOCK_BYTES])
        if found != expected:
            tokens = first // shard.data.itemsize
            raise IntegrityError(
                f"{shard.path('.bin')}: block {number} (bytes from {first}, tokens from {tokens}): expected checksum"
                f" {expected}, found {found}: {_REMEDY}"
            )
