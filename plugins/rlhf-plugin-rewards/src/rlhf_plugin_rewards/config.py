"""Options of the rewards. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rlhf_core import Config


def _compilable(pattern: str) -> str:
    # Here, not at the top: it is only needed when a pattern is given.
    import regex

    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return pattern


class FunctionConfig(Config):
    """Options of ``function``."""

    path: str = Field(min_length=1, description="the function, as FILE.py:NAME")
    batch: bool | None = Field(
        None,
        description="call it with lists, once per batch; unset: if a parameter is called prompts, responses, rows, "
        "uids or requests",
    )
    concurrency: int = Field(
        64, ge=1, le=100_000, description="an async function of one sample: calls in flight at once"
    )


class ExactMatchConfig(Config):
    """Options of ``exact_match``."""

    label_key: str = Field(
        "answer", description="column with the answer, or a list of accepted answers"
    )
    extract: str | None = Field(
        None,
        description="regular expression for the answer in the response: the last match's first group, or all of it; "
        "unset: the whole response",
    )
    strip: bool = Field(True, description="ignore white space around both")
    lowercase: bool = Field(False, description="ignore the difference of upper and lower case")
    match_timeout_s: float = Field(1.0, gt=0.0, le=60.0, description="for extract on one response")

    @field_validator("extract")
    @classmethod
    def _check_extract(cls, value: str | None) -> str | None:
        return None if value is None else _compilable(value)


class RegexConfig(Config):
    """Options of ``regex``."""

    pattern: str = Field(min_length=1, description="regular expression, as of the regex package")
    mode: Literal["search", "full"] = Field(
        "search", description="match anywhere in the response, or all of it"
    )
    columns: bool = Field(
        False,
        description="put the row's columns, escaped, in the place of {column}; a literal brace is then written twice",
    )
    ignore_case: bool = Field(False, description="ignore the difference of upper and lower case")
    match_timeout_s: float = Field(1.0, gt=0.0, le=60.0, description="for one response")

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        # With columns the expression exists only once there is a row.
        return value if "{" in value else _compilable(value)


class MathConfig(Config):
    """Options of ``math``."""

    label_key: str = Field("answer", description="column with the right answer, plain or LaTeX")
    step_timeout_s: int = Field(
        3,
        ge=1,
        le=60,
        description="whole seconds for each parse and each comparison; not applied with isolate = false",
    )


class HttpConfig(Config):
    """Options of ``http``."""

    urls: tuple[str, ...] = Field(
        min_length=1,
        description="servers that give the same scores, such as http://host:5000/get_reward",
    )
    choose: Literal["least_loaded", "round_robin"] = Field(
        "least_loaded", description="the server with the fewest requests in flight, or each in turn"
    )
    batch_size: int = Field(32, ge=1, le=65_536, description="samples of one request")
    concurrency: int = Field(16, ge=1, le=4096, description="requests in flight, all servers")
    request_timeout_s: float = Field(30.0, gt=0.0, le=86_400.0, description="for one request")
    deadline_s: float = Field(
        40.0,
        gt=0.0,
        le=86_400.0,
        description="for a batch of samples with all repetitions; below three quarters of timeout_s, or that comes "
        "first, with a poorer message",
    )
    max_tries: int = Field(4, ge=1, le=1000, description="of one request, the first included")
    backoff_s: float = Field(
        0.25,
        ge=0.0,
        le=3600.0,
        description="pause before the second try, doubled with each; half of it to one and a half, by chance",
    )
    max_backoff_s: float = Field(8.0, gt=0.0, le=3600.0, description="longest pause between tries")
    breaker_failures: int = Field(
        3, ge=1, le=10_000, description="failures in a row after which a server is left alone"
    )
    breaker_pause_s: float = Field(
        5.0, gt=0.0, le=3600.0, description="how long; then one request tries it"
    )
    token_env: str = Field(
        "RLHF_REWARD_TOKEN",
        pattern=r"[A-Za-z_]\w*",
        description="environment variable with the token that is sent as 'Authorization: Bearer'; not set: none is",
    )
    label_key: str | None = Field(
        None, min_length=1, description="column that is sent as the label; unset: null"
    )
    send_token_ids: bool = Field(
        False, description="send token_ids too, for rlhf serve-rm --input ids"
    )
    use_proxy: bool = Field(
        False, description="go through the proxy that HTTP_PROXY and its kin name"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of the chance in pauses")

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r}: expected http://HOST:PORT/PATH or https://...")
            if parts.username is not None or parts.password is not None:
                # Not repeated here: it would be in logs.
                raise ValueError(
                    f"the address of {parts.hostname} has a name or password in it; put the token into the "
                    "environment variable that token_env names"
                )
        if len(set(urls)) < len(urls):
            raise ValueError("the same address twice")
        return urls
