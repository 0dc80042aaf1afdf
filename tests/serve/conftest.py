"""Fixtures of the server's tests: a tiny model with a chat template, and the application over it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hornbook.model.storage.load import Loaded, load_model
from hornbook.serve.app import build_app
from hornbook.serve.limits import Limits
from hornbook.serve.service import Service
from hornbook.serve.serving_engine import Engine
from tests.cli.conftest import write_checkpoint
from tests.conftest import write_tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "{{ m['role'][0] + ': ' + m['content'] + '\\n' }}{% endfor %}a: "
)
LIMITS = Limits(slots=4, queue=8, context=64, seconds=60, body_bytes=20_000, choices=12, prefill=8)


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """As in the tests of the model: its tensors are small."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaMA of two layers with 64 positions, a tokenizer of bytes and a chat template. Read only."""
    root = tmp_path_factory.mktemp("served")
    write_tokenizer(root / "tokenizer")
    write_checkpoint(root / "model", root / "tokenizer")
    (root / "model" / "chat_template.jinja").write_text(TEMPLATE)
    return root / "model"


@pytest.fixture(scope="session")
def loaded(folder: Path) -> Loaded:
    return load_model(folder)


Serve = Callable[..., TestClient]


@pytest.fixture
def serve(loaded: Loaded) -> Iterator[Serve]:
    """serve(limits, hosts=..., key=...) -> a client of a server that has begun to work."""
    clients: list[TestClient] = []

    def act(limits: Limits = LIMITS, **options: Any) -> TestClient:
        service = Service(options.pop("loaded", loaded), "tiny", Engine(loaded, limits))
        client = TestClient(build_app(service, **options), raise_server_exceptions=False)
        clients.append(client)
        return client.__enter__()

    yield act
    for client in clients:
        client.__exit__()


def events(text: str) -> list[dict[str, Any]]:
    """Chunks of a stream that ended as it should."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
