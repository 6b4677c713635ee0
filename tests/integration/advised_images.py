"""Tiny models that read images, and images that a model, an engine or an audit cannot take."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tests.core.sample_plugin import component
from tests.images import noisy
from tests.plugins.vlm.vlm_material import Stage, policy_spec

from rlhf_config import Layer, resolve_options
from rlhf_core.component import ComponentRef, Registered
from rlhf_core.contracts import (
    GenerationRequest,
    PartsTraining,
    RankingObjective,
    SamplingParams,
    Uid,
    VisionSpec,
)
from rlhf_core.plugins import load
from rlhf_plugin_inference.chat.options import CHAT
from rlhf_plugin_inference.serving.sight import open_sight
from rlhf_plugin_lab.audit.loading import load as load_audited
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.vision.parts import train_parts
from rlhf_torch.vision.pictures import open_reader

from .advised_case import Advised
from .advised_commands import command

VLM = ComponentRef(kind="rlhf_vision_models", name="vlm:vlm")
PARTS = PartsTraining


def stage(family="qwen3_vl"):
    """Write a model that sees, and return what builds roles and engines of it."""
    path = write_tiny_vision_model(Path("seeing"), family, initializer_range=0.1)
    media = Path("media").resolve()
    return Stage(path, media, load(), policy_spec(path, media))


def role(vision, adapter=None, family="qwen3_vl", **changes):
    """Build a role of a model that sees; without ``vision`` its text alone would be read."""
    made = stage(family)
    ref = None
    if adapter is not None:
        options = {"rank": 4}
        ref = ComponentRef(kind="rlhf_model_adapters", name=f"lora:{adapter}", options=options)
    made.backend(vision=made.spec.vision if vision else None, adapter=ref, **changes).close()


def plain(family):
    """Load a folder as a model that reads text alone."""
    write_tiny_vision_model(Path("seeing"), family)
    load_causal_lm("seeing", dtype="float32")


def batch_with_images(vision):
    """Compute log-probs of episodes with images."""
    made = stage()
    seeing = made.backend()
    batch = made.play(seeing, prompts=1, samples=1)
    text = {} if vision else {"model_path": str(write_tiny_model(Path("text"))), "vision": None}
    backend = made.backend(**text)
    backend.logprobs(batch)
    for each in (seeing, backend):
        each.close()


async def request_with_images(vision):
    """Ask an engine about an image."""
    made = stage()
    backend = made.backend(
        **({} if vision else {"vision": None, "model_path": str(write_tiny_model(Path("text")))})
    )
    image = made.images.loader.take(noisy(24, 16), Path())
    tokens = made.family.tokens
    read = made.images.expand((5, tokens.marker_id, 6), (image,))
    engine = EmbeddedEngine(EmbeddedEngineConfig())
    spec = made.engine_spec(64)
    if not vision:
        spec = replace(spec, vision=None, model_path="text", eos_token_ids=(2,))
    await engine.start(spec, backend)
    try:
        await engine.generate(
            GenerationRequest(
                uid=Uid(0, 0),
                prompt_ids=tuple(read.token_ids) if vision else (5, 6, 7),
                media=read.spans,
                seeds=(1,),
                sampling=SamplingParams(max_new_tokens=2),
            )
        )
    finally:
        await engine.close()
        backend.close()


def parts(has_projector, family="qwen3_vl", trains=True, **wanted):
    """Choose the parts of a model that are trained."""
    made = stage(family)
    model = load_causal_lm(
        str(made.path),
        dtype="float32",
        reader=open_reader(made.spec.vision, str(made.path), load(), trust_remote_code=False),
    ).model
    seen = made.family
    if not has_projector:
        seen = SimpleNamespace(tower=seen.tower)
    if not trains:  # an adapter that leaves the visual encoder out
        seen.tower(model).requires_grad_(False)
    train_parts("policy", model, seen, PARTS(**wanted))


def reader_of(name):
    plugins = load()
    blind = component("blind", factory=lambda config: object())
    plugins.registries["rlhf_vision_models"].add(Registered(blind, "sample"))
    path = write_tiny_vision_model(Path("seeing"))
    chosen = ComponentRef(kind="rlhf_vision_models", name=name)
    open_reader(
        VisionSpec(component=chosen, media_folder="media"),
        str(path),
        plugins,
        trust_remote_code=False,
    )


def sized(limits):
    """Take the tokens of an image of which a family chooses the size."""
    made = stage("llava")
    image = made.images.loader.take(noisy(24, 16), Path())
    if limits:
        image = replace(image, limits=replace(image.limits, max_pixels=100))
    made.family.tokens.tokens_of(image)


def sight_of(adapter, merged):
    """Serve a model that sees."""
    base = write_tiny_vision_model(Path("seeing"))
    if merged:
        _write_adapter(base)
        command(f"merge {base} adapter OUT")
    values = {"path": "OUT" if merged else str(base), "vision": "vlm"}
    resolved = resolve_options(
        [Layer.of({"model": values, "engine": {"name": "embedded"}})], load(), CHAT
    )
    model = resolved.run.model.model_copy(update={"adapter": adapter})
    open_sight(resolved.one("model.vision"), model, Path("media"), load())


def _write_adapter(base):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(base)
    get_peft_model(
        model, LoraConfig(r=2, target_modules=r".*language_model.*q_proj")
    ).save_pretrained("adapter")


def judged(trained, renamed, head):
    """Load a reward model that sees."""
    made = stage()
    folder = made.path
    if trained:
        backend = made.backend(**JUDGE)
        backend.export(Path("trained"))
        made.renderer.tokenizer.save_pretrained("trained")
        folder = Path("trained")
        backend.close()
    if renamed:
        (file,) = folder.glob("*.safetensors")
        tensors = load_file(file)
        (width,) = {
            one.shape[0] for name, one in tensors.items() if name.endswith("input_layernorm.weight")
        }
        tensors["verdict.weight"] = torch.ones(1, width)
        save_file(tensors, file, metadata={"format": "pt"})
    registered = load("").get("rlhf_rewards", "reward_model")
    given = {} if head is None else {"head": head}
    registered.build(registered.validate({"path": str(folder), "vision": "vlm", **given}))


def audited(folder):
    """Read an image as it was recorded, by the processor of a folder."""
    write_tiny_vision_model(Path("own"))
    shutil.copytree("own", "other")
    file = Path("other/preprocessor_config.json")
    given = json.loads(file.read_text())
    file.write_text(
        json.dumps(given | {"size": {"shortest_edge": 4 * 24 * 24, "longest_edge": 9999}})
    )
    Image.new("RGB", (24, 24)).save("x.png")
    pixels = load_audited(Path(folder)).pixels
    pixels.inputs(torch.tensor([5, *[pixels.feature_id] * 9, 6]), [Path("x.png")])


JUDGE = {"role": "reward_model", "head": "score", "objective": RankingObjective()}
ALL_FROZEN = {"has_projector": True, "freeze_tower": True, "freeze_text": True}
BLIND = {"trained": False, "renamed": False, "head": None}

IMAGES_TAKEN = {
    "rlhf_torch/models/loading.py:_refuse_a_part": [
        Advised(
            call=role,
            wrong={"vision": False, "family": "qwen3_5"},
            told={
                "Set --model.vision vlm, which trains it with rows of text alone too": {
                    "vision": True
                }
            },
            slow=True,
        )
    ],
    "rlhf_torch/models/role_model.py:_require_exportable": [
        Advised(
            call=role,
            wrong={"vision": True, "adapter": "qlora", **JUDGE},
            told={"Choose --actor.adapter lora": {"adapter": "lora"}, "or none": {"adapter": None}},
            slow=True,
        )
    ],
    "rlhf_torch/rows/packed_rows.py:refuse_images": [
        Advised(
            call=batch_with_images,
            wrong={"vision": False},
            told={"set --model.vision": {"vision": True}},
            slow=True,
        )
    ],
    "rlhf_plugin_local/engine/embedded.py:generate": [
        Advised(
            call=request_with_images,
            wrong={"vision": False},
            told={"set --model.vision": {"vision": True}},
            slow=True,
        )
    ],
    "rlhf_torch/vision/parts.py:train_parts": [
        Advised(
            call=parts,
            wrong={"has_projector": False, "freeze_text": True},
            told={
                "only --actor.freeze_visual_encoder can be obeyed": {
                    "freeze_text": False,
                    "freeze_tower": True,
                }
            },
            slow=True,
        )
    ],
    "rlhf_torch/vision/parts.py:_require_trained": [
        Advised(
            call=parts,
            wrong=ALL_FROZEN,
            told={
                "are frozen (--actor.freeze_visual_encoder, freeze_projector, freeze_language_model), and the adapter, "
                "if there is one, trains nothing else. Leave one of them out": {
                    "freeze_text": False
                },
                "--actor.freeze_projector false trains it": {"freeze_projector": False},
            },
            slow=True,
        ),
        Advised(
            call=parts,
            wrong={"has_projector": True, "trains": False, "tower_rate": 0.5, "family": "llava"},
            told={"Leave it out": {"tower_rate": 1.0}},
            given=("--actor.vision_lr_ratio",),
            slow=True,
        ),
    ],
    "rlhf_torch/vision/pictures.py:open_reader": [
        Advised(
            call=reader_of,
            wrong={"name": "sample:blind"},
            told={"Choose one that has it, such as --model.vision vlm": {"name": "vlm:vlm"}},
            slow=True,
        )
    ],
    "rlhf_plugin_vlm/families/tokens_by_size.py:tokens_of": [
        Advised(
            call=sized,
            wrong={"limits": True},
            told={"leave it out of rows, of images and of --data": {"limits": False}},
            slow=True,
        )
    ],
    "rlhf_plugin_inference/serving/sight.py:open_sight": [
        Advised(
            call=sight_of,
            wrong={"adapter": "adapter", "merged": False},
            told={
                "Merge it first: rlhf merge seeing adapter OUT, and give OUT": {
                    "adapter": None,
                    "merged": True,
                }
            },
            given=("--model.vision",),
            slow=True,
        )
    ],
    "rlhf_plugin_reward_model/seeing_scorer.py:_head": [
        Advised(
            call=judged,
            wrong=BLIND,
            told={
                "Give its name with head": {"renamed": True, "head": "verdict"},
                "rlhf rm --model.vision trains one": {"trained": True},
            },
            slow=True,
        )
    ],
    "rlhf_plugin_lab/audit/pixels.py:inputs": [
        Advised(
            call=audited,
            wrong={"folder": "other"},
            told={"Name the model's own folder with --model": {"folder": "own"}},
            slow=True,
        )
    ],
}
"""Place -> calls, one for each message."""
