"""The options of ``rlhf dpo``."""

from __future__ import annotations

from pydantic import Field

from rlhf_core import Config, ConfigError
from rlhf_core.capabilities import UNPAIRED_ANSWERS
from rlhf_core.config import Labels, OptionTree, Selections, Selector, refuse_typed
from rlhf_core.data import LabeledColumns, PairColumns
from rlhf_core.plugins import Plugins

from ..options import SELECTORS, ExampleData, ExampleOptions, cautions, check, data, models

METRICS = ("loss", "margin")
"""Metrics of held-out sets; pairs have accuracy too."""
SUPPLIED = frozenset({"ref_logprobs", "mismatched_kl"})
"""Needs of losses that the command meets."""
COLUMNS_OF_PAIRS = ("chosen_key", "rejected_key")
COLUMNS_OF_ANSWERS = ("response_key", "messages_key", "label_key")


class DpoData(PairColumns, LabeledColumns, ExampleData):
    """Sets of pairs; for a loss on single answers, sets of answers with labels."""


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
    label, name = labels("preference.loss"), loss.registered.name
    if unknown := sorted(loss.needs - SUPPLIED):
        raise ConfigError(f"{label} {name} needs {unknown[0]!r}, which rlhf dpo does not supply")
    has_pairs = UNPAIRED_ANSWERS not in loss.registered.component.provides
    if has_pairs and "mismatched_kl" in loss.needs:
        raise ConfigError(
            f"{label} {name} needs 'mismatched_kl', which rlhf dpo supplies to losses on single answers only"
        )
    if not has_pairs and run.preference.nll_coef:
        raise ConfigError(
            f"{labels('preference.nll_coef')} {run.preference.nll_coef}: expected 0 with {name}, which learns from "
            "answers without a partner. Leave it out."
        )
    useless = COLUMNS_OF_ANSWERS if has_pairs else COLUMNS_OF_PAIRS
    reads = "pairs" if has_pairs else "single answers"
    refuse_typed(((f"data.{key}", f"{name} reads {reads}.") for key in useless), labels)
    refuse_typed([("data.margin_key", "no preference loss reads margins; rlhf rm does.")], labels)
    check(run, selections, labels, (*METRICS, "accuracy") if has_pairs else METRICS)


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
