"""A kind of training that is not the core's: its objective names what builds it."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from rlhf_core.contracts.backend import Objective, RoleSpec
from rlhf_core.errors import PluginError
from rlhf_core.objective import ActionScores, BuiltActionObjective, build_objective, rows_per_unit
from rlhf_core.plugins import empty
from rlhf_testing.errors import has_code


@dataclass(frozen=True, slots=True, kw_only=True)
class TripleObjective(Objective):
    """Raise the log-probs of three answers that belong together."""

    builder: ClassVar[str] = f"{__name__}:build_triple"

    strength: float = 1.0

    def rows_per_unit(self, plugins):
        return 3


def build_triple(objective, plugins):
    def loss(scores, columns, plan):
        return -objective.strength * scores.logprobs.sum(), {}

    return BuiltActionObjective(loss, objective.rows_per_unit(plugins))


class Unbuilt(Objective):
    builder = "rlhf_core.objective.built:missing"


def test_an_objective_of_others_is_built_by_its_own_builder():
    spec = RoleSpec(role="policy", model_path="m", objective=TripleObjective(strength=2.0))
    built = build_objective(spec.objective, empty())

    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    scores = ActionScores(logprobs=logprobs, entropies=torch.zeros(2))

    loss, _ = built.loss(scores, None, None)
    loss.backward()

    assert loss.item() == 6.0
    assert logprobs.grad.tolist() == [-2.0, -2.0]
    assert built.rows_per_unit == rows_per_unit(spec.objective, empty()) == 3


@pytest.mark.parametrize("objective", [Objective(), Unbuilt()])
def test_one_without_a_builder_is_refused(objective):
    with pytest.raises(PluginError, check=has_code("plugin/no-builder")):
        build_objective(objective, empty())
