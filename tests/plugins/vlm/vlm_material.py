"""A tiny image-text model as trainer and engine, episodes with images, and Transformers' own forward pass beside it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.images import noisy

from rlhf_core.contracts import (
    Action,
    ComponentRef,
    EngineSpec,
    Generator,
    Observation,
    PolicyObjective,
    RoleSpec,
    RolloutContext,
    SamplingParams,
    StepPlan,
    StepResult,
    Task,
    TrainBatch,
    TrajectoryColumns,
    Uid,
    VisionSpec,
)
from rlhf_core.contracts.backend import Normalizers
from rlhf_core.media import ImageReader, MediaLoader, MediaOptions, MediaStore, decode
from rlhf_core.plugins import Plugins
from rlhf_core.rng import seed_of
from rlhf_data.chat.renderer import TokenizerRenderer
from rlhf_data.tokenizer import load_tokenizer
from rlhf_plugin_agents.config import MultiTurnConfig
from rlhf_plugin_agents.multi_turn import MultiTurn
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_plugin_vlm.config import VlmConfig
from rlhf_plugin_vlm.families.loading import ONE_SIZE, OWN_SIZES
from rlhf_plugin_vlm.model import ImageTextModel
from rlhf_testing.tiny_vision import MERGE, MORE_VISION_FAMILIES, VISION_FAMILIES
from rlhf_testing.tiny_vision_families import PIXTRAL_PATCH
from rlhf_torch.vision.family import VisionFamily

VLM = ComponentRef(kind="rlhf_vision_models", name="vlm:vlm")
LORA = ComponentRef(kind="rlhf_model_adapters", name="lora:lora", options={"rank": 4})
OBJECTIVE = PolicyObjective(
    loss=ComponentRef(kind="rlhf_policy_losses", name="algorithms:ppo"), aggregation="token-mean"
)
NEEDS_TIMM = pytest.mark.skipif(
    find_spec("timm") is None, reason="the visual encoder of Gemma 3n is a model of timm"
)


def families(names: Iterable[str], *marks: pytest.MarkDecorator) -> list[object]:
    """Parameters of a test for families, which is left out where what a family needs is not installed."""
    return [
        pytest.param(name, marks=[*marks, NEEDS_TIMM] if name == "gemma3n" else marks)
        for name in names
    ]


ALIKE = ("qwen2_5_vl", "internvl")
"""Families beside a near one that stays: Qwen2.5-VL has positions of three axes as Qwen3-VL has, and InternVL features
in the places of tokens as LLaVA has. Recurrent layers (Qwen3.5) and tokens that see each other (Gemma 3) stay too."""
IN_MATRIX = (*ALIKE, *MORE_VISION_FAMILIES)
EVERY_FAMILY = [
    *(family for family in VISION_FAMILIES if family not in ALIKE),
    *families(IN_MATRIX, pytest.mark.matrix),
]
SIZED = {
    **dict.fromkeys(("llava", "gemma3", "gemma3n"), ONE_SIZE),
    **dict.fromkeys(
        ("idefics3", "smolvlm", "mistral3", "llava_next", "llava_onevision", "gemma4"), OWN_SIZES
    ),
}
"""Families whose sizes of images no option changes, and the reason."""
TOLD: dict[str, dict[str, object]] = {"llava_onevision": {"tiled": True}}
"""Options without which a family reads one image in a sequence; those of the tests."""
SGD = ComponentRef(kind="rlhf_optimizers", name="algorithms:sgd", options={"lr": 1.0})
SIZES = ((24, 16), (16, 40), (8, 8), (40, 24), (13, 29))
"""Widths and heights, in pixels; 8 by 8 are one token."""


def turned(number: int, size: tuple[int, int]):
    """An image whose pixels depend on a number."""
    return (
        noisy(*size).rotate(90 * (number % 4)).resize(size).point(lambda v: (v + 37 * number) % 256)
    )


def told(model_path: Path) -> dict[str, object]:
    """Options without which a model reads one image in a sequence."""
    return TOLD.get(json.loads((model_path / "config.json").read_text())["model_type"], {})


def policy_spec(model_path: Path, media: Path) -> RoleSpec:
    """A policy that sees."""
    return RoleSpec(
        role="policy",
        model_path=str(model_path),
        objective=OBJECTIVE,
        optimizer=SGD,
        max_grad_norm=None,
        vision=VisionSpec(
            component=replace(VLM, options=told(model_path)), media_folder=str(media)
        ),
    )


@dataclass
class Pictures:
    """Shows images at its reset and in its answers, by the seed of its task."""

    turns: int = 3
    task: Task | None = None
    played: int = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task = task
        return Observation(messages=tuple(self._message("first", task.uid.prompt % 3)))

    async def step(self, action: Action) -> StepResult:
        self.played += 1
        number = (2 * self.task.uid.prompt + self.played) % 3
        return StepResult(
            observation=Observation(messages=tuple(self._message("next", number))),
            reward=float(self.played),
            done=self.played == self.turns,
        )

    async def close(self) -> None: ...

    def _message(self, words: str, count: int) -> list[dict]:
        start = 7 * self.task.uid.prompt + 3 * self.played
        images = [
            {"type": "image", "image": turned(start + one, SIZES[(start + one) % len(SIZES)])}
            for one in range(count)
        ]
        texts = [{"type": "text", "text": f"{words} {self.played}"}]
        parts = [*images[:1], *texts, *images[1:]]
        return [{"role": "user", "content": parts}]


@dataclass
class Stage:
    """A model, the store of its images, and what was built of both."""

    path: Path
    media: Path
    plugins: Plugins
    spec: RoleSpec
    built: list[TorchBackend] = field(default_factory=list)

    def backend(self, config: TorchBackendConfig | None = None, **changes) -> TorchBackend:
        backend = TorchBackend(config or TorchBackendConfig(device="cpu"))
        backend.setup(replace(self.spec, **changes), self.plugins)
        self.built.append(backend)
        return backend

    @property
    def vision(self) -> ImageTextModel:
        return ImageTextModel(VlmConfig(**self.spec.vision.component.options))

    @cached_property
    def family(self) -> VisionFamily:
        return self.vision.family(str(self.path), trust_remote_code=False)

    @cached_property
    def images(self) -> ImageReader:
        return ImageReader(MediaLoader(MediaOptions(folder=str(self.media))), self.family.tokens)

    @cached_property
    def renderer(self) -> TokenizerRenderer:
        tokenizer = load_tokenizer(str(self.path))
        return TokenizerRenderer(tokenizer, writing=self.family.tokens.writing)

    def play(
        self,
        backend: TorchBackend,
        *,
        prompts: int = 4,
        samples: int = 2,
        max_length: int = 400,
        environment: Callable[[], object] = Pictures,
        config: MultiTurnConfig | None = None,
        **options,
    ) -> TrajectoryColumns:
        """Play episodes of several turns with the embedded engine, on the backend's own weights."""

        async def playing() -> TrajectoryColumns:
            engine = EmbeddedEngine(EmbeddedEngineConfig(slots=8, **options))
            await engine.start(self.engine_spec(max_length), backend)
            played = await self.episodes(
                engine,
                prompts=prompts,
                samples=samples,
                max_length=max_length,
                environment=environment,
                config=config,
            )
            await engine.close()
            return played

        return asyncio.run(playing())

    def engine_spec(self, max_length: int = 400) -> EngineSpec:
        return EngineSpec(
            model_path=str(self.path),
            dtype="float32",
            max_length=max_length,
            max_concurrency=8,
            eos_token_ids=(load_tokenizer(str(self.path)).eos_token_id,),
            vision=self.spec.vision,
            returns_routes=self.spec.replays_routes,
        )

    async def episodes(
        self,
        engine: Generator,
        *,
        prompts: int = 4,
        samples: int = 2,
        max_length: int = 400,
        environment: Callable[[], object] = Pictures,
        config: MultiTurnConfig | None = None,
    ) -> TrajectoryColumns:
        """Play episodes of several turns with an engine that has started."""
        executor = MultiTurn(config or MultiTurnConfig())

        def context(prompt: int) -> RolloutContext:
            return RolloutContext(
                engine=engine,
                renderer=self.renderer,
                sampling=SamplingParams(max_new_tokens=6),
                max_length=max_length,
                seed=lambda sample, turn: seed_of(1, f"{prompt}/{sample}/{turn}"),
                environment=lambda task: environment(),
                images=self.images,
            )

        groups = await asyncio.gather(
            *(
                executor.run(Task(uid=Uid(0, prompt)), range(samples), context(prompt))
                for prompt in range(prompts)
            )
        )
        return TrajectoryColumns.from_trajectories([row for rows in groups for row in rows])

    def own_logprobs(self, batch: TrajectoryColumns, path: Path | None = None) -> np.ndarray:
        """Log-probs of actions by ``AutoModelForImageTextToText``, each sequence alone and unpacked; tokens that stand
        for images have no probability."""
        from transformers import AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_pretrained(path or self.path).eval()
        return np.concatenate([own_row(self, model, batch, row) for row in range(len(batch))])

    def own_distributions(self, batch: TrajectoryColumns) -> list[torch.Tensor]:
        """Log-probs (A, V) at the actions of each sequence, as ``own_logprobs``."""
        from transformers import AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_pretrained(self.path).eval()
        return [own_distribution(self, model, batch, row) for row in range(len(batch))]

    def own_hidden(self, batch: TrajectoryColumns, path: Path) -> list[torch.Tensor]:
        """Last hidden states (T, D) of each sequence by Transformers' model below the output head."""
        from transformers import AutoModelForImageTextToText

        model = AutoModelForImageTextToText.from_pretrained(path).eval().base_model
        return [_hidden(self, model, batch, row) for row in range(len(batch))]


