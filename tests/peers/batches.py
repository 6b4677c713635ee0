"""Random ragged inputs that two implementations are compared on."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from rlhf_core.contracts import RewardBatch

VOCABULARY = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B rows of up to A action tokens, float64; 0 at padding, because the peers multiply by the mask."""

    mask: Tensor
    """(B, A) bool; lengths differ, and the longest row has no padding."""
    group: Tensor
    """(B,) prompt of each row."""
    rewards: Tensor
    """(B,)"""
    other_rewards: Tensor
    """(B,) of a second reward function."""
    greedy_rewards: Tensor
    """(B,) equal within a group."""
    token_rewards: Tensor
    """(B, A) something at every token."""
    values: Tensor
    """(B, A) of the critic being trained; gradients flow to it."""
    old_values: Tensor
    returns: Tensor
    policy_logprobs: Tensor
    """(B, A) gradients flow to it."""
    old_logprobs: Tensor
    rollout_logprobs: Tensor
    """Exact in float32 too, because TRL makes such a tensor of it."""
    ref_logprobs: Tensor
    teacher_logprobs: Tensor
    advantages: Tensor
    """(B, A) different at each token."""
    row_advantages: Tensor
    """(B,) for losses that take one per sequence."""
    entropy: Tensor
    sum_pi_squared: Tensor
    logits: Tensor
    """(B, A, V) gradients flow to it."""
    teacher_logits: Tensor
    actions: Tensor
    """(B, A) int64."""

    @property
    def lengths(self) -> Tensor:
        return self.mask.sum(dim=1)

    @property
    def last(self) -> Tensor:
        """(B, A) True at each row's last token."""
        return torch.arange(self.mask.shape[1]) == self.lengths[:, None] - 1

    @property
    def outcome_rewards(self) -> Tensor:
        """(B, A) each row's reward on its last token."""
        return torch.where(self.last, self.rewards[:, None], 0.0)

    @property
    def broadcast_advantages(self) -> Tensor:
        """(B, A) ``row_advantages`` at every token."""
        return torch.where(self.mask, self.row_advantages[:, None], 0.0)

    @property
    def float_mask(self) -> Tensor:
        return self.mask.to(torch.float64)

    def reward_batch(self, kl_penalty: Tensor | None = None, **changes: object) -> RewardBatch:
        """What our estimators see, with one reward at each row's end."""
        rewards = self.outcome_rewards
        columns = {
            "token_rewards": rewards if kl_penalty is None else rewards + kl_penalty,
            "rewards": self.rewards,
            "action_mask": self.mask,
            "group": self.group,
            "episode": torch.arange(len(self.rewards)),
            "turn": torch.zeros_like(self.actions),
            "truncated": torch.zeros(len(self.rewards), dtype=torch.bool),
            "kl_penalty": kl_penalty,
            "values": self.values.detach(),
            "old_logprobs": self.old_logprobs,
            "sum_pi_squared": self.sum_pi_squared,
            "greedy_rewards": self.greedy_rewards,
            "rewards_by_name": {"first": self.rewards, "second": self.other_rewards},
            "reward_weights": {"first": 1.0, "second": 0.5},
        }
        return RewardBatch(**(columns | changes))


def ragged(
    seed: int,
    *,
    group_sizes: tuple[int, ...] = (2, 5, 3, 4),
    shuffle: bool = True,
    one_length: bool = False,
) -> Batch:
    """Return a random batch: groups of several sizes, lengths of 1 to 9, log-ratios that reach every clip."""
    draw = torch.Generator().manual_seed(seed)
    group = torch.repeat_interleave(torch.arange(len(group_sizes)), torch.tensor(group_sizes))
    if shuffle:
        group = group[torch.randperm(len(group), generator=draw)]
    num_rows, width = len(group), 9
    lengths = torch.randint(1, width + 1, (num_rows,), generator=draw)
    lengths[slice(None) if one_length else seed % num_rows] = width
    mask = torch.arange(width) < lengths[:, None]

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=draw, dtype=torch.float64)

    def column(scale: float = 1.0) -> Tensor:
        return torch.where(mask, normal(num_rows, width, scale=scale), 0.0)

    def logprobs(around: Tensor, scale: float) -> Tensor:
        return torch.where(mask, (around + column(scale)).clamp(max=-1e-3), 0.0)

    old = torch.where(mask, -0.05 - normal(num_rows, width).abs(), 0.0)
    values = column()
    probs = torch.where(mask, old.exp(), 0.0)
    return Batch(
        mask=mask,
        group=group,
        rewards=normal(num_rows),
        other_rewards=normal(num_rows),
        greedy_rewards=normal(len(group_sizes))[group],
        token_rewards=column(),
        values=values.requires_grad_(),
        old_values=torch.where(mask, values.detach() + column(0.4), 0.0),
        returns=column(),
        policy_logprobs=logprobs(old, 0.4).requires_grad_(),
        old_logprobs=old,
        rollout_logprobs=logprobs(old, 0.3).float().double(),
        ref_logprobs=logprobs(old, 0.5),
        teacher_logprobs=logprobs(old, 0.6),
        advantages=column(),
        row_advantages=normal(num_rows),
        entropy=column().abs(),
        # The rest of the probability on two other tokens: never less than the policy's own square.
        sum_pi_squared=torch.where(mask, probs.square() + (1 - probs).square() / 2, 0.0),
        logits=normal(num_rows, width, VOCABULARY, scale=2.0).requires_grad_(),
        teacher_logits=normal(num_rows, width, VOCABULARY, scale=2.0),
        actions=torch.randint(VOCABULARY, (num_rows, width), generator=draw),
    )


def equal_groups(seed: int, *, one_length: bool = False) -> Batch:
    """Return a batch of four prompts with three rows each, prompt after prompt, as OpenRLHF and TRL require."""
    return ragged(seed, group_sizes=(3, 3, 3, 3), shuffle=False, one_length=one_length)


def rows_of(batch: Batch, rows: slice) -> Batch:
    """Return some rows of a batch."""
    return Batch(**{field.name: getattr(batch, field.name)[rows] for field in fields(batch)})
