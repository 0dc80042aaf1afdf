"""Errors as OpenAI's interface reports them: {"error": {"message", "type", "param", "code"}} and a status."""

from typing import Any

from starlette.responses import JSONResponse


class ApiError(Exception):
    """A request that is refused or failed."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.retry = retry
        """Seconds after which it is worth asking again."""

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """The answer."""
        headers = {} if self.retry is None else {"retry-after": str(self.retry)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return JSONResponse(self.body(), self.status, headers)
