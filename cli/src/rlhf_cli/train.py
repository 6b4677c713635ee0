"""The command ``rlhf train``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from rlhf_config import TRAIN
from rlhf_core.plugins import Plugins

from . import training

SUMMARY = "Train a model with reinforcement learning."
DEFAULTS = Path(__file__).with_name("defaults.toml")
COMMAND = training.TrainingCommand(
    options=TRAIN,
    defaults=DEFAULTS,
    run="rlhf_trainer.loop.run:run",
    describe="rlhf_trainer.loop.describe:describe",
    rows="rlhf_data.checked.lacking_prompts:check_run",
    optimizers={"policy": "actor.optim", "critic": "critic.optim"},
)


def command(plugins: Plugins) -> Callable[[typer.Context], None]:
    """Return the Typer command, bound to the loaded plugins."""

    def train(context: typer.Context) -> None:
        raise typer.Exit(execute(list(context.args), plugins))

    return train


def execute(words: Sequence[str], plugins: Plugins) -> int:
    """Run ``rlhf train WORDS`` and return the exit code; see ``training.execute``."""
    return training.execute(COMMAND, words, plugins)
