"""What is read off a role for packed rows: scores with a gradient, statistics and values."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rlhf_core import ConfigError, PluginError
from rlhf_core.contracts import RoleSpec, Statistic
from rlhf_core.objective import ActionScores

from ..heads.action_head import action_scores
from ..heads.statistics import action_statistics, top_tokens
from ..models.role_model import RoleModel
from ..rows.packed_rows import PackedRows


class RoleReader:
    """Reads a role at its temperature.

    Args:
        chunk: rows whose logits are in memory at once.
    """

    def __init__(self, role: RoleModel, spec: RoleSpec, chunk: int) -> None:
        self._role, self._spec, self._chunk = role, spec, chunk
        # Read now: a backend may leave parameters without a shape.
        self._vocab_size = role.lm.vocab_size

    def hidden(self, rows: PackedRows) -> Tensor:
        """(M, D) hidden states of the tokens before the actions."""
        hidden = self._role.lm.hidden(rows.input_ids, rows.position_ids, rows.layout)
        return hidden.index_select(0, rows.predictors)

    def action_scores(self, rows: PackedRows, others: Tensor | None = None) -> ActionScores:
        """Log-probs and entropies with gradients, and of ``others`` (M, K) the log-probs."""
        return action_scores(
            self._role.lm,
            self.hidden(rows),
            rows.targets,
            temperature=self._spec.temperature,
            chunk=self._chunk,
            others=others,
        )

    def values(self, rows: PackedRows) -> Tensor:
        """(M,) in float32, with a gradient.

        Raises:
            PluginError: the role is no critic.
        """
        if self._role.value_head is None:
            raise PluginError(f"the {self._spec.role} has no value head")
        return self._role.values(self.hidden(rows))

    def statistics(self, rows: PackedRows, names: Sequence[Statistic]) -> Tensor:
        """(M, len(names)), after the temperature."""
        return action_statistics(
            self._role.lm,
            self.hidden(rows),
            rows.targets,
            names,
            temperature=self._spec.temperature,
            chunk=self._chunk,
        )

    def top_tokens(self, rows: PackedRows, k: int) -> tuple[Tensor, Tensor]:
        """Ids and log-probs (M, k), highest first."""
        return top_tokens(
            self._role.lm,
            self.hidden(rows),
            k,
            temperature=self._spec.temperature,
            chunk=self._chunk,
        )

    def check_vocabulary(self, k: int) -> None:
        """Refuse to look for more tokens than there are.

        Raises:
            ConfigError: the vocabulary is smaller than k.
        """
        if k > self._vocab_size:
            raise ConfigError(
                f"the {self._spec.role} has {self._vocab_size} tokens; {k} of them were asked for"
            )
