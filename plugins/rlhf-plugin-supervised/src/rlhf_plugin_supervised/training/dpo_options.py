"""The options of ``rlhf dpo``."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config, ConfigError
from rlhf_core.capabilities import UNPAIRED_ANSWERS
from rlhf_core.config import Labels, OptionTree, Selections, Selector
from rlhf_core.data import PairColumns
from rlhf_core.plugins import Plugins

from .options import SELECTORS, ExampleData, ExampleOptions, cautions, check, data, models

METRICS = ("eval/loss", "eval/accuracy", "eval/margin")


class DpoData(PairColumns, ExampleData):
    """Sets of pairs."""


class PreferenceSection(Config):
    loss: str = Field(description="preference loss; its options are in the section named after it")
    nll_coef: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="add this much of the chosen answers' negative log-likelihood per token",
    )


class DpoOptions(ExampleOptions):
    """All options of ``rlhf dpo`` but those of components."""

    output: str = Field("runs/dpo", min_length=1, description="run folder")
    data: DpoData = DpoData()
    preference: PreferenceSection


def _check(run: DpoOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    (loss,) = selections["preference.loss"]
    if UNPAIRED_ANSWERS in loss.registered.component.provides:
        raise ConfigError(
            f"{labels('preference.loss')} {loss.registered.name}: it learns from single answers, and rlhf dpo reads "
            "pairs. Choose a loss on pairs."
        )
    if unknown := sorted(loss.needs - {"ref_logprobs"}):
        raise ConfigError(
            f"{labels('preference.loss')} {loss.registered.name} needs {unknown[0]!r}, which rlhf dpo does not supply"
        )
    check(run, selections, labels, METRICS)


DPO = OptionTree(
    command="dpo",
    purpose="Teaches a model which of two answers was preferred (DPO and its kin).",
    example="--preference.loss NAME",
    model=DpoOptions,
    selectors=(*SELECTORS, Selector("preference.loss", "rlhf_preference_losses")),
    check=_check,
    cautions=cautions,
    models=models,
    data=data,
)
