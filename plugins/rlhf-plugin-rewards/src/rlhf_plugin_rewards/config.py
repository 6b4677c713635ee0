"""Options of the rewards. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal

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
