"""Options of the rewards. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from rlhf_core import Config, RewardError
from rlhf_core.code_reference import parse


def _compilable(pattern: str) -> str:
    # Imported here, because only a run with a pattern needs the package.
    import regex

    try:
        regex.compile(pattern)
    except regex.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return pattern


class FunctionConfig(Config):
    """Options of ``function``."""

    path: str = Field(min_length=1, description="file and name of the function, as FILE.py:NAME")
    batch: bool | None = Field(
        None,
        description="call the function once per batch, with lists; unset: only if a parameter is called prompts, "
        "responses, rows, uids or requests",
    )
    concurrency: int = Field(
        64,
        ge=1,
        le=100_000,
        description="largest number of calls at once of an async function that scores one sample",
    )
    step_rewards: bool = Field(
        False,
        description="the function may return step_rewards: parts of the reward on single tokens, for estimators that "
        "credit tokens",
    )

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"credits_tokens"}) if self.step_rewards else frozenset()

    def columns_needed(self) -> Mapping[str, str | None]:
        """The parameters of the function that are no fields of a sample, if the source shows them.

        Raises:
            PluginError: the source shows a class that scores nothing.
        """
        # Imported here, because only a run with a function needs it.
        from .binding import needed_columns, refuse_class_without_call

        definition = parse(self.path).definition()
        refuse_class_without_call(definition, self.path)
        return dict.fromkeys(needed_columns(definition))

    @classmethod
    def columns_of(cls, code: Callable[..., Any]) -> Mapping[str, str | None]:
        from .binding import columns_of

        return dict.fromkeys(columns_of(code))


def _problem(read: Callable[[], object]) -> str | None:
    """Return what a reader of a row's label says of it; None: it reads it."""
    try:
        read()
    except RewardError as error:
        return str(error)
    return None


class ExactMatchConfig(Config):
    """Options of ``exact_match``."""

    label_key: str = Field(
        "answer",
        description="column with the answer or a list of accepted answers; COLUMN.ENTRY names an entry of a column "
        "with objects",
    )
    extract: str | None = Field(
        None,
        description="regular expression for the answer in the response. The answer is the last match's first "
        "parenthesis, or the whole match if there is none; unset: the whole response",
    )
    strip: bool = Field(True, description="ignore white space around response and answer")
    lowercase: bool = Field(False, description="treat upper and lower case as equal")
    match_timeout_s: float = Field(
        1.0, gt=0.0, le=60.0, description="seconds for applying extract to one response"
    )

    def without_effect(self) -> Mapping[str, str]:
        return {} if self.extract else {"match_timeout_s": "nothing is matched. Set extract."}

    def columns_needed(self) -> Mapping[str, str | None]:
        """The column of the answer."""
        return {self.label_key: "label_key"}

    def row_problem(self, row: Mapping[str, Any]) -> str | None:
        """A label that no response can equal."""
        from .labels import accepted_texts

        return _problem(lambda: accepted_texts(row, self.label_key))

    @field_validator("extract")
    @classmethod
    def _check_extract(cls, value: str | None) -> str | None:
        return None if value is None else _compilable(value)


class RegexConfig(Config):
    """Options of ``regex``."""

    pattern: str = Field(
        min_length=1, description="regular expression, in the syntax of the package regex"
    )
    mode: Literal["search", "full"] = Field(
        "search",
        description="search: match a part of the response; full: match the whole response",
    )
    columns: bool = Field(
        False,
        description="replace {column}, or {column.entry} for a column with objects, by the row's value, escaped; you "
        "then write a literal brace twice",
    )
    ignore_case: bool = Field(False, description="treat upper and lower case as equal")
    match_timeout_s: float = Field(
        1.0, gt=0.0, le=60.0, description="seconds for matching one response"
    )

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, value: str) -> str:
        # With columns the expression exists only once there is a row.
        return value if "{" in value else _compilable(value)

    def columns_needed(self) -> Mapping[str, str | None]:
        """The columns that stand in the pattern's braces."""
        if not self.columns:
            return {}
        try:
            names = [
                name
                for _, name, _, _ in Formatter().parse(self.pattern)
                if name and not name.isdigit()
            ]
        except ValueError:
            return {}  # The reward says what is wrong with the braces.
        return {name.partition("[")[0]: "pattern" for name in names}

    def row_problem(self, row: Mapping[str, Any]) -> str | None:
        """A column in the pattern's braces without a value."""
        from .filling import filled

        return _problem(lambda: filled(self.pattern, row)) if self.columns else None


