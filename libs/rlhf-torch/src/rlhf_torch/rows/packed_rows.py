"""A micro-batch on the device: packed tokens, and which hidden state predicts which action."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import PluginError
from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.objective import ActionGrid, on_device

from ..packed.attention import Layout
from ..packed.branches import BranchLayout
from ..packed.packing import Blocks, PackedLayout
from ..packed.shared_starts import SharedLayout, places_of
from ..vision.pictures import PackedImages, PictureReader, kept_images, packed_images
from .prompt_sharing import branches_are_cheaper, is_worth_it, shared_starts


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """``N`` tokens of ``b`` sequences in one row, and their ``M`` action tokens.

    A beginning that sequences share may be in the row once. Then actions of several sequences may be one token, and the
    model's outputs are those of the ``U`` different ones; elsewhere U is M.
    """

    input_ids: Int[Tensor, " N"]
    """(N,) tokens."""
    position_ids: Int[Tensor, "*planes N"]
    """(N,) position of each token in its own sequence; (3, N) where the model counts positions in images by time, row
    and column."""
    layout: Layout
    predictors: Int[Tensor, " U"]
    """(U,) index in the row of the token whose hidden state is read for each action: the token before it, which
    predicts the action; for a head that scores what was written, the action itself."""
    targets: Int[Tensor, " U"]
    """(U,) the actions."""
    grid: ActionGrid
    """Places of the M actions in a padded (b, A) array."""
    images: PackedImages | None = None
    """Images of the sequences; None: they have none."""
    repeats: Int[Tensor, " M"] | None = None
    """(M,) index of each action among the U different ones; None: all differ."""
    counts: NDArray[np.float32] | None = None
    """(N,) number of sequences with an action that each token stands for; None: 1."""
    routes: NDArray[np.signedinteger] | None = None
    """(N, L, k) ``Trajectory.routes`` of the tokens, on the host; None: of no token."""

    @property
    def num_actions(self) -> int:
        """M, of all sequences."""
        return len(self.targets if self.repeats is None else self.repeats)

    def counts_on_device(self) -> Float[Tensor, " N"]:
        """Return ``counts`` on the device of the tokens."""
        if self.counts is None:
            return torch.ones(len(self.input_ids), device=self.input_ids.device)
        return on_device(self.counts, self.input_ids.device)

    def each(self, results: Tensor) -> Tensor:
        """Return the results (M, ...) of all actions for those (U, ...) of the different ones.

        The gradient of a result is the sum over the actions that have it.
        """
        return results if self.repeats is None else results[self.repeats]


def pack_rows(
    batch: TrajectoryColumns,
    rows: NDArray[np.int64],
    device: torch.device,
    *,
    share_prompts: bool = False,
    at_actions: bool = False,
    reader: PictureReader | None = None,
) -> PackedRows:
    """Return the given rows of a batch, packed on ``device``.

    Args:
        share_prompts: pack a beginning that rows of a group share once, if that saves enough tokens.
        at_actions: read the hidden states at the actions, not before them.
        reader: reads the images of the rows; None: the model reads text alone.

    Raises:
        PluginError: rows have images that nobody reads, or whose tokens are not those of the model's processor.
    """
    part = batch if len(rows) == len(batch) else batch.select(rows)
    seen = _seen(part, reader, device)
    blocks = None if seen is None else seen.blocks
    whole = PackedLayout(torch.from_numpy(part.token_offsets), device, blocks)
    tokens = on_device(part.token_ids.astype(np.int64), device)
    # The first token of a sequence is never an action, so "the token before" lies in the same sequence.
    actions = on_device(np.flatnonzero(part.action_mask), device)
    packed = PackedRows(
        input_ids=tokens,
        position_ids=whole.positions() if seen is None else on_device(seen.positions, device),
        layout=whole,
        predictors=actions if at_actions else actions - 1,
        targets=tokens[actions],
        grid=ActionGrid.of(part.num_actions, device),
        images=None if seen is None else seen.images,
        counts=counts_of(part),
        routes=part.tokens.read().routes,
    )
    return _shared(packed, part, whole) if share_prompts else packed


def counts_of(part: TrajectoryColumns) -> NDArray[np.float32] | None:
    """Return of each token of the rows (sum of T,) whether its row has an action; None: all of them do."""
    acts = part.num_actions > 0
    return None if acts.all() else acts.astype(np.float32).repeat(part.num_tokens)


def _shared(packed: PackedRows, part: TrajectoryColumns, whole: PackedLayout) -> PackedRows:
    """Return packed rows with each shared beginning once, if that saves enough tokens."""
    starts, device = shared_starts(part), whole.device
    place = places_of(part.token_offsets, starts.lengths.tolist(), starts.sources.tolist())
    if place is None or not is_worth_it(starts, part):
        return packed
    shared: SharedLayout | BranchLayout
    # Samples of a prompt keep the way by whole sequences, and with it their numbers to the bit.
    is_cheaper = not starts.is_star and branches_are_cheaper(part.num_tokens, starts.lengths)
    if device.type == "cpu" and whole.blocks is None and is_cheaper:
        shared = BranchLayout(whole, starts.lengths, place, device)
    else:
        shared = SharedLayout(whole, place, device)
    # Tokens of the row that are actions in some sequence, the first such sequence's, and each action among them.
    _, firsts, repeats = np.unique(
        place[np.flatnonzero(part.action_mask)], return_index=True, return_inverse=True
    )
    differ = len(firsts) == len(repeats)
    counts = np.bincount(place, packed.counts)  # (N,) each token of the row is one at least
    first = slice(None) if differ else on_device(firsts, device)
    return replace(
        packed,
        input_ids=packed.input_ids[shared.kept],
        position_ids=packed.position_ids[..., shared.kept],
        images=None
        if packed.images is None
        else kept_images(packed.images, shared.kept, len(packed.input_ids)),
        layout=shared,
        predictors=shared.place[packed.predictors[first]],
        targets=packed.targets[first],
        repeats=None if differ else on_device(repeats, device),
        counts=counts.astype(np.float32),
        routes=None if packed.routes is None else _of_first_known(packed.routes, place),
    )


def _of_first_known(
    routes: NDArray[np.signedinteger], place: NDArray[np.int64]
) -> NDArray[np.signedinteger]:
    """Return routes (N, L, k) of a row's tokens: each those of the first sequence's token there that has some.

    Args:
        routes: (sum of T, L, k) of the tokens of whole sequences. The last of a sequence has none, and may be followed
            by others in another sequence.
        place: (sum of T,) the token of the row that each of them is; each of the row's N is one at least.
    """
    unknown = (routes < 0).any(axis=(1, 2))
    order = np.argsort(unknown, kind="stable")  # those with routes first, in their order
    _, firsts = np.unique(place[order], return_index=True)
    return routes[order[firsts]]


class _Seen(NamedTuple):
    positions: Tensor
    images: PackedImages | None
    blocks: Blocks | None
    """See ``PackedLayout``; None: all tokens look back."""


def refuse_images(rows: TrajectoryColumns) -> None:
    """Refuse rows with images, for a model that reads text alone.

    Raises:
        PluginError: a row has an image.
    """
    if len(rows.media):
        raise PluginError(
            f"{next(rows.uids())}: the batch has images, and this model reads text alone; set --model.vision",
            code="model/reads-text-alone",
        )


def _seen(
    part: TrajectoryColumns, reader: PictureReader | None, device: torch.device
) -> _Seen | None:
    """Return positions and images of rows for a model that reads images."""
    if reader is None:
        refuse_images(part)
        return None
    firsts = part.token_offsets[:-1].tolist()
    rows = [
        (first, reader.row(part.tokens_of(row), part.media_of(row), str(uid)))
        for row, (first, uid) in enumerate(zip(firsts, part.uids(), strict=True))
    ]
    return _Seen(
        torch.cat([row.positions for _, row in rows], dim=-1),
        packed_images(rows, device),
        reader.blocks(rows, len(part.token_ids), device),
    )
