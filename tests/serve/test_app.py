"""The HTTP interface: answers in OpenAI's form, refusals that name the field, limits, streams, who may ask."""

import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hornbook.model.generate.generate import generate
from hornbook.model.storage.load import Loaded, load_model
from hornbook.text.tokenizer.tokenizer import Tokenizer
from tests.serve.conftest import LIMITS, Serve, events

COMPLETION = {"model": "tiny", "prompt": "the page", "max_tokens": 6, "temperature": 0}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "temperature": 0}
PATHS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}


def complete(client: TestClient, **changes: Any) -> dict[str, Any]:
    found = client.post("/v1/completions", json=COMPLETION | changes)
    assert found.status_code == 200, found.text
    return found.json()


def talk(client: TestClient, **changes: Any) -> dict[str, Any]:
    found = client.post("/v1/chat/completions", json=CHAT | changes)
    assert found.status_code == 200, found.text
    return found.json()


def greedy(loaded: Loaded, text: str, tokens: int) -> str:
    assert loaded.tokenizer is not None
    prompt = [loaded.tokenizer.delimiter_id, *loaded.tokenizer.encode(text)]
    return loaded.tokenizer.decode(generate(loaded.model, prompt, max_tokens=tokens, greedy=True, vocab=257))


def test_the_model_is_listed(serve: Serve) -> None:
    client = serve()
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("tiny", "model", 64)
    assert client.get("/v1/models/tiny").json() == model
    assert client.get("/v1/models/other").status_code == 404


