"""The options of ``rlhf sft``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_config import Labels, OptionTree, Selections
from rlhf_core import ConfigError
from rlhf_core.contracts import Aggregation
from rlhf_core.plugins import Plugins
from rlhf_data import ConversationColumns

from ..options import (
    SELECTORS,
    ExampleData,
    ExampleOptions,
    ExampleTraining,
    cautions_at,
    check,
    data,
    models,
)

METRICS = ("nll", "perplexity", "token_accuracy")
FULL_RATE = 2e-5
"""The learning rate of ``sft.toml``, by which an adapter's is judged."""


class SftData(ConversationColumns, ExampleData):
    """Sets of conversations."""


class SftTraining(ExampleTraining):
    aggregation: Aggregation = Field(
        "token-mean", description="how the token losses of an update become one number"
    )


class SftLossOptions(SftTraining):
    loss: Literal["nll", "dft"] = Field(
        "nll",
        description="nll: negative log-likelihood; dft: the same times the token's probability (dynamic fine-tuning)",
    )
    label_smoothing: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="share of the target, from 0 to below 1, that all tokens of the vocabulary get alike; the given "
        "token gets the rest",
    )
    neftune_alpha: float = Field(
        0.0,
        ge=0.0,
        le=1000.0,
        description="size of the noise that updates add to embeddings, uniform up to alpha / sqrt(tokens of the "
        "sequence * width) (NEFTune; its authors take 5 to 15); 0: none",
    )


class SftOptions(ExampleOptions):
    """All options of ``rlhf sft`` but those of components."""

    output: str = Field("runs/sft", min_length=1, description="folder for all files of the run")
    data: SftData = SftData()
    train: SftLossOptions = SftLossOptions()


def _check(run: SftOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    check(run, selections, labels, METRICS)
    if run.train.label_smoothing and run.train.loss != "nll":
        raise ConfigError(
            f"{labels('train.label_smoothing')} {run.train.label_smoothing:g} with --train.loss {run.train.loss}: "
            "expected loss nll, whose target it changes. Leave one of them out.",
            code="config/smoothing-of-other-loss",
        )


SFT = OptionTree(
    command="sft",
    purpose="Teaches a model the answers in a data set (supervised fine-tuning).",
    example="--optim NAME",
    model=SftOptions,
    selectors=SELECTORS,
    check=_check,
    cautions=cautions_at(FULL_RATE),
    models=models,
    data=data,
)
