"""The options of ``rlhf sft``."""

from __future__ import annotations

from pydantic import Field

from rlhf_core.config import Labels, OptionTree, Selections
from rlhf_core.contracts import Aggregation
from rlhf_core.data import ConversationColumns
from rlhf_core.plugins import Plugins

from ..options import (
    SELECTORS,
    ExampleData,
    ExampleOptions,
    ExampleTraining,
    cautions,
    check,
    data,
    models,
)

METRICS = ("nll", "perplexity")


class SftData(ConversationColumns, ExampleData):
    """Sets of conversations."""


class SftTraining(ExampleTraining):
    aggregation: Aggregation = Field(
        "token-mean", description="how token losses become one number, over the whole update"
    )


class SftOptions(ExampleOptions):
    """All options of ``rlhf sft`` but those of components."""

    output: str = Field("runs/sft", min_length=1, description="run folder")
    data: SftData = SftData()
    train: SftTraining = SftTraining()


def _check(run: SftOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    check(run, selections, labels, METRICS)


SFT = OptionTree(
    command="sft",
    purpose="Teaches a model the answers in a data set (supervised fine-tuning).",
    example="--optim NAME",
    model=SftOptions,
    selectors=SELECTORS,
    check=_check,
    cautions=cautions,
    models=models,
    data=data,
)
