"""Who may use the dashboard: browsers on this machine that were given its link.

The link has a random token, which becomes a cookie that only this server reads back. Pages of other origins can
neither read an answer nor change a run: a change needs a header that they cannot send without being asked for, and an
Origin that is this server's. A foreign name that points to 127.0.0.1 stands in the Host header, and is refused.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hornbook.serve.hosts import LOCAL, host_name

HEADER = "x-hornbook"
"""A request that changes something brings it."""
POLICY = (
    "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "object-src 'none'"
)
FIXED = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
ASK = "open the whole link that `hornbook watch` printed: it has a token, which is new each time that it starts"


class Gate:
    """Passes on what is allowed, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 403 or 401, take a token out of the link, or pass on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *FIXED.items()]
            await send(message)

        answer = self._answer(scope) or self._app
        await answer(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to what does not pass; None where it does."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if host_name(host) not in LOCAL:
            return PlainTextResponse(f"this server is called 127.0.0.1 or localhost, not {host[:80]}", 403)
        query = parse_qs(scope["query_string"].decode("latin-1"))
        cookie = f"hornbook-{host.rpartition(':')[2]}"
        if (given := query.pop("token", None)) is not None:
            if not self._is_token(given[0]):
                return PlainTextResponse(f"this link is of an earlier start: {ASK}", 401)
            rest = urlencode(query, doseq=True)
            clean = RedirectResponse(scope["path"] + (f"?{rest}" if rest else ""), 303)
            clean.set_cookie(cookie, self._token, httponly=True, samesite="strict")
            return clean
        if not self._is_token(_cookie(headers.get("cookie", ""), cookie)):
            return PlainTextResponse(ASK, 401)
        is_ours = HEADER in headers and headers.get("origin") == f"http://{host}"
        if scope["method"] not in ("GET", "HEAD") and not is_ours:
            return PlainTextResponse("a change comes from the page of this server alone", 403)
        return None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("latin-1", "replace"), self._token.encode())


def _cookie(text: str, name: str) -> str:
    try:
        return SimpleCookie(text)[name].value
    except (CookieError, KeyError):
        return ""
