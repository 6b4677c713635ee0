"""Problems that a client is told about, with a status and a word for programs, in the form of its dialect."""

from __future__ import annotations

from typing import Any

import orjson

from ..web.exchange import HttpReply

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
}


class RequestProblem(Exception):
    """A request that is refused. Its text says what was expected and what came.

    Args:
        code: word by which a program tells problems apart.
        parameter: field of the request that is wrong; empty: no single one.
    """

    def __init__(
        self, text: str, *, status: int = 400, code: str = "invalid_request", parameter: str = ""
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.parameter = parameter


def problem_body(problem: RequestProblem, *, is_anthropic: bool) -> dict[str, Any]:
    """Return the JSON object that tells a client about a problem."""
    status, text = problem.status, str(problem)
    if is_anthropic:
        kind = _ANTHROPIC_TYPES.get(
            status, "invalid_request_error" if status < 500 else "api_error"
        )
        return {"type": "error", "error": {"type": kind, "message": text}}
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {
        "error": {
            "message": text,
            "type": kind,
            "param": problem.parameter or None,
            "code": problem.code,
        }
    }


def problem_reply(problem: RequestProblem, path: str) -> HttpReply:
    """Return the reply that tells a client about a problem, in the form of the dialect that the path is of.

    A client must not try again what would fail again, so ``x-should-retry`` says so; the clients of OpenAI and
    Anthropic obey it.
    """
    is_anthropic = "/messages" in path
    retry = problem.status in (408, 429, 503)
    headers = {"x-should-retry": "true" if retry else "false"}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return HttpReply(
        status=problem.status,
        body=orjson.dumps(problem_body(problem, is_anthropic=is_anthropic)),
        headers=headers,
    )
