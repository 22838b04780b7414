# SPDX-License-Identifier: MIT
"""Errors in OpenAI's shape."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from .._errors import ArgumentTypeError, ArgumentValueError
from ..decode import EngineFullError

log = logging.getLogger(__name__)
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class RefusedError(Exception):
    """A request is not answered.

    Args:
        status: of HTTP.
        message: for people.
        param: the field that is wrong.
        code: for programs.
        headers: further ones of the answer.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        usual = "server_error" if self.status >= 500 else "invalid_request_error"
        kind = _KINDS.get(self.status, usual)
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def refusal_of(error: Exception) -> RefusedError:
    """The refusal that tells a client of an error. Only the log has more of one that nobody
    foresaw."""
    if isinstance(error, RefusedError):
        return error
    if isinstance(error, HTTPException):  # of Starlette: no such path, or no such method
        return RefusedError(error.status_code, error.detail, headers=dict(error.headers or {}))
    if isinstance(error, EngineFullError):
        message = "too many requests wait, try again later"
        return RefusedError(429, message, code="queue_full", headers={"Retry-After": "1"})
    if isinstance(error, (ArgumentValueError, ArgumentTypeError)):
        return RefusedError(400, str(error))
    log.error("a request failed", exc_info=error)
    return RefusedError(500, "the server failed to answer this request", code="internal_error")


async def respond(_: Request, error: Exception) -> JSONResponse:
    """Answers with the refusal of an error; a handler of Starlette's."""
    refusal = refusal_of(error)
    return JSONResponse(refusal.body, refusal.status, refusal.headers)