def _hidden(stage: Stage, model, batch: TrajectoryColumns, row: int) -> torch.Tensor:
    with torch.no_grad():
        return model(**own_inputs(stage, batch, row)).last_hidden_state[0]


def own_row(stage: Stage, model, batch: TrajectoryColumns, row: int) -> np.ndarray:
    """Log-probs of a row's actions by a model of Transformers."""
    actions = torch.from_numpy(batch.actions_of(row).astype(np.int64))
    return own_distribution(stage, model, batch, row).gather(1, actions[:, None])[:, 0].numpy()


def own_distribution(
    stage: Stage, model, batch: TrajectoryColumns, row: int, *, learns: bool = False
) -> torch.Tensor:
    """Log-probs (A, V) at a row's actions by a model of Transformers; ``learns``: with gradients."""
    with torch.set_grad_enabled(learns):
        logits = model(**own_inputs(stage, batch, row)).logits[0].float()
    never = torch.tensor(stage.family.tokens.never_sampled)
    logits = logits.index_fill(1, never, -torch.inf)
    columns = batch.tokens.read()
    mask = columns.action_mask[columns.token_offsets[row] : columns.token_offsets[row + 1]]
    return logits.log_softmax(-1)[np.flatnonzero(mask) - 1]


def own_inputs(stage: Stage, batch: TrajectoryColumns, row: int) -> dict[str, torch.Tensor]:
    """A row as models of Transformers take it, with pixels by their own processor."""
    family = stage.family
    tokens = torch.from_numpy(batch.tokens_of(row).astype(np.int64))[None]
    # By the model's own config, so that a family that looks the wrong way is found out.
    is_gemma = json.loads((stage.path / "config.json").read_text())["model_type"] == "gemma3"
    kinds = "token_type_ids" if is_gemma else "mm_token_type_ids"
    inputs = {"input_ids": tokens, kinds: (tokens == family.feature_id).int()}
    store = MediaStore(stage.media)
    pictures = [decode(store.read(span.image)) for span in batch.media_of(row)]
    if pictures:
        made = own_pixels(stage, pictures)
        # Models read neither, which say how an image was cut: Gemma 3's crops and InternVL's tiles.
        aside = {"num_crops", "num_patches", "num_soft_tokens_per_image"}
        inputs |= {name: made[name] for name in made.keys() - aside}
    return inputs