class MathConfig(Config):
    """Options of ``math``."""

    label_key: str = Field(
        "answer",
        description="column with the right answer, plain or LaTeX, read as a whole; COLUMN.ENTRY names an entry of a "
        "column with objects",
    )
    only_boxed: bool = Field(
        False,
        description="count only an answer in \\boxed{}; false: a response without a box is judged by its last LaTeX, "
        "number or expression",
    )
    answer_after: str | None = Field(
        None,
        min_length=1,
        description="text, such as </think>, after whose last occurrence the answer stands; a response without it "
        "has no answer. Special tokens are not part of a response's text",
    )
    step_timeout_s: float = Field(
        3.0,
        ge=0.01,
        le=60.0,
        description="seconds of CPU time for each parse and each comparison; a longer one has no result, see "
        "on_timeout. Not applied with isolate = false",
    )
    on_timeout: Literal["zero", "error"] = Field(
        "zero",
        description="zero: a response without a result gets 0 and counts in the metric timed_out; error: the reward "
        "fails for it, and on_error decides",
    )

    def columns_needed(self) -> Mapping[str, str | None]:
        """The column of the answer."""
        return {self.label_key: "label_key"}

    def row_problem(self, row: Mapping[str, Any]) -> str | None:
        """A label that is no answer, or several. The run says whether it is mathematics, which takes long to tell."""
        from .labels import final_answer, math_label

        return _problem(lambda: final_answer(math_label(row, self.label_key), self.label_key))


class HttpConfig(Config):
    """Options of ``http``."""

    urls: tuple[str, ...] = Field(
        min_length=1,
        description="addresses of servers that give equal scores, such as http://host:5000/get_reward",
    )
    choose: Literal["least_loaded", "round_robin"] = Field(
        "least_loaded",
        description="least_loaded: ask the server with the fewest requests in flight; round_robin: ask each in turn",
    )
    batch_size: int = Field(
        32, ge=1, le=65_536, description="largest number of samples in one request"
    )
    concurrency: int = Field(
        16, ge=1, le=4096, description="largest number of requests in flight, over all servers"
    )
    request_timeout_s: float = Field(
        30.0, gt=0.0, le=86_400.0, description="seconds for one request"
    )
    deadline_s: float = Field(
        40.0,
        gt=0.0,
        le=86_400.0,
        description="seconds for a batch of samples, all tries included. Choose less than three quarters of timeout_s: "
        "otherwise timeout_s ends the batch first, with a poorer message",
    )
    max_tries: int = Field(
        4, ge=1, le=1000, description="largest number of tries of one request, the first included"
    )
    backoff_s: float = Field(
        0.25,
        ge=0.0,
        le=3600.0,
        description="seconds of the pause before the second try, doubled before each further try. Each pause is "
        "multiplied by a random number between 0.5 and 1.5",
    )
    max_backoff_s: float = Field(
        8.0, gt=0.0, le=3600.0, description="seconds of the longest pause between tries"
    )
    breaker_failures: int = Field(
        3, ge=1, le=10_000, description="failures in a row after which a server gets no requests"
    )
    breaker_pause_s: float = Field(
        5.0,
        gt=0.0,
        le=3600.0,
        description="seconds in which such a server gets no requests; then one request tries the server",
    )
    token_env: str = Field(
        "RLHF_REWARD_TOKEN",
        pattern=r"[A-Za-z_]\w*",
        description="environment variable with the token, which is sent as 'Authorization: Bearer'; no token is sent "
        "if the variable is not set",
    )
    label_key: str | None = Field(
        None,
        min_length=1,
        description="column of the data that is sent as the label; COLUMN.ENTRY names an entry of a column with "
        "objects; unset: null is sent",
    )
    send_token_ids: bool = Field(
        False, description="also send token_ids, which rlhf serve-rm --input ids needs"
    )
    use_proxy: bool = Field(
        False, description="use the proxy that HTTP_PROXY and similar variables name"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the random factors of pauses")

    def variables_read(self) -> frozenset[str]:
        """The token's variable."""
        return frozenset({self.token_env})

    def columns_needed(self) -> Mapping[str, str | None]:
        """The column that is sent, if one is."""
        return {} if self.label_key is None else {self.label_key: "label_key"}

    def row_problem(self, row: Mapping[str, Any]) -> str | None:
        """A label that is not there."""
        from .labels import label_of

        key = self.label_key
        return None if key is None else _problem(lambda: label_of(row, key))

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"{url!r}: expected http://HOST:PORT/PATH or https://...")
            if parts.username is not None or parts.password is not None:
                # The message does not repeat the address, since its password would get into logs.
                raise ValueError(
                    f"the address of {parts.hostname} has a name or password in it; put the token into the "
                    "environment variable that token_env names"
                )
        if len(set(urls)) < len(urls):
            raise ValueError("the same address twice")
        return urls
