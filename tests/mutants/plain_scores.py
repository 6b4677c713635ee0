"""The steps of a reward model and of a process reward model, by a plain Transformers model: a check beyond the kit.

A training backend need not train reward models, so the kit does not ask for it.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from rlhf_core.batch.task import Uid
from rlhf_core.contracts import (
    MARGIN,
    Normalizers,
    RankingObjective,
    RoleSpec,
    StepLabelObjective,
    StepPlan,
    TrainBatch,
    TrajectoryColumns,
)
from rlhf_testing.conformance import Check, Subject
from rlhf_testing.conformance.columns import trajectory
from rlhf_testing.conformance.tiny_policy import (
    LEARNING_RATE,
    SGD,
    plain_plugins,
    tiny_model,
)

MARGINS = (0.25, 0.25, 0.5, 0.5)
LENGTHS = (3, 5, 4, 2)


def rows_of_pairs() -> TrajectoryColumns:
    """Two pairs of answers of different lengths, with margins."""
    rows = []
    for row, length in enumerate(LENGTHS):
        made = trajectory(Uid(0, row // 2, row % 2), (length,), reward=float(row % 2 == 0))
        object.__setattr__(made, "rewards", {MARGIN: MARGINS[row]})
        rows.append(made)
    return TrajectoryColumns.from_trajectories(rows)


def plain_scores(folder: Path, rows: TrajectoryColumns) -> tuple[list[Tensor], Any]:
    """Scores at the actions of each row by the exported model, one row at a time, and that model."""
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    scores = []
    for row in range(len(rows)):
        span = slice(rows.token_offsets[row], rows.token_offsets[row + 1])
        tokens = torch.from_numpy(rows.tokens_of(row).astype(np.int64))
        hidden = model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state[0]
        actions = torch.from_numpy(np.flatnonzero(rows.action_mask[span]))
        scores.append(hidden[actions] @ model.score.weight[0])
    return scores, model


def check_written_out_scores(subject: Subject) -> None:
    """An update of a reward model is that of a plain Transformers model, for pairs and for labeled steps."""
    rows = rows_of_pairs()
    num = int(rows.num_actions.sum())
    labels = (np.arange(num) % 3 == 0).astype(np.float32)
    plan = StepPlan(normalizers=Normalizers(num_actions=num, num_sequences=4, max_actions=9))
    for objective in (RankingObjective(), StepLabelObjective()):
        with tiny_model() as folder, tempfile.TemporaryDirectory() as exported:
            spec = RoleSpec(
                role="reward_model",
                model_path=str(folder),
                head="score",
                objective=objective,
                optimizer=SGD,
                max_grad_norm=None,
            )
            backend = subject.make()
            backend.setup(spec, plain_plugins())
            backend.export(Path(exported) / "before")
            backend.train_step(TrainBatch(trajectories=rows, columns={"labels": labels}), plan)
            backend.export(Path(exported) / "after")
            found = plain_scores(Path(exported) / "after", rows)[1]
            scores, model = plain_scores(Path(exported) / "before", rows)
            if isinstance(objective, RankingObjective):
                chosen, rejected = (torch.stack([s[-1] for s in scores[k::2]]) for k in (0, 1))
                loss = -logsigmoid(chosen - rejected - torch.tensor(MARGINS[::2])).mean()
            else:
                loss = binary_cross_entropy_with_logits(torch.cat(scores), torch.from_numpy(labels))
            _compare(found, model, loss)


def _compare(found: Any, model: Any, loss: Tensor) -> None:
    """Compare the weights after an update with those after a step of plain gradient descent."""
    expected = copy.deepcopy(model)
    loss.backward()
    plain, after = dict(model.named_parameters()), dict(found.named_parameters())
    for name, weight in expected.named_parameters():
        gradient = plain[name].grad
        right = weight if gradient is None else weight - LEARNING_RATE * gradient
        difference = float((after[name] - right).abs().max().detach())
        assert difference < 1e-5, f"{name} is {difference:.2g} away from the plain model's"


CHECK = Check(check_written_out_scores)
