"""vLLM and a torch trainer with one image-text model, in a process of its own: what it finds goes to standard output.

python seeing_program.py FAMILY FOLDER
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from tests.plugins.vlm.vlm_material import (
    OBJECTIVE,
    SGD,
    SIZES,
    VLM,
    Stage,
    in_tower,
    moved,
    turned,
)

from rlhf_core.contracts import (
    Completion,
    GenerationRequest,
    RoleSpec,
    SamplingParams,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
    VisionSpec,
)
from rlhf_core.media import Expanded
from rlhf_core.plugins import load
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_plugin_vllm.config import VllmEngineConfig
from rlhf_plugin_vllm.engine import VllmEngine
from rlhf_testing.tiny_vision import write_tiny_vision_model


class Source:
    """The trainer's weights without its module, as if it were in another process."""

    def __init__(self, backend: TorchBackend) -> None:
        self._backend = backend

    def module(self) -> None:
        return None

    def buckets(self) -> Iterator[dict[str, torch.Tensor]]:
        return self._backend.buckets()


def staged(family: str, folder: Path) -> Stage:
    path = write_tiny_vision_model(folder / family, family, initializer_range=0.1)
    media = folder / "media"
    spec = RoleSpec(
        role="policy",
        model_path=str(path),
        objective=OBJECTIVE,
        optimizer=SGD,
        max_grad_norm=None,
        vision=VisionSpec(component=VLM, media_folder=str(media)),
    )
    return Stage(path, media, load(), spec)


def largest(backend: TorchBackend, batch: TrajectoryColumns) -> float:
    """The largest difference of a log-prob between engine and trainer, in nats."""
    return float(np.abs(backend.logprobs(batch) - batch.rollout_logprobs).max())


def two_images(stage: Stage) -> Expanded:
    images = stage.images
    taken = [images.loader.take(turned(one, SIZES[one]), stage.media) for one in range(2)]
    marker = images.tokens.marker_id
    return images.expand([5, 9, marker, 12, 30, marker, 31], taken)


async def over_an_update(
    stage: Stage, engine: VllmEngine, backend: TorchBackend
) -> tuple[Expanded, Completion]:
    """An answer about images that new weights meet in the middle."""
    prompt = two_images(stage)
    request = GenerationRequest(
        uid=Uid(0, 0),
        prompt_ids=prompt.token_ids,
        media=prompt.spans,
        seeds=(3,),
        sampling=SamplingParams(max_new_tokens=300),
    )
    answer = asyncio.create_task(engine.generate(request))
    while not engine._llm.output_processor.has_unfinished_requests():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    await engine.pause()
    await engine.update_weights(2, Source(backend))
    await engine.resume()
    return prompt, (await answer)[0]


def as_batch(prompt: Expanded, answer: Completion) -> TrajectoryColumns:
    tokens = np.concatenate([prompt.token_ids, answer.token_ids]).astype(np.int32)
    start = len(prompt.token_ids)
    row = Trajectory(
        uid=Uid(0, 0),
        token_ids=tokens,
        action_mask=np.arange(len(tokens)) >= start,
        rollout_logprobs=answer.logprobs,
        weight_version=answer.weight_version,
        turns=(Turn(start=start, end=len(tokens), stop=answer.stop),),
        media=prompt.spans,
    )
    return TrajectoryColumns.from_trajectories([row])


def later_difference(
    backend: TorchBackend, prompt: Expanded, answer: Completion, version: int
) -> float:
    """How far the tokens of a version are from what its weights give the whole sequence, without any cache."""
    logprobs = backend.logprobs(as_batch(prompt, answer))
    own = answer.weight_version == version
    return float(np.abs(logprobs - answer.logprobs)[own].max())


async def main(family: str, folder: Path) -> dict[str, object]:
    stage = staged(family, folder)
    backend = stage.backend()
    engine = VllmEngine(VllmEngineConfig(bucket_mib=1, kv_cache_gib=0.25, threads=1))
    # Without an end the answer that new weights meet is long enough.
    await engine.start(replace(stage.engine_spec(), eos_token_ids=()), Source(backend))
    found: dict[str, object] = {}
    try:
        first = await stage.episodes(engine)
        found["first"] = largest(backend, first)
        found["images"] = first.num_media.tolist()
        never = set(backend._lm.reader.family.tokens.never_sampled)
        found["never"] = sorted(never & set(first.token_ids[first.action_mask].tolist()))
        found["same_digest"] = await engine.checksum() == backend.checksum()
        weights = moved(backend, first)
        found["tower_moved"] = max(
            float(part.abs().max()) for name, part in weights.items() if in_tower(name)
        )
        await engine.update_weights(1, Source(backend))
        found["same_digest_after"] = await engine.checksum() == backend.checksum()
        # The same images: features that the old weights gave would be found in vLLM's cache.
        second = await stage.episodes(engine)
        found["second"] = largest(backend, second)
        found["old_weights"] = largest(backend, first)
        moved(backend, second)
        prompt, answer = await over_an_update(stage, engine, backend)
        found["versions"] = np.unique(answer.weight_version).tolist()
        found["later"] = later_difference(backend, prompt, answer, 2)
    finally:
        await engine.close()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("FOUND " + json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
