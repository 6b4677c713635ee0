"""Options of reward models. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_core import Config


class ModelOptions(Config):
    """How a reward model is loaded and run, in a training run and as a server alike."""

    path: str = Field(
        min_length=1, description="folder or hub name of a model with one score per sequence"
    )
    tokenizer: str | None = Field(
        None, min_length=1, description="folder or hub name of its tokenizer; unset: path"
    )
    head: str | None = Field(
        None,
        pattern=r"[A-Za-z_]\w*",
        description="name of the scalar head in the weights; unset: what config.json says as value_head_prefix, "
        "else score",
    )
    score_at: Literal["auto", "last", "last_not_pad"] = Field(
        "auto",
        description="token whose hidden state is scored: the last one, or the last that is not the padding token, as "
        "in Transformers; auto: the last one if config.json has a value_head_prefix. They differ where the padding "
        "token ends sequences too",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of the weights; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    device: str = Field(
        "auto",
        pattern=r"auto|cpu|cuda(:\d+)?",
        description="auto, cpu, cuda or cuda:N; auto: a GPU if there is one",
    )
    batch_tokens: int = Field(
        16_384,
        ge=1,
        le=2**26,
        description="tokens of one forward pass, padding included; a longer sequence goes alone",
    )
    max_length: int | None = Field(
        None, ge=1, le=2**24, description="longest sequence in tokens; unset: what the model allows"
    )
    overlong: Literal["error", "cut_start", "cut_end"] = Field(
        "error",
        description="a sequence beyond max_length has no score, or is scored without its first or last tokens",
    )
    normalize: Literal["none", "model", "given"] = Field(
        "none",
        description="(score - mean) / std, with the mean and std of the model's config.json or with those given here",
    )
    mean: float | None = Field(None, description="subtracted from scores, with normalize = given")
    std: float | None = Field(None, gt=0.0, description="divides scores, with normalize = given")
    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the model; read it first"
    )

    @model_validator(mode="after")
    def _check_normalization(self) -> Self:
        given = self.mean is not None, self.std is not None
        if self.normalize == "given" and not all(given):
            raise ValueError("normalize = given needs both mean and std")
        if self.normalize != "given" and any(given):
            raise ValueError(
                f"mean and std are used with normalize = given only; normalize is {self.normalize}"
            )
        return self


class RewardModelConfig(ModelOptions):
    """Options of ``reward_model``."""

    input: Literal["ids", "text", "chat"] = Field(
        "ids",
        description="what is scored. ids: the tokens as they were sampled, which needs the policy's tokenizer; text: "
        "prompt and response, tokenized again, with one end token; chat: the row's prompt and the response in this "
        "model's own chat template",
    )
    messages_key: str = Field(
        "prompt",
        description="column with the prompt, as text or as chat messages, for input = chat",
    )
    truncated_reward: float | None = Field(
        None,
        description="reward of responses that hit a token limit; unset: they are scored as they are",
    )


class ServeConfig(ModelOptions):
    """Options of ``rlhf serve-rm``."""

    input: Literal["text", "ids"] = Field(
        "text",
        description="text: the query, tokenized, with one end token; ids: the token_ids of the request, which the "
        "http reward sends with send_token_ids = true",
    )
    host: str = Field("127.0.0.1", min_length=1, description="address to listen at")
    port: int = Field(5000, ge=0, le=65_535, description="0: any free port")
    auth: bool = Field(
        True, description="ask for a token; false only while host is a loopback address"
    )
    token_env: str = Field(
        "RLHF_REWARD_TOKEN",
        pattern=r"[A-Za-z_]\w*",
        description="environment variable with the token; if it is not set, a token is made up and printed",
    )
    max_body_mib: int = Field(64, ge=1, le=4096, description="largest request")
    max_waiting: int = Field(
        65_536, ge=1, le=2**24, description="sequences that may wait; more are told to come back"
    )
    request_timeout_s: float = Field(
        300.0, gt=0.0, le=86_400.0, description="for one request, waiting included"
    )
    stop_timeout_s: int = Field(
        15, ge=1, le=3600, description="whole seconds that requests in work have after SIGTERM"
    )
