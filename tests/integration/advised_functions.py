"""Functions that refuse what words do not bring about on a CPU: several ranks, experts, a quantized base, frequencies.

Each is called with what words of a command would have it called with, so that who follows its message is known too.
Models and rows are stand-ins, as far as the function looks at them.
"""

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from transformers import AutoConfig

from rlhf_core.contracts import EngineSpec, RoleSpec
from rlhf_core.media.reader import without_images
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_deepspeed.files.loading import refuse_cut_noise
from rlhf_plugin_deepspeed.parallel.images import refuse_cut_images
from rlhf_plugin_deepspeed.parallel.rank_group import join_group
from rlhf_plugin_deepspeed.parallel.sequence_attention import check_heads, check_layers
from rlhf_plugin_deepspeed.zero.leaf_modules import refuse_expert_blocks
from rlhf_plugin_deepspeed.zero.zero_training import refuse_quantized
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_fsdp.sharding import shard
from rlhf_plugin_inference.serving.gpus import shares
from rlhf_plugin_lab.serving import server_of
from rlhf_torch.cut.part_files import FORMAT, load_parts
from rlhf_torch.models.device import choose_compute_dtype
from rlhf_torch.models.modeling import DTYPES, CausalLM
from rlhf_torch.ranks.ranks import Ranks

CPU = torch.device("cpu")
DEEPSPEED = "--backend.deepspeed."


