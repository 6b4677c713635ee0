"""A micro-batch on the device: packed tokens, and which hidden state predicts which action."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from rlhf_core import PluginError
from rlhf_core.contracts import TrajectoryColumns
from rlhf_core.objective import ActionGrid, on_device

from ..packed.attention import Layout
from ..packed.packing import PackedLayout
from ..packed.shared_starts import Places, SharedLayout, places_of
from ..vision.pictures import PackedImages, PictureReader, kept_images, packed_images
from .prompt_sharing import is_worth_it, shared_starts


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """``N`` tokens of ``b`` sequences in one row, and their ``M`` action tokens.

    A prompt that neighboring sequences share may be in the row once.
    """

    input_ids: Int[Tensor, " N"]
    """(N,) tokens."""
    position_ids: Int[Tensor, "*planes N"]
    """(N,) position of each token in its own sequence; (3, N) where the model counts positions in images by time, row
    and column."""
    layout: Layout
    predictors: Int[Tensor, " M"]
    """(M,) index in the row of the token whose hidden state is read for each action: the token before it, which
    predicts the action; for a head that scores what was written, the action itself."""
    targets: Int[Tensor, " M"]
    """(M,) the actions."""
    grid: ActionGrid
    """Places of the M actions in a padded (b, A) array."""
    images: PackedImages | None = None
    """Images of the sequences; None: they have none."""


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
        share_prompts: pack a prompt that neighboring rows share once, if that saves enough tokens.
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
    )
    places = _places(part) if share_prompts else None
    if places is None:
        return packed
    shared = SharedLayout(whole, places, device)
    return replace(
        packed,
        input_ids=packed.input_ids[shared.kept],
        position_ids=packed.position_ids[..., shared.kept],
        images=None
        if packed.images is None
        else kept_images(packed.images, shared.kept, len(tokens)),
        layout=shared,
        predictors=shared.place[packed.predictors],
    )


class _Seen(NamedTuple):
    positions: Tensor
    images: PackedImages | None
    blocks: Tensor | None
    """See ``PackedLayout``; None: all tokens look back."""


def _seen(
    part: TrajectoryColumns, reader: PictureReader | None, device: torch.device
) -> _Seen | None:
    """Return positions and images of rows for a model that reads images."""
    if reader is None:
        if len(part.media):
            raise PluginError(
                f"{next(part.uids())}: the batch has images, and this model reads text alone; set --model.vision"
            )
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


def _places(part: TrajectoryColumns) -> Places | None:
    starts = shared_starts(part)
    return places_of(part.token_offsets, starts.tolist()) if is_worth_it(starts, part) else None
