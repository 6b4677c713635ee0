"""Calls of the packages that need DeepSpeed, FSDP, Ray or vLLM, as far as one machine without a GPU makes them."""

import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import torch
from tests.plugins.vlm.vlm_material import VLM

from rlhf_core.component import ComponentRef
from rlhf_core.contracts import EngineSpec, PolicyObjective, RoleSpec, Uid, VisionSpec
from rlhf_core.plugins import load
from rlhf_plugin_deepspeed.config import DeepSpeedConfig
from rlhf_plugin_fsdp.config import FsdpConfig
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model
from rlhf_torch.ranks.ranks import Ranks

from .advised_case import Advised

CPU = torch.device("cpu")


def averaged(package, decay):
    """Export the moving average of a policy."""
    spec = RoleSpec(
        role="policy",
        model_path=str(write_tiny_model(Path("model"), hidden_size=16, num_layers=1, num_heads=2)),
        objective=PolicyObjective(
            loss=ComponentRef(kind="rlhf_policy_losses", name="ppo"), aggregation="token-mean"
        ),
        optimizer=ComponentRef(kind="rlhf_optimizers", name="adam"),
        ema_decay=decay,
    )
    if package == "fsdp":
        from rlhf_plugin_fsdp.backend import FsdpBackend as Backend

        backend = Backend(FsdpConfig(device="cpu"))
    elif package == "local":
        backend = TorchBackend(TorchBackendConfig(device="cpu"))
    else:
        from rlhf_plugin_deepspeed.backend import DeepSpeedBackend as Backend

        backend = Backend(DeepSpeedConfig(device="cpu", reduce_bucket_size=100_000))
    backend.setup(spec, load(""))
    try:
        backend.export(Path("averaged"), ema=True)
    finally:
        backend.close()


def one_graph(supported=True, others=(), dtype="float32", **options):
    """Check a role whose layers would be compiled as one graph, on a machine that has a GPU or has none."""
    from deepspeed.compile import util

    from rlhf_plugin_deepspeed.compile import deep_compile

    config = DeepSpeedConfig(**options)
    spec = RoleSpec(role="policy", model_path="model", dtype=dtype)
    found, compiled = util.is_deepcompile_supported, deep_compile._compiled
    try:
        if supported:
            util.is_deepcompile_supported = lambda: True
        deep_compile._compiled = list(others)
        if config.deep_compile:
            deep_compile.refuse_deep_compile(config, spec, Ranks(0, 1, CPU))
    finally:
        util.is_deepcompile_supported, deep_compile._compiled = found, compiled


def accelerator(device, variable):
    """Import DeepSpeed in a process of its own."""
    code = (
        "import torch\nfrom rlhf_plugin_deepspeed.library import load_deepspeed\n"
        f"load_deepspeed(torch.device({device!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **({} if variable is None else {"DS_ACCELERATOR": variable})},
    )
    if done.returncode:
        raise AssertionError(done.stderr)


def connected(address):
    from rlhf_plugin_ray.cluster.joining import require_welcome

    require_welcome(address, 0.2)


def seen_by_node(missing):
    from rlhf_plugin_ray.cluster import preflight

    report = SimpleNamespace(host="there", has_folder=True, differing=None, missing=missing)
    driver = SimpleNamespace(folder=".")
    preflight._require(SimpleNamespace(address="192.0.2.1"), report, driver)


async def joined(weights):
    """Bring weights to an engine that joins after the trainer has gone on."""
    from rlhf_plugin_ray.config import RayRuntimeConfig
    from rlhf_plugin_ray.engines.delivery import WeightDelivery

    @asynccontextmanager
    async def held():
        yield

    async def delivered(engines):
        return {}

    role = SimpleNamespace(ranks=[], send_weights=None, changes=0, held=held)
    delivery = WeightDelivery(role, None, RayRuntimeConfig(weights=weights, sync_timeout_s=0.05))
    engine = Engine()
    delivery._engines = {engine: None}
    delivery._deliver = delivered
    delivery._published = object() if weights == "store" else None
    role.changes += 1
    await delivery.bring(engine)


class Engine:
    who = "engine 1"


def several_ranks(backend, ranks):
    from rlhf_plugin_ray import runtime
    from rlhf_plugin_ray.config import RayRuntimeConfig

    chosen = ComponentRef(kind="rlhf_train_backends", name=backend)
    spec = SimpleNamespace(backend=chosen, roles={"policy": None})
    runtime._require_ranks_fit(RayRuntimeConfig(ranks={"policy": ranks}), spec, load())


def torchvision(installed):
    from rlhf_plugin_vllm import compat

    found = compat.find_spec
    try:
        compat.find_spec = lambda name: object() if installed else None
        compat.require_torchvision()
    finally:
        compat.find_spec = found


def adapter_on_gpu(dtype, serve):
    from rlhf_plugin_vllm import arguments

    if serve != "merged":
        arguments._for_adapter(4, dtype, on_cpu=False)


def looking_ahead(engine, on_cpu=True):
    """Prepare the prompts of vLLM, or those of the embedded engine, for images that look ahead."""
    from rlhf_plugin_vllm.images.prompts import ImagePrompts, require_within
    from rlhf_torch.vision.pictures import open_reader

    path = write_tiny_vision_model(Path("seeing"), "gemma3")
    vision = VisionSpec(component=VLM, media_folder="media")
    if engine == "vllm":
        spec = EngineSpec(
            model_path=str(path),
            dtype="float32",
            max_length=64,
            max_concurrency=1,
            eos_token_ids=(2,),
        )
        ImagePrompts(spec, vision).require_attention(spec.model_path, on_cpu=on_cpu)
        require_within(12, 16, Uid(0, 0))
    else:
        open_reader(vision, str(path), load(), trust_remote_code=False)


