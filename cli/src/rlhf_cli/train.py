"""The command ``rlhf train``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rlhf_config import TRAIN, Resolved
from rlhf_core.plugins import Plugins

from . import training

if TYPE_CHECKING:
    from rlhf_data.forms.opened_sets import OpenedSets

SUMMARY = "Train a model with reinforcement learning."
DEFAULTS = Path(__file__).with_name("defaults.toml")
COMMAND = training.TrainingCommand(
    options=TRAIN,
    defaults=DEFAULTS,
    run="rlhf_trainer.loop.run:run",
    describe="rlhf_trainer.loop.describe:describe",
    rows="rlhf_cli.train:check_files",
    optimizers={"policy": "actor.optim", "critic": "critic.optim"},
)


def check_files(resolved: Resolved, *, opened: OpenedSets | None = None) -> None:
    """Check the rows, and what a run asks its tokenizer before it loads a model. Nothing is downloaded for that.

    Raises:
        ConfigError: a model that reads the run's tokens has another tokenizer, or no row for some.
        DataError: no row has a column, or the chat template does not read a variable.
    """
    from rlhf_data.checked.lacking_prompts import check_run
    from rlhf_data.tokenizer import local_tokenizer

    check_run(resolved, opened=opened)
    run = resolved.run
    read = [one.options.tokenizer_of_ids() for one in resolved.selections["reward.use"]]
    others = {*(name for _, name in TRAIN.models(run)), *filter(None, read)} - {run.model.path}
    if not (others or run.data.chat_template_kwargs) or not all(map(os.path.isdir, others)):
        return  # A tokenizer takes seconds to read.
    if (tokenizer := local_tokenizer(run.model, run.data)) is not None:
        from rlhf_trainer.learning.demands import demands_of
        from rlhf_trainer.learning.roles import run_vocabulary

        run_vocabulary(resolved, demands_of(resolved), tokenizer)


def command(plugins: Plugins) -> Callable[[typer.Context], None]:
    """Return the Typer command, bound to the loaded plugins."""

    def train(context: typer.Context) -> None:
        raise typer.Exit(execute(list(context.args), plugins))

    return train


def execute(words: Sequence[str], plugins: Plugins) -> int:
    """Run ``rlhf train WORDS`` and return the exit code; see ``training.execute``."""
    return training.execute(COMMAND, words, plugins)
