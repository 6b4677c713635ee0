"""The image-text model that trainer and engine share: hidden states of packed tokens, some of which are images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..packed.attention import Layout
from ..vision.family import Features, Picture
from ..vision.pictures import PackedImages, PictureReader
from .modeling import CausalLM


class VisionLM(CausalLM):
    """A ``CausalLM`` whose rows may hold images.

    Tokens that stand for images have probability 0, for the sampler and for the trainer alike.

    Args:
        reader: reads the run's images for this model.
    """

    def __init__(
        self, model: PreTrainedModel, compute_dtype: torch.dtype, reader: PictureReader
    ) -> None:
        super().__init__(model, compute_dtype)
        self.reader = reader
        self.reads_at_once = False
        """Compute all pictures of a row in one call on a CPU too, as a trainer does whose ranks call together."""
        self.always_sees = False
        """Read an image that no token takes features from in a trained row without images: where the text model is not
        trained, nothing else would carry a gradient."""
        self.never_sample(reader.family.tokens.never_sampled)

    def hidden(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        layout: Layout,
        images: PackedImages | None = None,
    ) -> Tensor:
        """Return the last hidden states (N, D) of one packed row.

        Args:
            input_ids: (N,)
            position_ids: (N,), or (3, N) as the family counts positions.
            images: images of the row; None: it has none.
        """
        family, model = self.reader.family, self.model
        self.begin(layout)
        with self.autocast(), self.ropes.of(layout), self.noise.of(layout):
            embed = getattr(family, "token_embeddings", None)
            read = getattr(family, "token_inputs", None)
            table = model.get_input_embeddings()
            embeddings = table(input_ids) if embed is None else embed(model, input_ids)  # (N, D)
            more = {} if read is None else read(model, input_ids)
            if images is None and self.always_sees and torch.is_grad_enabled():
                images = self.reader.stand_in(input_ids.device)
            if images is not None:
                features = self.features(images.pictures)
                placed = [part.index_select(0, images.sources) for part in _parts(features)]
                own = Features(placed[0].to(embeddings.dtype), tuple(placed[1:]))
                embeddings = embeddings.index_copy(0, images.places, own.embeddings)
                more |= family.layer_inputs(own, images.places, len(input_ids))
            planes = position_ids if position_ids.dim() == 2 else position_ids[None]
            output = family.text_model(model)(
                inputs_embeds=embeddings[None],
                position_ids=planes[:, None] if len(planes) > 1 else planes,
                use_cache=False,
                layout=layout,
                **more,
            )
        hidden: Tensor = output.last_hidden_state.squeeze(0)
        return hidden

    def features(self, pictures: Sequence[Picture]) -> Features:
        """Return the features of pictures, one picture's after the other's.

        On a CPU each picture is computed alone, so that its bits do not depend on the others; not if ``reads_at_once``.
        """
        family = self.reader.family
        if self.reads_at_once or self.device.type != "cpu":
            return family.features(self.model, pictures)
        alone = [_parts(family.features(self.model, [picture])) for picture in pictures]
        first, *rest = (torch.cat(part) for part in zip(*alone, strict=True))
        return Features(first, tuple(rest))

    def use_attention(self, name: str) -> None:
        """Have the text model compute attention by another function; that of the part that reads pixels stays."""
        self.model.set_attn_implementation({"text_config": name})


def _parts(features: Features) -> tuple[Tensor, ...]:
    return (features.embeddings, *features.layers)
