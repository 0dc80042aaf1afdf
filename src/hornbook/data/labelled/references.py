"""Log-probabilities of answers by a reference model, computed once and kept beside the data they are about.

DATA/reference/MODEL-SHARDS-CONTENT.npy: float32 [documents, 2] in nats, of the digests of the model's files, of what
they are about (shards, length of rows, prompts with others' answers) and of the table itself.
"""

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import xxhash
from jaxtyping import Float32

from hornbook.data.batch_builder import BuildContext
from hornbook.data.config.preferences import KTO, Comparing, Referenced
from hornbook.data.corpus import Stream
from hornbook.errors import UsageError, quoted
from hornbook.files.artifact import digest_file, digest_of
from hornbook.files.durable import writing

VERSION = 1
"""Part of every key: raise it when the same answers would be cut otherwise."""
_DIGEST = re.compile("[0-9a-f]{32}")


def model_digest(folder: Path) -> str:
    """Digest of the weights and the configuration of a model folder. UsageError where it has none."""
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    if len(files) < 2 or not files[-1].is_file():
        raise UsageError(f"data.objective.reference: {folder} is no model: it needs config.json and *.safetensors")
    return digest_of({file.name: digest_file(file) for file in files})


def read_references(
    context: BuildContext, stream: Stream, objective: Referenced
) -> tuple[Float32[np.ndarray, "documents 2"], str]:
    """(log-probabilities of the answers of a stream's documents, digest of the table).

    UsageError where no reference is named, or the kept numbers are of another model.
    """
    name, root = objective.reference, context.corpus.root
    if name is None:
        raise UsageError(
            f'data.objective "{objective.kind}" compares with a reference model: start with --from MODEL, or name it '
            "(data.objective.reference)"
        )
    digest, key = name if _DIGEST.fullmatch(name) else model_digest(Path(name)), _key(context, stream, objective)
    if kept := find_references(context, stream, objective, digest):
        table = np.load(kept, allow_pickle=False)
        return table, f"{digest} {_content(table)}"
    others = sorted({path.name.partition("-")[0] for path in (root / "reference").glob(f"*-{key}-*.npy")} - {digest})
    found = f"it has those by {', '.join(others)}, so the model was changed or is another" if others else "it has none"
    remedy = (
        f"compute them: hornbook reference RECIPE --data {quoted(root)} --from MODEL, with the settings of this run"
    )
    raise UsageError(
        f"{root} has no log-probabilities of source {stream.source} by the reference model {digest}: {found}; {remedy}"
    )


def find_references(context: BuildContext, stream: Stream, objective: Comparing, digest: str) -> Path | None:
    """The file of a stream's log-probabilities by a model, if it is there and whole."""
    folder = context.corpus.root / "reference"
    for path in sorted(folder.glob(f"{digest}-{_key(context, stream, objective)}-*.npy")):
        with suppress(OSError, ValueError, EOFError):
            if path.stem.endswith(_content(np.load(path, allow_pickle=False))):
                return path
    return None


def keep_references(
    context: BuildContext, stream: Stream, objective: Comparing, digest: str, table: Float32[np.ndarray, "documents 2"]
) -> Path:
    """Write the table of a stream; returns its file."""
    folder = context.corpus.root / "reference"
    folder.mkdir(exist_ok=True)
    path = folder / f"{digest}-{_key(context, stream, objective)}-{_content(table)}.npy"
    with writing(path) as file:
        np.save(file, table, allow_pickle=False)
    return path


def _key(context: BuildContext, stream: Stream, objective: Comparing) -> str:
    answers = "with others to another prompt" if isinstance(objective, KTO) else False
    parts = f"{VERSION} {context.sequence} {answers} {stream.digest}"
    return xxhash.xxh3_64_hexdigest(parts.encode())


def _content(table: np.ndarray) -> str:
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(table).data)