def own_pixels(stage: Stage, pictures: list) -> dict[str, torch.Tensor]:
    """Outputs of the model's own processor of images for all of a row."""
    processor = own_processor(stage)
    if stage.spec.vision.component.options.get("tiled", True):
        return dict(processor(images=pictures, return_tensors="pt"))
    # LLaVA-OneVision sees images without tiles where there are several: one more stands beside them, and is left out.
    made = processor(images=[[*pictures, pictures[0]]], return_tensors="pt")
    return {**made, **{name: made[name][:-1] for name in ("pixel_values", "image_sizes")}}


def own_processor(stage: Stage):
    from transformers import AutoImageProcessor

    processor = AutoImageProcessor.from_pretrained(stage.path, backend="pil")
    if hasattr(processor, "crop_to_patches"):
        processor.crop_to_patches = True  # as InternVL's processor of images and texts sets it
    if hasattr(processor, "patch_size") and not hasattr(processor, "merge_size"):
        processor.patch_size = PIXTRAL_PATCH * MERGE  # as Pixtral's sets it
    return processor


def in_tower(name: str) -> bool:
    """Whether a weight is of the part that reads pixels."""
    return any(part in name for part in (".visual.", ".vision_tower.", ".vision_model."))


def train_batch(batch: TrajectoryColumns) -> TrainBatch:
    """Advantages that differ from token to token."""
    size = int(batch.num_actions.sum())
    advantages = np.random.default_rng(0).normal(size=size).astype(np.float32)
    return TrainBatch(trajectories=batch, columns={"advantages": advantages})


def plan_for(batch: TrajectoryColumns) -> StepPlan:
    totals = Normalizers(
        num_actions=int(batch.num_actions.sum()), num_sequences=len(batch), max_actions=20
    )
    return StepPlan(normalizers=totals, on_policy=True)


def moved(backend: TorchBackend, batch: TrajectoryColumns) -> dict[str, torch.Tensor]:
    """Do one update of SGD with learning rate 1, and return by how much each weight moved: its gradient."""
    weights = dict(backend._model.named_weights())
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    backend.train_step(train_batch(batch), plan_for(batch))
    return {name: before[name] - weight.detach() for name, weight in weights.items()}
