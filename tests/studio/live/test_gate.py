"""Who may use the dashboard."""

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from hornbook.studio.live.gate import Gate

ORIGIN = "http://127.0.0.1:8765"
CHANGE = {"x-hornbook": "1", "origin": ORIGIN}


@pytest.fixture
def client() -> TestClient:
    app = Starlette(
        routes=[Route("/a", lambda _: PlainTextResponse("in"), methods=["GET", "POST"])],
        middleware=[Middleware(Gate, token="secret")],
    )
    return TestClient(app, base_url=ORIGIN)


def test_the_link_becomes_a_cookie_and_its_token_leaves_the_address(client: TestClient) -> None:
    assert client.get("/a").status_code == 401
    answer = client.get("/a?tab=x&token=secret", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/a?tab=x")
    assert answer.headers["set-cookie"].lower().count("httponly") == 1
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert client.get("/a").text == "in"
    assert "default-src 'self'" in client.get("/a").headers["content-security-policy"]


def test_a_token_of_an_earlier_start_is_told(client: TestClient) -> None:
    answer = client.get("/a?token=yesterday")
    assert answer.status_code == 401
    assert "hornbook watch" in answer.text
    assert client.get("/a", headers={"cookie": "hornbook-8765=yesterday"}).status_code == 401
    assert client.get("/a", headers={"cookie": "=;;\x7f"}).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example:8765", ""])
def test_foreign_names_are_refused(client: TestClient, host: str) -> None:
    client.get("/a?token=secret")
    assert client.get("/a", headers={"host": host}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": ORIGIN},
        {"x-hornbook": "1"},
        {"x-hornbook": "1", "origin": "http://evil.example"},
        {"x-hornbook": "1", "origin": "http://127.0.0.1:9999"},
        {"x-hornbook": "1", "origin": "null"},
    ],
)
def test_a_change_needs_the_header_and_the_own_origin(client: TestClient, headers: dict[str, str]) -> None:
    client.get("/a?token=secret")
    assert client.post("/a", headers=headers).status_code == 403
    assert client.post("/a", headers=CHANGE).text == "in"
