"""The commands that train on examples, each as its options and the modules that run it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_cli.training import TrainingCommand
from rlhf_config import OptionTree

from .imitation.distill_options import DISTILL
from .imitation.sft_options import SFT
from .options import POLICY, TRAINED_ROLES
from .preferences.dpo_options import DPO
from .reward_models.prm_options import PRM
from .reward_models.rm_options import RM

_HERE = "rlhf_plugin_supervised.training"


def _command(options: OptionTree[Any], room: str) -> TrainingCommand[Any]:
    return TrainingCommand(
        options=options,
        optimizers={TRAINED_ROLES.get(options.command, POLICY): "actor.optim"},
        defaults=Path(__file__).with_name(f"{options.command}.toml"),
        run=f"{_HERE}.{room}.{options.command}:run",
        describe=f"{_HERE}.describe:describe",
        rows=f"{_HERE}.loaders:check_rows",
    )


sft = _command(SFT, "imitation")
dpo = _command(DPO, "preferences")
rm = _command(RM, "reward_models")
prm = _command(PRM, "reward_models")
distill = _command(DISTILL, "imitation")

COMMANDS: Mapping[str, TrainingCommand[Any]] = {
    command.options.command: command for command in (sft, dpo, rm, prm, distill)
}
"""The commands by name."""
