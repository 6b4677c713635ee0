"""Options of reward models. Imports nothing heavy: help and validation read it at start-up."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf_config import HubModel
from rlhf_config.common import TemplateVariables
from rlhf_core import Config


class ModelFiles(Config):
    """Options of any model with a scalar head: its files, and how it is run."""

    path: HubModel = Field(
        min_length=1,
        description="folder or hub name of a model with one score per sequence; or a PEFT folder with such a head, "
        "which names its base",
    )
    tokenizer: HubModel | None = Field(
        None, min_length=1, description="folder or hub name of the model's tokenizer; unset: path"
    )
    head: str | None = Field(
        None,
        pattern=r"[A-Za-z_]\w*",
        description="name of the scalar head in the weights; unset: the value_head_prefix of config.json if it has "
        "one, else score",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="dtype of the weights; auto: bfloat16 on a GPU, float32 on a CPU"
    )
    device: str = Field(
        "auto",
        pattern=r"auto|cpu|cuda(:\d+)?",
        description="device of the model: auto, cpu, cuda or cuda:N; auto: a GPU if there is one",
    )
    batch_tokens: int = Field(
        16_384,
        ge=1,
        le=2**26,
        description="largest number of tokens in one forward pass, padding included; a longer sequence goes alone",
    )
    max_length: int | None = Field(
        None,
        ge=1,
        le=2**24,
        description="number of tokens of the longest sequence; unset: the model's limit",
    )
    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the model; read the code first"
    )


class ModelOptions(ModelFiles):
    """Options of a reward model, both in a training run and as a server."""

    score_at: Literal["auto", "end", "last", "last_not_pad"] = Field(
        "auto",
        description="token that is scored. end: the one that ends the last answer, as rlhf rm and OpenRLHF train; "
        "last: the last token; last_not_pad: the last one that is no padding token, as in Transformers; auto: end if "
        "config.json has score_token_ids or a value_head_prefix, else last_not_pad",
    )
    overlong: Literal["error", "cut_start", "cut_end"] = Field(
        "error",
        description="treatment of a sequence beyond max_length. error: it has no score; cut_start: it is scored "
        "without its first tokens; cut_end: it is scored without its last tokens",
    )
    normalize: Literal["none", "model", "given"] = Field(
        "none",
        description="normalization of scores to (score - mean) / std. model: with the mean and std of the model's "
        "config.json; given: with the options mean and std",
    )
    mean: float | None = Field(
        None, description="mean that is subtracted from scores, with normalize = given"
    )
    std: float | None = Field(
        None, gt=0.0, description="standard deviation that divides scores, with normalize = given"
    )

    @model_validator(mode="after")
    def _check_normalization(self) -> Self:
        given = self.mean is not None, self.std is not None
        if self.normalize == "given" and not all(given):
            raise ValueError("normalize = given needs both mean and std")
        if self.normalize != "given" and any(given):
            name = "mean" if self.mean is not None else "std"
            raise ValueError(
                f"{name} = {getattr(self, name):g} is used with normalize = given only; normalize is "
                f"{self.normalize}. Set normalize = given, or leave {name} out."
            )
        return self


class RewardModelConfig(ModelOptions):
    """Options of ``reward_model``."""

    input: Literal["ids", "text", "chat"] = Field(
        "ids",
        description="input of the model. ids: the sampled tokens, which needs the policy's tokenizer; text: prompt "
        "and response, tokenized again, with one end token; chat: row's prompt and response in this model's chat "
        "template. A policy that reads images needs chat, or ids with vision",
    )
    vision: str | None = Field(
        None,
        min_length=1,
        description="component that reads images for this model, such as vlm, so that the score is of text and images; "
        "unset: the model reads text alone",
    )
    base: Literal["own", "shared"] = Field(
        "own",
        description="base weights, if the path is a PEFT folder. own: loaded for the reward and merged; shared: "
        "those that a role of the run holds, so that the base is in memory once; needs isolate = false",
    )
    messages_key: str = Field(
        "prompt",
        description="column with the prompt, as text or as chat messages, for input = chat",
    )
    chat_template_kwargs: TemplateVariables = Field(
        default_factory=dict,
        description="variables for this model's own chat template with input = chat, such as {enable_thinking = "
        "false}; those of data.chat_template_kwargs and of rows are for the policy's",
    )
    truncated_reward: float | None = Field(
        None,
        description="reward of a response that hit a token limit; unset: the model's score",
    )

    @model_validator(mode="after")
    def _check_template_variables(self) -> Self:
        if self.chat_template_kwargs and self.input != "chat":
            raise ValueError(
                f"chat_template_kwargs would change nothing: input is {self.input}. Leave it out, or set input = chat"
            )
        return self

    @model_validator(mode="after")
    def _check_vision(self) -> Self:
        if self.vision is None:
            return self
        if self.input == "text":
            raise ValueError(
                f"input = text with vision = {self.vision}: tokens of images are no words. Set input to ids or chat"
            )
        if self.overlong != "error":
            raise ValueError(
                f"overlong = {self.overlong} with vision = {self.vision}: a cut could go through an image. Leave "
                "overlong out"
            )
        return self

    @model_validator(mode="after")
    def _check_base(self) -> Self:
        if self.base == "own":
            return self
        for name in ("dtype", "device", "trust_remote_code", "vision"):
            if name in self.model_fields_set:
                raise ValueError(
                    f"base = shared, so {name} is that of the role that holds the base. Leave {name} out"
                    if name != "vision"
                    else "base = shared with vision: a model that reads images has a base of its own. Leave base out"
                )
        return self

    def tokenizer_of_ids(self) -> str | None:
        return (self.tokenizer or self.path) if self.input == "ids" else None

    def needed_by_options(self) -> frozenset[str]:
        images = frozenset() if self.vision is None else frozenset({"images"})
        base = frozenset() if self.base == "own" else frozenset({"in_process", "lends_bases"})
        return images | base

    def excluded_by_options(self) -> frozenset[str]:
        # Tokens and text of a sequence have those of its images; messages have images as parts, which are left out.
        blind = self.vision is None and self.input != "chat"
        return frozenset({"images"}) if blind else frozenset()


class StepTexts(Config):
    """Options by which a response becomes steps."""

    separator: str | None = Field(
        None,
        min_length=1,
        description="text after each step; the model scores the step at its last token; unset: the step_separator of "
        "config.json",
    )
    split: str | None = Field(
        None,
        min_length=1,
        description="text between the steps of a response; unset: the separator",
    )


class StepModelOptions(StepTexts, ModelFiles):
    """Options of a process reward model."""


class StepRewardConfig(StepModelOptions):
    """Options of ``process_reward_model``."""

    reduce: Literal["min", "mean", "last", "product", "none"] = Field(
        "min",
        description="how the probabilities of the steps become one reward; none: each probability is a reward on its "
        "step's last token, for estimators that credit tokens",
    )
    policy_tokenizer: HubModel | None = Field(
        None,
        min_length=1,
        description="folder or hub name of the policy's tokenizer, which finds the steps' last tokens with reduce = "
        "none; unset: the model's tokenizer",
    )
    truncated_reward: float | None = Field(
        None,
        description="reward of a response that hit a token limit, on its last token; unset: that of its steps",
    )

    def tokenizer_of_ids(self) -> str | None:
        return (
            (self.policy_tokenizer or self.tokenizer or self.path)
            if self.reduce == "none"
            else None
        )

    def needed_by_options(self) -> frozenset[str]:
        return frozenset({"credits_tokens"}) if self.reduce == "none" else frozenset()

    @model_validator(mode="after")
    def _check_tokenizer(self) -> Self:
        if self.policy_tokenizer is not None and self.reduce != "none":
            raise ValueError(
                f"policy_tokenizer would change nothing: reduce is {self.reduce}, so no step needs a place. Leave it "
                "out, or set reduce = none"
            )
        return self


class ServeConfig(StepTexts, ModelOptions):
    """Options of ``rlhf serve-rm``."""

    input: Literal["text", "ids"] = Field(
        "text",
        description="input of the model. text: the query, tokenized, with one end token; ids: the token_ids of the "
        "request, which the http reward sends with send_token_ids = true",
    )
    steps: Literal["none", "min", "mean", "last", "product"] = Field(
        "none",
        description="none: the score of each sequence; else the path is a process reward model, and the answer is this "
        "number of the probabilities that the steps of the response are good",
    )
    host: str = Field("127.0.0.1", min_length=1, description="address that the server listens at")
    port: int = Field(
        5000, ge=0, le=65_535, description="port that the server listens at; 0: any free port"
    )
    auth: bool = Field(
        True,
        description="require a token in each request; false is allowed only if host is a loopback address",
    )
    token_env: str = Field(
        "RLHF_REWARD_TOKEN",
        pattern=r"[A-Za-z_]\w*",
        description="environment variable with the token; if it is not set, the server makes up a token and prints it",
    )
    max_body_mib: int = Field(64, ge=1, le=4096, description="size of the largest request, in MiB")
    max_waiting: int = Field(
        65_536,
        ge=1,
        le=2**24,
        description="largest number of sequences that wait; further requests get status 503",
    )
    request_timeout_s: float = Field(
        300.0, gt=0.0, le=86_400.0, description="seconds for one request, waiting included"
    )
    stop_timeout_s: int = Field(
        15,
        ge=1,
        le=3600,
        description="seconds, a whole number, for requests in work to finish after SIGTERM or Ctrl-C; a second signal "
        "ends the server at once",
    )

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        by_steps = self.steps != "none"
        useless = ("score_at", "overlong", "normalize") if by_steps else ("separator", "split")
        for name in useless:
            if name in self.model_fields_set:
                raise ValueError(
                    f"{name} = {getattr(self, name)} would change nothing: steps is {self.steps}. Leave it out"
                )
        if by_steps and self.input == "ids":
            raise ValueError("input = ids with steps: steps are found in text. Leave input out")
        return self