def unpacked(settings):
    from rlhf_plugin_vllm.worker import four_bits

    names = four_bits._packed_names
    try:
        four_bits._packed_names = lambda settings, model: {}
        four_bits.FourBits(settings, SimpleNamespace(dtype=torch.float32), CPU)
    finally:
        four_bits._packed_names = names


def closed_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


DEEP = {"deep_compile": True}
NOT_DEEP = {"deep_compile": False}

PACKAGES_AT_WORK = {
    "rlhf_torch/scoring/scoring_backend.py:_require_average": [
        Advised(
            call=averaged,
            wrong={"package": "local", "decay": None},
            told={"set --actor.ema": {"decay": 0.9}},
        ),
        Advised(
            call=averaged,
            wrong={"package": "deepspeed", "decay": None},
            told={"set --actor.ema": {"decay": 0.9}},
            needs="deepspeed",
            slow=True,
        ),
        Advised(
            call=averaged,
            wrong={"package": "fsdp", "decay": None},
            told={"set --actor.ema": {"decay": 0.9}},
            slow=True,
        ),
    ],
    "rlhf_plugin_deepspeed/compile/deep_compile.py:refuse_deep_compile": [
        Advised(
            call=one_graph,
            wrong={**DEEP, "supported": False},
            told={
                "Leave deep_compile out": NOT_DEEP,
                "use --backend.deepspeed.compile, which works anywhere": {
                    **NOT_DEEP,
                    "compile": True,
                },
            },
            needs="deepspeed",
            slow=True,
        ),
        Advised(
            call=one_graph,
            wrong={**DEEP, "others": ("policy",)},
            told={
                "Give each role processes of its own (--runtime ray)": {"others": ()},
                "leave deep_compile out": NOT_DEEP,
            },
            needs="deepspeed",
            slow=True,
        ),
        Advised(
            call=one_graph,
            wrong={**DEEP, "zero_stage": 1, "dtype": "bfloat16"},
            told={
                "Set zero_stage 2 or 3": {"zero_stage": 2},
                "or --model.dtype float32": {"dtype": "float32"},
            },
            needs="deepspeed",
            slow=True,
        ),
    ],
    "rlhf_plugin_deepspeed/library.py:load_deepspeed": [
        Advised(
            call=accelerator,
            wrong={"device": "cpu", "variable": "cuda"},
            told={
                "Set DS_ACCELERATOR=cpu in the environment": {"variable": "cpu"},
                "or --backend.deepspeed.device cuda": {"device": "cuda"},
            },
            needs="deepspeed",
            slow=True,
        )
    ],
    "rlhf_plugin_ray/cluster/joining.py:_require_listener": [
        Advised(
            call=connected,
            wrong={"address": f"127.0.0.1:{closed_port()}"},
            told={
                "correct the address": {"address": "auto"},
                "leave it unset for a cluster of the run's own": {"address": ""},
            },
            given=("--head", "--port"),
            needs="ray",
        )
    ],
    "rlhf_plugin_ray/cluster/preflight.py:_require": [
        Advised(
            call=seen_by_node,
            wrong={"missing": ("model",)},
            told={
                "put models and, for images, --output on a file system that all machines share": {
                    "missing": ()
                },
                "or copy models there under the same path": {"missing": ()},
            },
            needs="ray",
        )
    ],
    "rlhf_plugin_ray/engines/delivery.py:bring": [
        Advised(
            call=joined,
            wrong={"weights": "memory"},
            told={"--runtime.ray.weights store keeps them": {"weights": "store"}},
            needs="ray",
        )
    ],
    "rlhf_plugin_ray/runtime.py:_require_ranks_fit": [
        Advised(
            call=several_ranks,
            wrong={"backend": "torch", "ranks": 2},
            told={
                "choose a backend that provides 'several_ranks', such as deepspeed": {
                    "backend": "deepspeed"
                },
                "leave the role at 1 rank": {"ranks": 1},
            },
            given=("--backend",),
            needs="ray",
        )
    ],
    "rlhf_plugin_vllm/arguments.py:_for_adapter": [
        Advised(
            call=adapter_on_gpu,
            wrong={"dtype": "float32", "serve": "auto"},
            told={
                "Set --model.dtype bfloat16": {"dtype": "bfloat16"},
                "--actor.lora.serve merged": {"serve": "merged"},
            },
            given=("--model.serve",),
            needs="vllm",
            slow=True,
        )
    ],
    "rlhf_plugin_vllm/compat.py:require_torchvision": [
        Advised(
            call=torchvision,
            wrong={"installed": False},
            told={
                "pip install torchvision (on a CPU: --index-url https://download.pytorch.org/whl/cpu)": {
                    "installed": True
                }
            },
            needs="vllm",
        )
    ],
    "rlhf_plugin_vllm/images/prompts.py:require_attention": [
        Advised(
            call=looking_ahead,
            wrong={"engine": "vllm"},
            told={"Choose --engine embedded": {"engine": "embedded"}},
            needs="vllm",
            slow=True,
        )
    ],
    "rlhf_plugin_vllm/images/prompts.py:require_within": [
        Advised(
            call=looking_ahead,
            wrong={"engine": "vllm", "on_cpu": False},
            told={"Choose --engine embedded": {"engine": "embedded"}},
            needs="vllm",
            slow=True,
        )
    ],
    "rlhf_plugin_vllm/worker/four_bits.py:__init__": [
        Advised(
            call=unpacked,
            wrong={"settings": {"quant_method": "gptq"}},
            told={"Take --actor.adapter qlora": {"settings": {"load_in_4bit": True}}},
            needs="vllm",
            slow=True,
        )
    ],
}
"""Place -> calls, one for each message."""