class Attention(nn.Module):
    """A block of two experts and their router."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(4, 2)
        self.experts = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])


def _deepspeed(options):
    return DeepSpeedConfig(
        **{name.removeprefix(DEEPSPEED): options[name] for name in options if DEEPSPEED in name}
    )


def _role(options):
    """A role of which a part of the base is packed integers, where the adapter is one on a quantized base."""
    dtype = torch.uint8 if options.get("--actor.adapter") == "qlora" else torch.float32
    model = Attention() if options.get("--model") == "experts" else nn.Linear(2, 2)
    return SimpleNamespace(
        named_weights=lambda: [("base", torch.zeros(2, dtype=dtype))],
        lm=SimpleNamespace(model=model),
    )


def noise(options):
    alpha = float(options.get("--train.neftune_alpha", 0))
    spec = RoleSpec(role="policy", model_path="model", embedding_noise=alpha)
    refuse_cut_noise(spec, _deepspeed(options))


def cut_images(options):
    if "--model.vision" in options:
        refuse_cut_images(_deepspeed(options))


def groups(options):
    size = _deepspeed(options).sequence_parallel
    if size == 2 or 3 % size:
        join_group(Ranks(0, 3, CPU), size, "sequence_parallel")


def heads(options):
    check_heads(4, _deepspeed(options).sequence_parallel)


def layers(options):
    carrying = SimpleNamespace(recurrent=[0], model=nn.Linear(2, 2))
    check_layers(carrying, _deepspeed(options).sequence_parallel)


def blocks(options):
    if (stage := _deepspeed(options).zero_stage) in (1, 2):
        refuse_expert_blocks(nn.Sequential(Attention()), stage)


def quantized(options):
    if stage := _deepspeed(options).zero_stage:
        refuse_quantized(_role(options), stage)


def cut(options):
    if options.get("--backend") == "fsdp":
        config = FsdpConfig()
        try:
            shard(_role(options), RoleSpec(role="policy", model_path="m"), config, Ranks(0, 2, CPU))
        except AttributeError:
            return  # the stand-in is no whole role, and was not refused


def dtypes(options):
    dtype = DTYPES[options.get("--model.dtype", "float32")]
    choose_compute_dtype(options["--backend.torch.compute_dtype"], dtype, 10, CPU)


def engines(options):
    shares(tuple("0"), int(options["--engines"]))


def images_of_messages(options):
    if "--model.vision" not in options:
        without_images([{"role": "user", "content": [{"type": "image", "image": "x.png"}]}])


def page(options):
    taken, _ = server_of([], lambda: None, 0)
    try:
        port = taken.server_port if "--port" in options else 0
        server, _ = server_of([], lambda: None, port)
        server.server_close()
    finally:
        taken.server_close()


def one_graph(options):
    if options.get("--backend.deepspeed.deep_compile") == "true":
        carries = options["--model"] == "carrying"
        ropes = SimpleNamespace(limit=64)
        model = SimpleNamespace(
            recurrent=[0] if carries else [], ropes=ropes, model=nn.Linear(2, 2)
        )
        CausalLM.compile_layers(model)


def frequencies(options):
    from rlhf_plugin_vllm.length_limit import check_length

    config = AutoConfig.from_pretrained("dynamic")
    check_length(config, int(options.get("--rollout.max_length", 128)), "dynamic")


def carried(options):
    from rlhf_plugin_vllm.arguments import require_no_states

    if options["--engine"] == "vllm":
        require_no_states("states", trust_remote_code=False)


def levels(options):
    from rlhf_plugin_vllm.config import VllmEngineConfig
    from rlhf_plugin_vllm.sleeping import sleep_level

    rank = None if options.get("--actor.lora.serve") == "merged" else 4
    config = VllmEngineConfig(sleep_level=int(options["--engine.vllm.sleep_level"]))
    sleep_level(SimpleNamespace(sleeps=True, adapter_rank=rank, quantization=None), config)


def rows_of_embeddings(options):
    from rlhf_plugin_vllm.arguments import require_rows

    if options["--engine"] == "vllm":
        spec = EngineSpec(
            model_path="model",
            dtype="float32",
            max_length=64,
            max_concurrency=4,
            eos_token_ids=(2,),
            embedding_rows=999,
        )
        require_rows(spec)


def shards(options):
    training = SimpleNamespace(tensor_parallel=_deepspeed(options).tensor_parallel, named={})
    with tempfile.TemporaryDirectory() as folder:
        state = {"format": FORMAT, "parts": 2, "tensor_parallel": 2, "parameters": {"other": 1}}
        Path(folder, "state.json").write_text(json.dumps(state))
        load_parts(Path(folder), training)


CALLED = {
    "rlhf_core/media/reader.py:without_images": [(images_of_messages, "sft --model seeing")],
    "rlhf_plugin_deepspeed/files/loading.py:refuse_cut_noise": [
        (noise, f"sft --train.neftune_alpha 5 {DEEPSPEED}tensor_parallel 2"),
        (noise, f"sft --train.neftune_alpha 5 {DEEPSPEED}deep_compile true"),
    ],
    "rlhf_plugin_deepspeed/parallel/images.py:refuse_cut_images": [
        (cut_images, f"sft --model.vision vlm {DEEPSPEED}{name}")
        for name in ("sequence_parallel 2", "tensor_parallel 2", "deep_compile true")
    ],
    "rlhf_plugin_deepspeed/parallel/rank_group.py:join_group": [
        (groups, f"train {DEEPSPEED}sequence_parallel 2")
    ],
    "rlhf_plugin_deepspeed/parallel/sequence_attention.py:check_heads": [
        (heads, f"train {DEEPSPEED}sequence_parallel 3")
    ],
    "rlhf_plugin_deepspeed/parallel/sequence_attention.py:check_layers": [
        (layers, f"train {DEEPSPEED}sequence_parallel 2")
    ],
    "rlhf_plugin_deepspeed/zero/leaf_modules.py:refuse_expert_blocks": [
        (blocks, f"train {DEEPSPEED}zero_stage 2")
    ],
    "rlhf_plugin_deepspeed/zero/zero_training.py:refuse_quantized": [
        (quantized, f"train --actor.adapter qlora {DEEPSPEED}zero_stage 2")
    ],
    "rlhf_plugin_fsdp/sharding.py:_refuse": [
        (cut, "train --backend fsdp --actor.adapter qlora"),
        (cut, "train --backend fsdp --model experts"),
    ],
    "rlhf_plugin_inference/serving/gpus.py:shares": [(engines, "eval --engines 2")],
    "rlhf_plugin_lab/serving.py:server_of": [(page, "view --port 8000")],
    "rlhf_plugin_vllm/arguments.py:require_rows": [
        (rows_of_embeddings, "train --engine vllm --model.resize_embeddings true")
    ],
    "rlhf_plugin_vllm/arguments.py:require_no_states": [(carried, "train --engine vllm")],
    "rlhf_plugin_vllm/length_limit.py:check_length": [
        (frequencies, "train --engine vllm --rollout.max_length 128")
    ],
    "rlhf_plugin_vllm/sleeping.py:sleep_level": [
        (levels, "train --actor.adapter lora --engine.vllm.sleep_level 2")
    ],
    "rlhf_torch/cut/part_files.py:_check_fits": [(shards, f"train {DEEPSPEED}tensor_parallel 1")],
    "rlhf_torch/models/device.py:choose_compute_dtype": [
        (dtypes, "train --model.dtype bfloat16 --backend.torch.compute_dtype float32")
    ],
    "rlhf_torch/models/modeling.py:compile_layers": [
        (one_graph, f"train --model carrying {DEEPSPEED}deep_compile true"),
        (one_graph, f"train --model changing {DEEPSPEED}deep_compile true"),
    ],
}
"""Place -> a function that is called with the options of words, and the words."""
