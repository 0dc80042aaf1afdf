"""Who may ask: names under which the server is called, and a key.

A page in a browser on this machine can send requests here. It may read no answer, because no header allows it to, and
it may send no JSON unasked, which `read_body` requires. A page whose own name was made to point to 127.0.0.1 (DNS
rebinding) could do both: its name stands in the Host header, and is refused.
"""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from hornbook.serve.hosts import host_name
from hornbook.serve.http_errors import ApiError


class Guard:
    """Refuses requests to other names (403) and without the key (401) before anything of them is read."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str] | None, key: str | None) -> None:
        self._app, self._key = app, key
        self._hosts = hosts
        """Names under which the server may be called; None: any."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is allowed."""
        if scope["type"] == "http" and (error := self._refusal(scope)) is not None:
            await error.response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"]]
        named = [value for name, value in headers if name == b"host"]
        if self._hosts is not None and (len(named) != 1 or host_name(named[0]) not in self._hosts):
            allowed = ", ".join(sorted(self._hosts))
            return ApiError(403, f"the Host header names another server: this one is {allowed}", code="host")
        if self._key is None or scope["path"] == "/health":
            return None
        given = next((value for name, value in headers if name == b"authorization"), "")
        scheme, _, key = given.partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(key.strip().encode("latin-1"), self._key.encode()):
            return None
        return ApiError(401, "the API key is missing or wrong: Authorization: Bearer KEY", code="invalid_api_key")
