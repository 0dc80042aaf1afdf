"""The command: a server of its own process, asked by the official client, ended by a signal."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hornbook.cli.main import main
from hornbook.cli.model.serve import KEY
from hornbook.errors import Exit
from hornbook.serve.server import Address

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


@contextmanager
def serving(model: Path, *words: str, **environment: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """(port, process) of `hornbook serve`."""
    command = [sys.executable, "-m", "hornbook", "serve", str(model), "--port", "0", "--device", "cpu", *words]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        assert process.stderr is not None
        try:
            lines = iter(process.stderr.readline, "")
            yield next(int(found[1]) for line in lines if (found := re.search(r":(\d+)/v1", line))), process
        finally:
            process.kill()


def test_it_serves_until_a_signal_and_ends_as_done(folder: Path) -> None:
    import urllib.request

    with serving(folder, "--name", "mine", **{KEY: "a key\n"}) as (port, process):
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers={"authorization": "Bearer a key"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert b'"mine"' in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == Exit.DONE


def test_what_cannot_be_served_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(folder), "--port", port, "--device", "cpu"]) == Exit.USAGE
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err
    assert main(["serve", str(folder), "--context", "65"]) == Exit.USAGE
    assert "has 64 positions" in capsys.readouterr().err
    monkeypatch.setattr("hornbook.run.machine.process_memory.free_memory", lambda _: 10**6)
    assert main(["serve", str(folder), "--slots", "100", "--device", "cpu"]) == Exit.DOES_NOT_FIT
    assert "100 full slots need 0.0 GB" in capsys.readouterr().err
    monkeypatch.setenv(KEY, " ")
    assert main(["serve", str(folder), "--slots", "100", "--device", "cpu"]) == Exit.USAGE
    assert "HORNBOOK_API_KEY is set and empty" in capsys.readouterr().err


def test_the_logging_of_others_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """absl's handler, when it is closed, closes what was stderr when absl was imported."""
    handler, closed = logging.StreamHandler(), list[bool]()
    monkeypatch.setattr(handler, "close", lambda: closed.append(True))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(folder), "--port", port, "--device", "cpu"]) == Exit.USAGE
    assert not closed


def test_an_address_knows_who_reaches_it() -> None:
    assert all(Address(host).is_local for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9"))
    assert not any(Address(host).is_local for host in ("0.0.0.0", "::", "10.0.0.1", "my-machine"))
    assert Address("0.0.0.0", names=("My-Machine",)).hosts >= {"my-machine", "localhost"}


@pytest.mark.slow
def test_the_official_client_reads_every_answer(folder: Path) -> None:
    openai = pytest.importorskip("openai")
    with serving(folder, "--name", "tiny", HORNBOOK_API_KEY="secret") as (port, _):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="secret", max_retries=0)
        assert [each.id for each in client.models.list()] == ["tiny"]
        asked = {"model": "tiny", "max_tokens": 8, "temperature": 0, "seed": 1}
        whole = client.completions.create(prompt="the page", logprobs=2, **asked)
        parts = list(client.completions.create(prompt="the page", logprobs=2, stream=True, **asked))
        assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text
        assert len(whole.choices[0].logprobs.token_logprobs) == 8
        messages = [{"role": "user", "content": "hi"}]
        talk = client.chat.completions.create(messages=messages, logprobs=True, top_logprobs=2, n=2, **asked)
        assert talk.usage.completion_tokens == 16
        assert len(talk.choices[1].logprobs.content[0].top_logprobs) == 2
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *parts, last = client.chat.completions.create(messages=messages, **asked, **options)
        text = "".join(part.choices[0].delta.content or "" for part in parts)
        assert text == talk.choices[0].message.content
        assert last.usage.completion_tokens == 8
        with client.completions.create(prompt="a", model="tiny", max_tokens=50, stream=True) as stream:
            next(iter(stream))  # the rest is not read
        with pytest.raises(openai.BadRequestError) as refused:
            client.completions.create(prompt="a", model="tiny", max_tokens=100)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "max_tokens")
        with pytest.raises(openai.NotFoundError):
            client.completions.create(prompt="a", model="other")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
