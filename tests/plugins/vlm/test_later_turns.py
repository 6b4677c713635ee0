"""Later turns of text go on from what a model that reads images has in its cache, beside prompts with images.

Families beyond the first ones have the marker ``matrix``.
"""

import asyncio

import numpy as np

from rlhf_core.contracts import GenerationRequest, SamplingParams, Uid
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_torch.models.vision_lm import VisionLM

PROMPT = tuple(40 + n % 7 for n in range(70))
OBSERVATION = (41, 42, 43)
PAGE, WAVE = 64, 8


def request(number: int, prompt, media=(), seeds=(1,)) -> GenerationRequest:
    sampling = SamplingParams(max_new_tokens=20)
    return GenerationRequest(
        uid=Uid(0, number), prompt_ids=prompt, seeds=seeds, sampling=sampling, media=media
    )


def with_images(batch) -> GenerationRequest:
    """The prompt of the batch's first sequence that begins with an image."""
    tokens = np.split(batch.token_ids, batch.token_offsets[1:-1])
    masks = np.split(batch.action_mask, batch.token_offsets[1:-1])
    for row, (own, mask) in enumerate(zip(tokens, masks, strict=True)):
        first = int(np.argmax(mask))
        spans = tuple(span for span in batch.media_of(row) if span.end <= first)
        if spans:
            return request(9, tuple(own[:first].tolist()), spans)
    raise AssertionError("no prompt has an image")


def test_a_later_turn_of_text_computes_what_is_new_beside_a_prompt_with_images(
    stage, backend, batch, family, monkeypatch
):
    sizes = []
    hidden = VisionLM.hidden

    def watched(self, ids, *others):
        sizes.append(len(ids))
        return hidden(self, ids, *others)

    monkeypatch.setattr(VisionLM, "hidden", watched)
    seen = with_images(batch)

    async def episode(share: bool):
        config = EmbeddedEngineConfig(slots=8, decode="resident", share_prefixes=share)
        engine = EmbeddedEngine(config)
        await engine.start(stage.engine_spec(), backend)
        (first,) = await engine.generate(request(0, PROMPT))
        (pictured,) = await engine.generate(seen)
        prompt = (*PROMPT, *first.token_ids.tolist(), *OBSERVATION)
        sizes.clear()
        later = await engine.generate(request(1, prompt, seeds=(1, 2)))
        size = sizes[0]
        beside = await asyncio.gather(
            engine.generate(request(2, (*prompt, 44))), engine.generate(seen)
        )
        carries = engine._batch._states is not None
        await engine.close()
        return [first, pictured, *later, *beside[0], *beside[1]], len(prompt), size, carries

    (own, length, size, carries), (expected, *_) = (
        asyncio.run(episode(share)) for share in (True, False)
    )

    # All but the turn's last token were read; of a model without states full pages are kept.
    read = length - len(OBSERVATION) - 1
    known = read if carries else read // PAGE * PAGE
    assert size == -(-(length - known) // WAVE) * WAVE
    for one, other in zip(own, expected, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
