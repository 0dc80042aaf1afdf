"""Fixtures that several rooms share: a small corpus of two sources, with a byte-level tokenizer."""

import gc
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, settings

from tests.home import borrow_home
from tests.processes import kill_what_is_left, sync_nothing

# Neither a busy machine nor chance fails a property: how long an example takes is not what is tested, and the examples
# are the same every time. HYPOTHESIS_PROFILE=search looks for others.
_CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("hornbook", _CALM, max_examples=100, derandomize=True)
settings.register_profile("search", _CALM, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "hornbook"))

kill_what_is_left()
_HOME = borrow_home()
sync_nothing()
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process of a test compiles the package, for a second
sys.dont_write_bytecode = False  # and pytest rewrites the assertions of all tests each time, for 18 seconds

# As the command line does (`hornbook.cli.main.SPINS`), and before torch loads libgomp: an idle thread that spins holds
# the core that the other worker needs. A loop of small steps took 20 times as long on two busy cores.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

END = "<|endoftext|>"
ENDINGS = {"bin": ".bin", "idx": ".idx", "docs": ".docs.parquet"}
WORDS = ("the", "a", "model", "learns", "to", "read", "one", "two", "letters", "from", "its", "page", "and", "says")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect a million objects that stay, without garbage collections, and keep them out of every later one."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def _speech(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test's -v or -q, which travels in the environment, ends with it: later tests look at what a run says."""
    for name in ("HORNBOOK_VERBOSE", "HORNBOOK_QUIET"):
        monkeypatch.setenv(name, "")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Torch has one thread, as runs of the tests have: sums are those of one order."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SPECIALS = ("[PAD]", "[MASK]", *(f"<extra_id_{number}>" for number in range(16)), "[R]", "[S]", "[X]")
"""What objectives ask of a tokenizer: padding, mask, sentinels, modes."""


def write_tokenizer(folder: Path, specials: Sequence[str] = ()) -> None:
    """A byte-level tokenizer without merges: 256 bytes, the end of text, and other special tokens behind them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: number for number, token in enumerate([END, *alphabet, *specials])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (END, *specials)])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def write_shard(root: Path, name: str, documents: list[list[int]]) -> dict[str, object]:
    """The files of one shard; returns its line of the index."""
    stem = root / name
    stem.parent.mkdir(parents=True)
    np.array([token for document in documents for token in document], "<u2").tofile(f"{stem}.bin")
    np.cumsum([len(document) for document in documents], dtype="<u8").tofile(f"{stem}.idx")
    sizes = [len(document) - 1 for document in documents]
    rows = {
        "id": [f"{name}#{k}" for k in range(len(documents))],
        "origin": [f"{name}.txt:{k}" for k in range(len(documents))],
        "bytes": pa.array(sizes, pa.int64()),
    }
    pq.write_table(pa.table(rows), f"{stem}.docs.parquet")
    facts = {"tokens": sum(map(len, documents)), "documents": len(documents), "bytes": sum(sizes)}
    content = {name: Path(f"{stem}{end}").read_bytes() for name, end in ENDINGS.items()}
    digests = {name: xxhash.xxh3_128_hexdigest(data) for name, data in content.items()}
    blocks = [xxhash.xxh3_64_hexdigest(content["bin"])]
    sidecar = {**facts, "dtype": "uint16", "digests": digests, "blocks": blocks}
    Path(f"{stem}.json").write_text(json.dumps(sidecar))
    return {"name": name, **facts, "digest": digests["bin"]}


def write_corpus(root: Path, seed: int = 0, specials: Sequence[str] = (), held_out: int = 4) -> Path:
    """A data folder as `hornbook tokenize` leaves it; `held_out`: validation documents of `notes` and of `prose`."""
    from hornbook.text.tokenizer.tokenizer import Tokenizer

    write_tokenizer(root / "tokenizer", specials)
    tokenizer = Tokenizer.load(root / "tokenizer")
    draw = random.Random(seed)
    entries = []
    for split, count in (("train", 120), ("validation", held_out)):
        for source in ("notes", "prose"):
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 30))) for _ in range(count)]
            documents = [ids.tolist() for ids in tokenizer.encode_arrays(texts)]
            entry = write_shard(root, f"tokens/{split}/{source}/00000", documents)
            entries.append({"split": split, "source": source, **entry})
    index = {
        "dtype": "uint16",
        "delimiter_id": tokenizer.delimiter_id,
        "end_id": tokenizer.end_id,
        "vocab_size": tokenizer.vocab_size,
        "tokenizer_digest": tokenizer.digest,
        "shards": entries,
    }
    (root / "tokens" / "index.json").write_text(json.dumps(index))
    return root


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with about 20 thousand training tokens. Read only: a test that changes it copies it."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "data")


@pytest.fixture(scope="session")
def marked_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same text with a tokenizer that has masks, sentinels and modes. Read only."""
    return write_corpus(tmp_path_factory.mktemp("corpus") / "marked", specials=SPECIALS, held_out=12)