def test_a_completion_is_that_of_generate(loaded: Loaded, serve: Serve) -> None:
    found = complete(serve())
    (choice,) = found["choices"]
    assert choice == {"index": 0, "text": greedy(loaded, "the page", 6), "logprobs": None, "finish_reason": "length"}
    assert found["usage"] == {"prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15}
    assert found["object"] == "text_completion"


def test_several_prompts_and_choices_have_numbers_in_order(serve: Serve) -> None:
    client = serve()
    found = complete(client, prompt=["the page", "a", [1, 2, 3]], n=2, temperature=1, seed=5, top_p=0.9)
    assert [each["index"] for each in found["choices"]] == list(range(6))
    texts = [each["text"] for each in found["choices"]]
    assert texts[2:4] == [
        complete(client, prompt="a", temperature=1, seed=5 + k, top_p=0.9)["choices"][0]["text"] for k in (0, 1)
    ]
    assert found["usage"]["prompt_tokens"] == 9 + 2 + 3


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_joins_to_the_answer(serve: Serve, echo: bool) -> None:
    client, asked = serve(), {"logprobs": 2, "echo": echo, "n": 2, "temperature": 1, "seed": 3, "prompt": ["ab", "the"]}
    whole = complete(client, **asked)
    parts = events(client.post("/v1/completions", json=COMPLETION | asked | {"stream": True}).text)
    for number, choice in enumerate(whole["choices"]):
        mine = [each["choices"][0] for each in parts if each["choices"][0]["index"] == number]
        assert "".join(each["text"] for each in mine) == choice["text"]
        assert [each["finish_reason"] for each in mine if each["finish_reason"]] == [choice["finish_reason"]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            joined = [value for each in mine if each["logprobs"] for value in each["logprobs"][name]]
            assert joined == choice["logprobs"][name]
    assert len({each["id"] for each in parts}) == 1


def test_an_echoed_prompt_has_the_model_s_log_probabilities(serve: Serve) -> None:
    client = serve()
    text = complete(client, echo=True, max_tokens=0, logprobs=1)["choices"][0]
    assert (text["text"], text["finish_reason"]) == ("the page", "length")
    assert text["logprobs"]["tokens"] == list("the page")
    assert all(value < 0 for value in text["logprobs"]["token_logprobs"])
    tokens = complete(client, prompt=[5, 6, 7], echo=True, max_tokens=0, logprobs=1)["choices"][0]["logprobs"]
    assert tokens["token_logprobs"][0] is tokens["top_logprobs"][0] is None
    assert len(tokens["token_logprobs"]) == 3


def test_a_chat_follows_the_template(loaded: Loaded, serve: Serve) -> None:
    client = serve()
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
    ]
    found = talk(client, messages=messages)
    (choice,) = found["choices"]
    # the template's text has no delimiter of its own, so the prompt has none
    prompt = loaded.tokenizer.encode("s: be kind\nu: hi\na: ")
    ids = generate(loaded.model, prompt, max_tokens=6, greedy=True, vocab=257)
    text = loaded.tokenizer.decode(ids)
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert found["usage"]["prompt_tokens"] == len(prompt)
    assert found["object"] == "chat.completion"


def test_a_chat_is_streamed(serve: Serve) -> None:
    client, asked = serve(), {"n": 2, "seed": 4, "temperature": 1, "logprobs": True, "top_logprobs": 2}
    whole = talk(client, **asked)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    *parts, last = events(client.post("/v1/chat/completions", json=CHAT | asked | options).text)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    for number, choice in enumerate(whole["choices"]):
        mine = [each["choices"][0] for each in parts if each["choices"][0]["index"] == number]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(each["delta"].get("content", "") for each in mine) == choice["message"]["content"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
        scores = [score for each in mine if each["logprobs"] for score in each["logprobs"]["content"]]
        assert scores == choice["logprobs"]["content"]
        assert all(math.isfinite(score["logprob"]) and len(score["top_logprobs"]) == 2 for score in scores)


def test_without_a_limit_a_chat_fills_the_context(serve: Serve) -> None:
    client = serve()
    used = talk(client, max_tokens=None, logit_bias={"0": -100})["usage"]
    assert used["total_tokens"] == 64


def test_a_stop_string_ends_a_text_before_it(serve: Serve) -> None:
    client = serve()
    whole = complete(client, max_tokens=40, temperature=1, seed=1)["choices"][0]["text"]
    stop = whole[12:14]
    found = complete(client, max_tokens=40, temperature=1, seed=1, stop=[stop])["choices"][0]
    assert found["text"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"


def test_a_stop_string_in_the_last_token_is_told(serve: Serve) -> None:
    client = serve()
    stop = complete(client)["choices"][0]["text"][2]
    found = complete(client, stop=stop)
    again = complete(client, stop=stop, max_tokens=found["usage"]["completion_tokens"])
    assert again["choices"] == found["choices"]
    assert again["choices"][0]["finish_reason"] == "stop"


# ---- Refusals

BOTH = {
    "temperature": ["hot", -0.1, 101, True, [1]],
    "top_p": [0, 1.1, "1"],
    "top_k": [1.5, -2, "3"],
    "min_p": [-0.1, 1.1],
    "n": [0, 1.5, 13, 10**30],
    "presence_penalty": [2.1, "0"],
    "frequency_penalty": [-2.1],
    "repetition_penalty": [0, -1],
    "logit_bias": [{"999": 1}, {"x": 1}, {"1": "2"}, {"1": 101}, [1], {"-1": 0}],
    "seed": [1.5, "7", 2**63],
    "stop": [["a"] * 17, "", [""], 5, ["a", None]],
    "stream": ["yes", 1],
    "stream_options": [{"include_usage": True}, 3],
    "max_tokens": [-1, 1.5, "6", 65, 10**18],
    "model": [None, 3],
    "tools": [[{}]],
    "what": [1],
}
COMPLETIONS = BOTH | {
    "prompt": [None, 5, [], [[]], {"a": 1}, [1, "a"], [-1], [257], [1.5], "x" * 100, [1] * 64, "\ud800", [True]],
    "logprobs": [21, -1, True, "2"],
    "echo": ["no", 1],
    "best_of": [2],
    "suffix": ["end"],
}
CHATS = BOTH | {
    "messages": [
        None,
        "hi",
        [],
        [{"role": "user"}],
        [{"content": "hi"}],
        [{"role": "poet", "content": "hi"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}],
        [{"role": "user", "content": "x" * 100}],
        [{"role": "user", "content": "hi"}, {"role": "system", "content": "late"}],
        [{"role": "user", "content": "hi", "more": 1}],
    ],
    "logprobs": [3, "true"],
    "top_logprobs": [2, 21],
    "max_completion_tokens": [0],
    "response_format": [{"type": "json_object"}],
}
WRONG = [("/v1/completions", name, value) for name, values in COMPLETIONS.items() for value in values]
WRONG += [("/v1/chat/completions", name, value) for name, values in CHATS.items() for value in values]


def test_a_wrong_field_is_refused_by_its_name(serve: Serve) -> None:
    client = serve()
    for path, name, value in WRONG:
        sent = json.dumps(PATHS[path] | {name: value})
        found = client.post(path, content=sent, headers={"content-type": "application/json"})
        assert found.status_code == 400, (path, name, value, found.text)
        error = found.json()["error"]
        assert error["param"] == name, (path, name, value, error)
        assert name in error["message"], (path, name, value, error)
        assert error["type"] == "invalid_request_error"
    assert client.get("/health").json()["steps"] == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"a"',
        b'{"model": NaN}',
        b'{"model": 1e999}',
        b'{"n": 1, "n": 2}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_what_is_no_json_object_is_refused(serve: Serve, body: bytes) -> None:
    found = serve().post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert (found.status_code, found.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("path", PATHS)
def test_a_prompt_far_too_long_is_refused_without_its_tokens(
    serve: Serve, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(replace(LIMITS, body_bytes=10**6))
    longest = len("<|endoftext|>")
    monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("encoded"))
    monkeypatch.setattr(Tokenizer, "encode_parts", lambda *_: pytest.fail("encoded"))
    text = "x" * (64 * longest + 1)
    field = "prompt" if "prompt" in PATHS[path] else "messages"
    value = text if field == "prompt" else [{"role": "user", "content": text}]
    error = client.post(path, json=PATHS[path] | {field: value}).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", field)
    assert "characters" in error["message"]
    assert error["message"].endswith(": shorten it")


def test_more_than_the_context_is_refused_with_what_fits(serve: Serve) -> None:
    client = serve()
    asked = {"many": COMPLETION | {"max_tokens": 1000}, "long": COMPLETION | {"prompt": "a b " * 60}}
    many, long = (client.post("/v1/completions", json=body).json()["error"] for body in asked.values())
    assert many["param"] == "max_tokens"
    room = int(many["message"].rpartition("ask for ")[2].removesuffix(" or fewer"))
    assert client.post("/v1/completions", json=COMPLETION | {"max_tokens": room}).status_code == 200
    assert client.post("/v1/completions", json=COMPLETION | {"max_tokens": room + 1}).status_code == 400
    assert (long["param"], long["message"].endswith(": shorten the prompt")) == ("prompt", True)


def test_other_refusals_have_their_status(serve: Serve) -> None:
    client = serve()
    statuses = {
        404: client.post("/v1/completions", json=COMPLETION | {"model": "gpt-\u2603"}),
        405: client.get("/v1/completions"),
        413: client.post("/v1/completions", json=COMPLETION | {"prompt": "x" * 20_000}),
        415: client.post("/v1/completions", content=json.dumps(COMPLETION)),
    }
    for status, found in statuses.items():
        assert found.status_code == status
        assert found.json()["error"]["message"]
    assert statuses[404].json()["error"]["code"] == "model_not_found"
    assert client.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"


def test_an_answer_is_accepted_as_a_turn_of_the_next_request(serve: Serve) -> None:
    client, turn = serve(), {"role": "user", "content": "b"}
    answer = talk(client)["choices"][0]["message"]
    assert answer["refusal"] is None
    assert talk(client, messages=[turn, answer | {"tool_calls": None}, turn])["choices"]


def test_null_means_that_a_field_was_left_out(serve: Serve) -> None:
    client, empty = serve(), dict.fromkeys(("n", "logit_bias", "stop", "tools", "tool_choice", "seed", "stream"))
    for ask in (complete, talk):
        assert ask(client, **empty)["choices"] == ask(client)["choices"]


def test_the_form_of_a_field_of_several_types_is_told(serve: Serve) -> None:
    client, image = serve(), {"type": "image_url", "image_url": {"url": "a"}}
    prompt = client.post("/v1/completions", json=COMPLETION | {"prompt": [1, "a"]})
    turns = client.post("/v1/chat/completions", json=CHAT | {"messages": [{"role": "user", "content": [image]}]})
    assert prompt.json()["error"]["message"].startswith("prompt: must be a text, a list of token ids")
    assert turns.json()["error"]["message"].startswith("messages.0.content: must be a text")


def test_too_many_prompts_are_refused_before_any_is_encoded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client, encoded = serve(), list[str]()
    monkeypatch.setattr(Tokenizer, "encode", lambda _, text: encoded.append(text) or [1])
    found = client.post("/v1/completions", json=COMPLETION | {"prompt": ["a"] * 4000})
    assert (found.status_code, found.json()["error"]["param"], encoded) == (400, "n", [])


def test_parts_of_characters_are_told_apart(serve: Serve) -> None:
    """`bytes` of a chat's tokens join to its text; in completions each token has a name of its own."""
    client = serve()
    choice = talk(client, logprobs=True, max_tokens=12)["choices"][0]
    joined = bytes(byte for token in choice["logprobs"]["content"] for byte in token["bytes"])
    assert joined.decode(errors="replace") == choice["message"]["content"]
    tops = complete(client, logprobs=20, max_tokens=12)["choices"][0]["logprobs"]["top_logprobs"]
    assert {len(each) for each in tops} == {20}
    assert any(name.startswith("bytes:\\x") for each in tops for name in each)


def test_fields_that_change_nothing_are_accepted(serve: Serve) -> None:
    client = serve()
    assert complete(client, user="me", store=False, metadata={"a": "b"})["choices"] == complete(client)["choices"]


def test_a_model_without_a_template_refuses_chats(serve: Serve, folder: Path, tmp_path: Path) -> None:
    import shutil

    plain = shutil.copytree(folder, tmp_path / "plain")
    (plain / "chat_template.jinja").unlink()
    client = serve(loaded=load_model(plain))
    found = client.post("/v1/chat/completions", json=CHAT)
    assert (found.status_code, found.json()["error"]["code"]) == (400, "chat_template_missing")
    assert complete(client)["choices"]


def test_too_many_requests_get_503_and_the_others_their_answers(serve: Serve) -> None:
    client = serve(replace(LIMITS, slots=1, queue=2))
    found: list[Any] = []

    def ask() -> None:
        found.append(client.post("/v1/completions", json=COMPLETION | {"max_tokens": 50}))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    refused = [each for each in found if each.status_code == 503]
    assert {each.status_code for each in found} == {200, 503}
    assert all(int(each.headers["retry-after"]) > 0 for each in refused)
    assert len({each.json()["choices"][0]["text"] for each in found if each.status_code == 200}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long_is_ended(serve: Serve, stream: bool) -> None:
    found = serve(replace(LIMITS, seconds=-1)).post("/v1/completions", json=COMPLETION | {"stream": stream})
    assert found.status_code == 503
    assert "longer than" in found.json()["error"]["message"]


# ---- Who may ask


def test_other_names_of_the_host_are_refused(serve: Serve) -> None:
    client = serve(hosts=frozenset({"localhost", "127.0.0.1", "::1", "testserver"}))
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "testserver"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "", "[::2]"):
        assert client.get("/v1/models", headers={"host": host}).status_code == 403, host


def test_a_key_is_asked_for(serve: Serve) -> None:
    client = serve(key="s\u00e9cret")
    assert client.get("/health").status_code == 200
    for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s\u00e9cret".encode("latin-1")}):
        found = client.get("/v1/models", headers=given)
        assert (found.status_code, found.json()["error"]["code"]) == (401, "invalid_api_key")
    assert client.get("/v1/models", headers={"authorization": "Bearer s\u00e9cret".encode()}).status_code == 200
    client = serve(key="secret")
    assert client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200


def test_a_client_that_leaves_frees_its_place(serve: Serve) -> None:
    """As the server calls the application: the second message says that the client has left."""
    import asyncio

    client = serve()

    async def leave(stream: bool) -> list[dict[str, Any]]:
        body = json.dumps(COMPLETION | {"max_tokens": 50, "stream": stream, "logit_bias": {"0": -100}}).encode()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "method": "POST",
            "path": "/v1/completions",
            "raw_path": b"/v1/completions",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), (b"host", b"testserver")],
        }
        sent: list[Any] = []
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> dict[str, Any]:
            message = next(messages, None)
            if message is None:
                await asyncio.sleep(0.05)
                return {"type": "http.disconnect"}
            return message

        async def send(message: Any) -> None:
            sent.append(message)

        await client.app(scope, receive, send)
        return sent

    portal = client.portal
    assert portal is not None
    for stream in (False, True):
        assert portal.call(leave, stream) is not None
        limit = time.monotonic() + 20
        while (counts := client.get("/health").json())["running"] + counts["waiting"] and time.monotonic() < limit:
            time.sleep(0.01)
        assert counts["running"] == counts["waiting"] == 0
        assert counts["steps"] < 200
