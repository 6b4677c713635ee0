"""The options of ``rlhf prm``."""

from __future__ import annotations

from pydantic import Field

from rlhf_config import Labels, OptionTree, Selections
from rlhf_core.plugins import Plugins
from rlhf_data import StepLabelColumns

from ..options import SELECTORS, ExampleData, ExampleOptions, cautions_at, check, data, models
from .rm_options import FULL_RATE

METRICS = ("loss", "accuracy", "good", "label")


class PrmData(StepLabelColumns, ExampleData):
    """Sets of solutions with labels of their steps."""


class PrmOptions(ExampleOptions):
    """All options of ``rlhf prm`` but those of components."""

    output: str = Field("runs/prm", min_length=1, description="folder for all files of the run")
    data: PrmData = PrmData()


def _check(run: PrmOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    check(run, selections, labels, METRICS)


PRM = OptionTree(
    command="prm",
    purpose="Trains a process reward model on solutions whose steps have labels.",
    example="--optim NAME",
    model=PrmOptions,
    selectors=SELECTORS,
    check=_check,
    cautions=cautions_at(FULL_RATE),
    models=models,
    data=data,
)
