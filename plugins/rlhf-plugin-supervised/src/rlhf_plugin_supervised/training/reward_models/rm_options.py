"""The options of ``rlhf rm``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_config import Labels, OptionTree, Selections
from rlhf_core import Config, ConfigError
from rlhf_core.plugins import Plugins
from rlhf_data import PairColumns

from ..options import SELECTORS, ExampleData, ExampleOptions, cautions_at, check, data, models

FULL_RATE = 1e-5
"""Learning rate at which whole models are trained under a fresh head, by which an adapter's is judged. That of
``rm.toml`` and ``prm.toml`` is the head's, and right for adapters: ten times this one."""
METRICS = ("loss", "accuracy", "margin", "score_mean", "score_std")


class RmData(PairColumns, ExampleData):
    """Sets of pairs."""


class RankingSection(Config):
    loss: Literal["sigmoid", "log_exp"] = Field(
        "sigmoid",
        description="sigmoid: -log sigmoid(chosen - rejected - margin), with the margin of the row if it has one; "
        "log_exp: log(1 + exp(rejected - chosen)), the same without a margin",
    )
    center_coef: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="factor of the mean squared sum of a pair's scores, which is added to the loss and draws scores "
        "to a mean of 0; 0: not added",
    )
    statistics: bool = Field(
        True,
        description="write mean and standard deviation of scores into config.json, for reward_model with normalize = "
        "model; of held-out answers, or else of 1000 training pairs",
    )


class RmOptions(ExampleOptions):
    """All options of ``rlhf rm`` but those of components."""

    output: str = Field("runs/rm", min_length=1, description="folder for all files of the run")
    data: RmData = RmData()
    ranking: RankingSection = RankingSection()


def _check(run: RmOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    if run.data.margin_key is not None and run.ranking.loss == "log_exp":
        raise ConfigError(
            f"{labels('data.margin_key')} {run.data.margin_key}: the loss log_exp has no margin. Set --ranking.loss "
            "sigmoid, or leave the margins out.",
            code="config/no-effect",
        )
    check(run, selections, labels, METRICS)


RM = OptionTree(
    command="rm",
    purpose="Trains a reward model on answers of which one was preferred.",
    example="--optim NAME",
    model=RmOptions,
    selectors=SELECTORS,
    check=_check,
    cautions=cautions_at(FULL_RATE),
    models=models,
    data=data,
)