TINY_RUN = (
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "train.sequence=32",
    "train.batch_tokens=128",
    "train.micro_batch=2",
    "train.tokens=1450",
    "train.precision=fp32",
    "train.device=cpu",
    "train.threads=1",
    "optim.lr=0.01",
    "optim.schedule.warmup=3 steps",
    "checkpoint.every=4",
    "checkpoint.keep=20",
    "eval.every=0",
    "eval.prompt=",
    "log.every=1000",
)
"""A run of 12 steps, the last of 64 tokens instead of 128, in well under a second."""


@pytest.fixture(scope="session")
def tiny_settings(tiny_corpus: Path) -> tuple[str, ...]:
    """Overrides of a run of 12 short steps over the tiny corpus."""
    return (f"data.path={tiny_corpus}", *TINY_RUN)


@pytest.fixture
def launch_run(tiny_settings: tuple[str, ...]) -> Callable[..., Any]:
    """Launch in this process: launch_run(folder, "optim.lr=0.1", ...) or launch_run(folder, mode="resume") -> Exit."""
    from hornbook.errors import Exit
    from hornbook.files.run_directory import RunDir
    from hornbook.run.job.job import Start
    from hornbook.run.launch.launch import launch
    from hornbook.settings.resolve import resolve

    def start(folder: Path, *words: str, mode: Any = "start", init_from: Any = None) -> Any:
        run = RunDir(folder)
        target, settings = (str(run.recipe), words) if mode == "resume" else (None, (*tiny_settings, *words))
        resolved = resolve(target, settings, environ={})
        ended = launch(resolved, run, Start(mode, init_from))
        if ended == Exit.INTERRUPTED:  # the process would end here, and a save in flight with it
            _await_saves()
        return ended

    return start


@pytest.fixture(scope="session")
def tiny_run(tiny_settings: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny run, trained in one piece in this process. Read only: what others are compared with."""
    from hornbook.errors import Exit
    from hornbook.files.run_directory import RunDir
    from hornbook.run.job.job import Start
    from hornbook.run.launch.launch import launch
    from hornbook.settings.resolve import resolve

    run = RunDir(tmp_path_factory.mktemp("whole") / "run")
    assert launch(resolve(None, tiny_settings, environ={}), run, Start()) == Exit.DONE
    return run.path


def _await_saves() -> None:
    """Until no thread of an interrupted run writes into the folder in which the next run begins."""
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def emulated_cuda() -> Iterator[Any]:
    """A GPU that there is none of (`tests.helpers.emulated_cuda`); gives the waits of the host for it."""
    import torch

    from tests.helpers.emulated_cuda import emulated_cuda

    if torch.cuda.is_available():
        pytest.skip("there is a real GPU here: `make gpu` runs on it")
    with emulated_cuda() as waits:
        yield waits


@pytest.fixture
def branch() -> Callable[[Path], list[dict[str, Any]]]:
    """The steps of a run that count, without what differs between two equal runs (times and attempts)."""
    from hornbook.files.journal import current_branch, read_records
    from hornbook.files.run_directory import RunDir

    def read(folder: Path) -> list[dict[str, Any]]:
        records = current_branch(read_records(RunDir(folder).metrics))
        return [
            _without(record, ("attempt", "seconds", "data_seconds", "tokens_per_second", "time", "bill"))
            for record in records
        ]

    return read


@pytest.fixture
def events() -> Callable[..., list[dict[str, Any]]]:
    """The ledger's records of the given kinds, or all."""
    from hornbook.files.journal import read_records
    from hornbook.files.run_directory import RunDir

    def read(folder: Path, *kinds: str) -> list[dict[str, Any]]:
        return [record for record in read_records(RunDir(folder).events) if not kinds or record["kind"] in kinds]

    return read


def _without(record: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


@pytest.fixture(scope="session")
def run_ranks() -> Iterator[Callable[..., list[Any]]]:
    """Call a function on forked ranks: run_ranks("tests/room/cases.py:name", world, *arguments) -> [result of each]."""
    from tests.ranks import RankServer

    server = RankServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def launcher(tiny_settings: tuple[str, ...]) -> Iterator[Any]:
    """Starts command lines as forks of a process that has hornbook loaded (`tests.run.launcher.Launcher`)."""
    from tests.run.launcher import Launcher

    server = Launcher(tiny_settings)
    yield server
    server.close()
