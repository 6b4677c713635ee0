"""The options of ``rlhf chat``."""

from __future__ import annotations

from pydantic import Field

from rlhf_config import (
    CommandOptions,
    Labels,
    OptionTree,
    PaddingSampling,
    SamplingOptions,
    Selections,
    Selector,
    refuse_typed,
)
from rlhf_config.common import EngineSelection, NotNegative, Positive, TemplateVariables
from rlhf_core import CapabilityError, Config, ConfigError
from rlhf_core.plugins import Plugins

from ..serving.options import (
    ADAPTER,
    VISION,
    ModelToServe,
    adapter_without_effect,
    check_adapter,
    check_sight,
    models_of,
)


class Replies(PaddingSampling, SamplingOptions):
    max_new_tokens: Positive = Field(1024, description="largest number of tokens in an answer")


class Talk(Config):
    system: str | None = Field(
        None, description="system message before the conversation; unset: none"
    )
    template_kwargs: TemplateVariables = Field(
        default_factory=dict,
        description="variables for the model's chat template, such as {enable_thinking = false}",
    )
    stream_tokens: NotNegative = Field(
        8,
        description="number of tokens after which the text so far is shown; 0: whole answers are shown",
    )
    max_length: Positive | None = Field(
        None,
        description="largest number of tokens of a conversation; unset: as many as the model has positions for, at "
        "most 4096",
    )


class ChatOptions(CommandOptions):
    """All options of ``rlhf chat`` but those of components."""

    seed: int = Field(42, ge=0, lt=2**63, description="seed of all random draws of the run")
    model: ModelToServe
    rollout: Replies = Replies()
    chat: Talk = Talk()
    engine: EngineSelection


def _check(run: ChatOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    (engine,) = selections["engine.name"]
    if engine.needs:
        raise CapabilityError(
            f"{labels('engine.name')} {engine.registered.name} needs {', '.join(sorted(engine.needs))}, which rlhf "
            "chat does not supply"
        )
    if run.rollout.min_new_tokens > run.rollout.max_new_tokens:
        raise ConfigError(
            f"{labels('rollout.min_new_tokens')} {run.rollout.min_new_tokens}: expected at most "
            f"--rollout.max_new_tokens, which is {run.rollout.max_new_tokens}",
            code="config/min-above-max-tokens",
        )
    check_adapter(run.model, selections, labels)
    check_sight(run.model, selections, labels)
    refuse_typed(adapter_without_effect(run.model), labels)


_USAGE = """\
Usage: rlhf chat MODEL [-c FILE.toml]... [--OPTION VALUE]...

Holds a conversation with a model. Each line that you type is a message.
To write a message of several lines, put a line of three quotes before and behind it.
A line that begins with a slash is a command. /help lists the commands.
Ctrl-C stops an answer, and Ctrl-D ends the program.
With --model.vision, /image FILE shows the model an image with the next message.
Without a terminal, each line of standard input is a message, and answers go to standard output.

  -c FILE            a TOML file with options; may be given several times, later ones win
  --check            check whether the configuration is valid, and stop
  -h, --help         this text"""

CHAT = OptionTree(
    command="chat",
    purpose="Holds a conversation with a model.",
    example="MODEL --engine NAME",
    model=ChatOptions,
    selectors=(Selector("engine.name", "rlhf_engines"), VISION),
    check=_check,
    cautions=lambda run, selections, labels: (),
    models=lambda run: models_of(run.model),
    peft=frozenset({ADAPTER}),
    data=lambda run: iter(()),
    outputs=lambda run, labels: iter(()),
    usage=_USAGE,
)
