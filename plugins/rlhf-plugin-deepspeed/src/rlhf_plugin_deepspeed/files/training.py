"""Files of a role's training state: parts of the ranks that share it, or at stage 0 the files of the torch backend."""

from __future__ import annotations

from pathlib import Path

from rlhf_torch.cut.part_files import load_parts, save_parts
from rlhf_torch.models.role_model import RoleModel
from rlhf_torch.ranks.ranks import Ranks
from rlhf_torch.training.state_files import load_state, save_state

from ..zero.replicated_training import ReplicatedTraining
from ..zero.zero_training import ZeroTraining


def save_training(
    folder: Path, training: ZeroTraining | ReplicatedTraining | None, role: RoleModel, ranks: Ranks
) -> None:
    """Write this rank's part of the training state; no collective call.

    At stage 0 the first rank writes the files of the torch backend. A role that is not trained writes nothing.

    Raises:
        CheckpointError: the optimizer keeps state that cannot be written or cut.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(training, ZeroTraining):
        save_parts(folder, training, ranks)
    elif isinstance(training, ReplicatedTraining) and ranks.is_first:
        save_state(folder, role, training.updater)


def load_training(
    folder: Path, training: ZeroTraining | ReplicatedTraining | None, role: RoleModel, ranks: Ranks
) -> None:
    """Restore the training state that ``save_training`` wrote; return once all ranks have.

    Raises:
        CheckpointError: a file is missing or damaged, belongs to another model or optimizer, or was written at stage 0
            and is read at stages 1 to 3, or the other way round.
    """
    if isinstance(training, ZeroTraining):
        load_parts(folder, training)
    elif isinstance(training, ReplicatedTraining):
        load_state(folder, role, training.updater)
    ranks.wait()
