"""The options of ``rlhf distill``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from rlhf_config import HubModel, Labels, NamedPaths, OptionTree, Selections
from rlhf_core import Config, ConfigError
from rlhf_core.plugins import Plugins

from ..options import SELECTORS, ExampleOptions, cautions_at, check, data, models
from .sft_options import METRICS as SFT_METRICS
from .sft_options import SftData, SftTraining

MODEL_TEMPLATE = "model"
"""Value of ``teacher.chat_template`` that stands for the template of the teacher's tokenizer."""
METRICS = (*SFT_METRICS, "teacher_nll")
FULL_RATE = 1e-6
"""The learning rate of ``distill.toml``, by which an adapter's is judged."""


class DistillTeacher(Config):
    path: HubModel | None = Field(
        None,
        min_length=1,
        description="model to learn from: a folder or hub name, or a PEFT folder, which names its base",
    )
    chat_template: str | None = Field(
        None,
        min_length=1,
        description="chat template by which the teacher reads conversations: a Jinja file, or 'model' for that of "
        "its own tokenizer; unset: it reads them as the student does",
    )
    system_prompt: str | None = Field(
        None,
        description="system message that the teacher reads instead of data.system_prompt; the student does not read "
        "it",
    )
    top_k: int = Field(
        64,
        ge=1,
        le=2**20,
        description="number of the teacher's most probable tokens at each position; all others together are one more "
        "outcome",
    )
    direction: Literal["forward", "reverse", "jsd"] = Field(
        "forward",
        description="forward: KL(teacher || student), which covers all that the teacher would say; reverse: "
        "KL(student || teacher), which avoids what it would not say; jsd: the mean of the KLs of both to their mixture",
    )
    share: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="share of the teacher in the mixture of jsd, which needs it; 0.5: the Jensen-Shannon divergence",
    )
    temperature: float = Field(
        1.0,
        gt=0.0,
        le=100.0,
        description="number that divides the logits of teacher and student; above 1 unlikely tokens count more, and "
        "the gradient is smaller by about its square",
    )
    nll_coef: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="factor of the negative log-likelihood of the given tokens, which is added to the loss; 0: not "
        "added",
    )

    @property
    def rendering_options(self) -> tuple[str, ...]:
        """Options by which the teacher reads the conversations otherwise than the student; empty: as the student."""
        given = {
            "teacher.chat_template": self.chat_template,
            "teacher.system_prompt": self.system_prompt,
        }
        return tuple(name for name, value in given.items() if value is not None)


class DistillOptions(ExampleOptions):
    """All options of ``rlhf distill`` but those of components."""

    output: str = Field("runs/distill", min_length=1, description="folder for all files of the run")
    data: SftData = SftData()
    train: SftTraining = SftTraining()
    teacher: DistillTeacher = DistillTeacher()


def _check(run: DistillOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    if run.teacher.path is None:
        raise ConfigError(
            "--teacher.path: expected a model to learn from; got none. Add it.",
            code="config/missing-option",
        )
    direction = run.teacher.direction
    if direction == "jsd" and run.teacher.share is None:
        raise ConfigError(
            f"{labels('teacher.direction')} jsd: expected the share of the mixture that is the teacher's; got none. "
            "Set --teacher.share 0.5, or another direction.",
            code="config/missing-option",
        )
    if direction != "jsd" and run.teacher.share is not None:
        raise ConfigError(
            f"{labels('teacher.share')} {run.teacher.share}: direction {direction} has no mixture. Set "
            "--teacher.direction jsd, or leave --teacher.share out.",
            code="config/no-effect",
        )
    _check_rendering(run, selections, labels)
    check(run, selections, labels, METRICS)


def _check_rendering(run: DistillOptions, selections: Selections, labels: Labels) -> None:
    """Refuse a rendering of the teacher's own that cannot be made."""
    if not (asked := run.teacher.rendering_options):
        return
    if selections["model.vision"]:
        raise ConfigError(
            f"{labels(asked[0])} with --model.vision: expected conversations without images, which have one rendering "
            "for both models. Leave one of them out.",
            code="config/rendering-of-images",
        )
    if run.data.text_key is not None:
        raise ConfigError(
            f"{labels(asked[0])} with --data.text_key: expected conversations, since plain text has no chat template. "
            "Leave one of them out.",
            code="config/rendering-of-plain-text",
        )
    file = run.teacher.chat_template
    if file not in (None, MODEL_TEMPLATE) and not Path(file).is_file():
        raise ConfigError(
            f"{labels('teacher.chat_template')} {file:.200}: expected a file with a Jinja template, or "
            f"{MODEL_TEMPLATE} for that of the teacher's tokenizer; there is no such file. Correct the path.",
            code="template/unreadable",
        )


def _models(run: DistillOptions) -> NamedPaths:
    yield from models(run)
    if run.teacher.path is not None:
        yield "teacher.path", run.teacher.path


DISTILL = OptionTree(
    command="distill",
    purpose="Teaches a model the distribution of a teacher on given conversations.",
    example="--optim NAME",
    model=DistillOptions,
    selectors=SELECTORS,
    check=_check,
    cautions=cautions_at(FULL_RATE),
    models=_models,
    adapters=frozenset({"teacher.path"}),
    data=data,
)
