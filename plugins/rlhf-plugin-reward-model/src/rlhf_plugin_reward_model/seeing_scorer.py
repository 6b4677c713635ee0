"""An image-text model with a scalar head: its loading, and the scores of sequences with images.

The model is computed as a policy is that sees: packed rows, images of a row once, and the tokens of each image compared
with what the model's own processor gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from rlhf_core import ConfigError, DataError, PluginError, RewardError
from rlhf_core.media import MediaSpan, MediaStore
from rlhf_core.plugins import load
from rlhf_torch.adapters.folder import is_adapter
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.score_head import saved_head, zero_head
from rlhf_torch.packed.packing import PackedLayout
from rlhf_torch.vision.family import TorchVision, VisionFamily
from rlhf_torch.vision.pictures import PictureReader, SeenRow, packed_images

from .config import RewardModelConfig
from .loading import described, device_of, dtype_of, load_tokenizer
from .scoring import Scorer, TokenIds, last_token

NO_STORE = Path("no-images-yet")
"""Folder that is never read: each sample says where the images of its run are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTokens:
    """A sequence with all tokens of its images."""

    uid: str
    """Name of the sample, for messages."""
    token_ids: TokenIds
    spans: tuple[MediaSpan, ...]
    """Its images among the tokens."""
    folder: str | None
    """Folder of the store with the images; None: there are none."""


class SeeingScorer:
    """A loaded reward model that reads images. Only one thread may use it at a time.

    Args:
        vision: name of the component that reads images for it.

    Raises:
        ConfigError: the model cannot be loaded, reads no images, or has no head of one score.
    """

    def __init__(self, options: RewardModelConfig, vision: str) -> None:
        if is_adapter(options.path):
            raise ConfigError(
                f"reward model {options.path}: an adapter, and with vision = {vision} a whole model is read. Make one: "
                f"rlhf merge BASE {options.path} OUT, and give OUT.",
                code="reward-model/unusable",
            )
        self.family = _family(options, vision)
        lm = load_causal_lm(
            options.path,
            dtype=dtype_of(options),
            trust_remote_code=options.trust_remote_code,
            needs_head=False,
            reader=PictureReader(self.family, MediaStore(NO_STORE)),
        )
        self._lm = lm.to(device_of(options)).eval().requires_grad_(False)
        self._head = _head(options, lm.model).to(lm.device)
        self.tokenizer = load_tokenizer(options)
        loaded = described(options, lm.model, self.tokenizer, lm.model.config)
        self.end = loaded.end
        self._skipped = loaded.skipped_token
        self._scorer = Scorer(options, loaded)
        self._readers: dict[str | None, PictureReader] = {}

    def scores(self, samples: Sequence[SeenTokens]) -> list[float | RewardError]:
        """Return each sample's score; for one without a score, an error with the reason."""

        def forward(
            rows: Sequence[TokenIds], indices: Sequence[int]
        ) -> list[list[float] | RewardError]:
            return self._forward([samples[index] for index in indices])

        return self._scorer.scores_by([sample.token_ids for sample in samples], forward)

    def _forward(self, samples: Sequence[SeenTokens]) -> list[list[float] | RewardError]:
        """Return the score of each sample, of one pass."""
        results: list[list[float] | RewardError] = []
        rows: list[tuple[SeenTokens, SeenRow]] = []
        for sample in samples:
            seen = self._seen(sample)
            results.append([] if isinstance(seen, SeenRow) else seen)
            if isinstance(seen, SeenRow):
                rows.append((sample, seen))
        scores = iter(self._packed(rows) if rows else ())
        return [found if isinstance(found, RewardError) else [next(scores)] for found in results]

    def _seen(self, sample: SeenTokens) -> SeenRow | RewardError:
        """Return a sample's positions and pixels; an error where its tokens or images are not the model's."""
        try:
            return self._reader(sample.folder).row(sample.token_ids, sample.spans, sample.uid)
        except (PluginError, DataError) as error:
            return RewardError(
                f"{error} The reward model reads images at sizes of its own; with input = ids they have to be the "
                "policy's, with input = chat they need not",
                code="reward-model/other-tokens",
            )

    def _reader(self, folder: str | None) -> PictureReader:
        if folder not in self._readers:
            store = MediaStore(NO_STORE if folder is None else Path(folder))
            self._readers[folder] = PictureReader(self.family, store)
        return self._readers[folder]

    @torch.inference_mode()
    def _packed(self, rows: Sequence[tuple[SeenTokens, SeenRow]]) -> list[float]:
        """Return the scores of sequences that are computed as one packed row."""
        device = self._lm.device
        offsets = [0, *accumulate(len(sample.token_ids) for sample, _ in rows)]
        tokens = torch.tensor([token for sample, _ in rows for token in sample.token_ids])  # (N,)
        placed = [(first, seen) for first, (_, seen) in zip(offsets, rows, strict=False)]
        hidden = self._lm.hidden(
            tokens.to(device),
            torch.cat([seen.positions for _, seen in rows], dim=-1).to(device),
            PackedLayout(offsets, device, self._reader(None).blocks(placed, len(tokens), device)),
            packed_images(placed, device),
        )  # (N, D)
        last = [
            first + last_token(sample.token_ids, self._skipped)
            for first, (sample, _) in zip(offsets, rows, strict=False)
        ]
        # In float32, since scores may differ by less than 16-bit numbers can resolve.
        scores: list[float] = self._head(hidden[last].float())[:, 0].tolist()
        return scores


def _family(options: RewardModelConfig, vision: str) -> VisionFamily:
    """Return what the model needs to read images."""
    plugins = load(component=vision)
    registered = plugins.get("rlhf_vision_models", vision)
    component: TorchVision = registered.build(registered.validate({}))
    if not hasattr(component, "family"):
        raise ConfigError(
            f"vision = {vision}: it is not made for torch: it has no method family (rlhf_torch.vision.family)",
            code="plugin/no-torch-part",
        )
    try:
        return component.family(options.path, trust_remote_code=options.trust_remote_code)
    except ConfigError as error:
        raise ConfigError(
            f"reward model {options.path} with vision = {vision}: {error}",
            code="reward-model/unusable",
        ) from error


def _head(options: RewardModelConfig, model: PreTrainedModel) -> nn.Linear:
    """Return the head that is saved with the model, a linear map D -> 1 in float32."""
    weight = saved_head(options.path, model.config, options.head)
    width = int(model.config.get_text_config().hidden_size)
    if weight is None or weight.shape != (1, width):
        found = "it has none" if weight is None else f"it has the shape {tuple(weight.shape)}"
        raise ConfigError(
            f"reward model {options.path}: expected a head of one score (1, {width}) among its weights; {found}, so "
            "the score would be random. Give its name with head; rlhf rm --model.vision trains one",
            code="reward-model/no-head",
        )
    head = zero_head(width)
    head.load_state_dict({"weight": weight.float()})
    return head.requires_grad_(False)
