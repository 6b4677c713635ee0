"""Rows of one pass, laid out for a rank group: every rank knows all tokens and computes one slice of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.objective import ActionGrid, ActionScores, on_device
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.ranks.images import PassImages
from rlhf_torch.ranks.own_rows import pack_pass
from rlhf_torch.ranks.passes import Rows, rows_or_stand_in
from rlhf_torch.rows.packed_rows import PackedRows

from .rank_group import RankGroup
from .sequence_attention import SlicedLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRows:
    """Rows of a pass with ``M`` actions. A rank computes the results of the actions whose predictor is in its slice.

    The *predictor* of an action is the token whose hidden state the head reads for it: the token before it, or, for a
    head that scores what was written, the action itself.
    """

    packed: PackedRows
    """Tokens, predictors and targets of this rank, with the grid of all M actions. A rank whose slice predicts no
    action gets the first action as a stand-in, because the head needs a gradient on every rank; its results are
    dropped."""
    first: int
    """Index among the M actions of this rank's first action."""
    counts: tuple[int, ...]
    """Number of actions of each rank of the rank group; they sum to M."""
    group: RankGroup
    """Rank group that computes the pass together."""

    def own(self, column: Tensor) -> Tensor:
        """Return the entries (m, ...) of a column (M, ...) that belong to this rank's m actions."""
        return column.narrow(0, self.first, self.packed.num_actions)

    def whole(self, own: Tensor) -> Tensor:
        """Return the results (M, ...) of all actions for those (m, ...) of this rank; a collective call.

        Only this rank's own results have a gradient.
        """
        return self.group.concatenated(own[: self.counts[self.group.rank]], self.counts)

    def whole_scores(self, own: ActionScores) -> ActionScores:
        """Return log-probs, entropies and top log-probs of all actions for those of this rank; a collective call."""
        others = None if own.others is None else self.whole(own.others)
        means = None if own.mean_logprobs is None else self.whole(own.mean_logprobs)
        return ActionScores(
            logprobs=self.whole(own.logprobs),
            entropies=self.whole(own.entropies),
            others=others,
            mean_logprobs=means,
        )


def lay_out(
    batch: TrajectoryColumns,
    rows: Rows,
    group: RankGroup,
    device: torch.device,
    *,
    share_prompts: bool = False,
    at_actions: bool = False,
    images: PassImages | None = None,
) -> GroupRows:
    """Return the rows of a pass over ``rows`` of the rank group's batch, or over a stand-in if ``rows`` is empty.

    Args:
        share_prompts: see ``pack_rows``; without effect in a rank group of several ranks.
        at_actions: read the hidden states at the actions, not before them.
        images: reads the images of the rows, in a rank group of one rank; None: the model reads text alone.
    """
    if group.size == 1:
        packed = pack_pass(
            batch,
            rows,
            device,
            share_prompts=share_prompts,
            at_actions=at_actions,
            images=images,
        )
        return GroupRows(packed=packed, first=0, counts=(packed.num_actions,), group=group)
    part = rows_or_stand_in(batch, rows)
    num_tokens = len(part.token_ids)
    width = -(-num_tokens // group.size)
    padding = (0, width * group.size - num_tokens)
    actions = np.flatnonzero(part.action_mask)
    # The rank whose slice has the token that is read for an action computes the action's result.
    read = actions if at_actions else actions - 1
    bounds = np.searchsorted(read, np.arange(group.size + 1) * width)
    begin, end = int(bounds[group.rank]), int(bounds[group.rank + 1])
    if begin == end:
        begin, end = 0, 1
        predictors = np.zeros(1, dtype=np.int64)
    else:
        predictors = read[begin:end] - group.rank * width
    layout = PackedLayout(torch.from_numpy(part.token_offsets), device)
    mine = slice(group.rank * width, (group.rank + 1) * width)
    tokens = np.pad(part.token_ids.astype(np.int64), padding)[mine]
    routes = part.tokens.read().routes
    acts = (part.num_actions > 0).repeat(part.num_tokens) * bool(len(rows))
    packed = PackedRows(
        input_ids=on_device(tokens, device),
        position_ids=torch.nn.functional.pad(layout.positions(), padding)[mine],
        layout=SlicedLayout(layout, num_tokens, group),
        predictors=on_device(predictors, device),
        targets=on_device(part.token_ids[actions[begin:end]].astype(np.int64), device),
        grid=ActionGrid.of(part.num_actions, device),
        counts=np.pad(acts.astype(np.float32), padding)[mine],
        routes=None
        if routes is None
        else np.pad(routes, (padding, (0, 0), (0, 0)), constant_values=-1)[mine],
    )
    counts = tuple(np.diff(bounds).tolist())
    return GroupRows(packed=packed, first=begin, counts=counts, group=group)
