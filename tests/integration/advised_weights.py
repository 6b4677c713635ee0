"""Tiny models, adapters and engines of the kinds that a message is about, loaded with what it tells to choose."""

import asyncio
import warnings
from importlib.metadata import requires
from pathlib import Path

import torch
from tests.core.sample_plugin import component
from tests.plugins.local.engine.conftest import Source
from tests.plugins.reward_model.conftest import write_adapter as write_reward_adapter
from tests.plugins.torch.experts.test_family import BIASED, tiny
from transformers import AutoModelForCausalLM

from rlhf_config import Layer, resolve_options
from rlhf_core.component import ComponentRef, Registered
from rlhf_core.contracts import (
    EngineSpec,
    GenerationRequest,
    PolicyObjective,
    RoleSpec,
    SamplingParams,
    Uid,
)
from rlhf_core.plugins import load
from rlhf_plugin_inference.chat.options import CHAT
from rlhf_plugin_inference.serving import adapter_source
from rlhf_plugin_inference.serving.adapter_form import form_of
from rlhf_plugin_inference.serving.model_source import ModelSource
from rlhf_plugin_inference.serving.options import ModelToServe
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.engine.beside.decision import is_beside_training
from rlhf_plugin_local.engine.config import EmbeddedEngineConfig
from rlhf_plugin_local.engine.embedded import EmbeddedEngine
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_plugin_reward_model.config import RewardModelConfig
from rlhf_plugin_reward_model.on_held_base import ScorerOnHeldBase
from rlhf_plugin_reward_model.scoring import Scorer
from rlhf_testing.tiny import ALPHABET, write_tiny_model
from rlhf_torch.adapters.folder import read_adapter
from rlhf_torch.experts.family import coefficient_of
from rlhf_torch.models.loading import load_causal_lm

from .advised_case import Advised
from .advised_commands import command

TINY = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
PROMPT = (5, 9, 12)


def write_adapter(base, name="adapter", **options):
    """Write a PEFT folder."""
    from peft import LoraConfig, get_peft_model

    options = {"r": 4, "target_modules": ["q_proj"], **options}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's advice on tied matrices
        made = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options))
        made.save_pretrained(name)
    return Path(name)


def adapter_form(serve, quantize, engine, **options):
    """Say in which form an engine gets an adapter."""
    plugins = load()
    plain = component("plain_engine", provides={"rollout_logprobs"})
    plugins.registries["rlhf_engines"].add(Registered(plain, "sample"))
    base = write_tiny_model(Path("model"), **TINY)
    adapter = write_adapter(base, **options)
    model = {"path": str(base), "adapter": str(adapter), "serve": serve, "quantize": quantize}
    values = {"model": model, "engine": {"name": engine}}
    resolved = resolve_options([Layer.of(values)], plugins, CHAT)
    form_of(resolved.run.model, resolved.one("engine.name"))


def in_four_bits(installed):
    """Load a base in 4 bits where the package for it is installed, or is not."""
    base = write_tiny_model(Path("model"), **TINY)
    adapter = write_adapter(base)
    extra = [
        one
        for one in requires("rlhf-plugin-inference")
        if "extra == 'quantize'" in one.replace('"', "'")
    ]
    assert any(one.startswith("bitsandbytes") for one in extra), extra
    options = ModelToServe(path=str(base), adapter=str(adapter), quantize="nf4")
    found = adapter_source.find_spec
    try:
        adapter_source.find_spec = found if installed else lambda name: None
        adapter_source.AdapterSource(options, "float32", read_adapter(adapter)).module()
    finally:
        adapter_source.find_spec = found


def in_buckets(merged):
    base = write_tiny_model(Path("model"), **TINY)
    adapter = write_adapter(base, target_modules=["lm_head"])
    if merged:
        command(f"merge {base} {adapter} OUT")
    options = {"path": "OUT"} if merged else {"path": str(base), "adapter": str(adapter)}
    tuple(ModelSource(ModelToServe(**options), "float32").buckets())


def beside(device, drops, overlap, **spec):
    module = torch.nn.ModuleDict({"lora_dropout": torch.nn.Dropout(drops)})
    given = EngineSpec(
        model_path="model",
        dtype="float32",
        max_length=64,
        max_concurrency=4,
        eos_token_ids=(2,),
        **spec,
    )
    config = EmbeddedEngineConfig(overlap=overlap)
    is_beside_training(config, given, module, torch.device(device))


async def started(base, source, **options):
    engine = EmbeddedEngine(EmbeddedEngineConfig(**options))
    spec = EngineSpec(
        model_path=str(base), dtype="float32", max_length=64, max_concurrency=4, eos_token_ids=(2,)
    )
    await engine.start(spec, source)
    return engine


def request(**sampling):
    return GenerationRequest(
        uid=Uid(0, 0),
        prompt_ids=PROMPT,
        seeds=(1,),
        sampling=SamplingParams(**{"max_new_tokens": 4, **sampling}),
    )


async def guided(decode):
    base = write_tiny_model(Path("model"), **TINY)
    lm = load_causal_lm(str(base), dtype="float32")
    engine = await started(base, Source(lm), decode=decode)
    await engine.generate(request(grammar="start: /[a-z]{3}/"))
    await engine.close()


async def changed(weights, paused):
    """Change the weights under a running request, as training does."""
    base = write_tiny_model(Path("model"), **TINY)
    lm = load_causal_lm(str(base), dtype="float32")
    engine = await started(base, Source(lm), weights=weights, decode="stepwise")
    running = asyncio.ensure_future(engine.generate(request(max_new_tokens=40, min_new_tokens=40)))
    for _ in range(5):
        await asyncio.sleep(0)
    if paused:
        await engine.pause()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.mul_(1.5)
    if paused:
        await engine.update_weights(1, Source(lm))
        await engine.resume()
    await running
    await engine.close()


def policy(folder, adapter=None, **options):
    """Build a policy under an adapter."""
    ref = (
        None
        if adapter is None
        else ComponentRef(kind="rlhf_model_adapters", name=f"lora:{adapter}", options=options)
    )
    loss = ComponentRef(kind="rlhf_policy_losses", name="ppo")
    spec = RoleSpec(
        role="policy",
        model_path=str(folder),
        objective=PolicyObjective(loss=loss, aggregation="token-mean"),
        optimizer=ComponentRef(kind="rlhf_optimizers", name="adam"),
        adapter=ref,
    )
    backend = TorchBackend(TorchBackendConfig(device="cpu"))
    backend.setup_beside(spec, load(""), ())
    return backend


def tokens_learned(token, more):
    letters = "".join(map(chr, range(300, 300 + more)))
    base = write_tiny_model(Path("model"), alphabet=ALPHABET + letters, **TINY)
    policy(base, "lora", trainable_token_indices=(token,), serve="merged").close()


async def served_whole(adapter, shared):
    """Give an engine the weights of a policy: merged ones, or the model itself."""
    base = write_tiny_model(Path("model"), **TINY)
    backend = policy(base, adapter)
    try:
        if shared:
            engine = await started(base, backend)
            await engine.generate(request())
            await engine.close()
        else:
            dict(backend._model.adapter.merged_weights(backend._lm.model))
    finally:
        backend.close()


def judged(base, adapter):
    """Score by a reward model that is an adapter of a base, which the policy may hold."""
    folder = write_tiny_model(Path("model"), initializer_range=0.2)
    path = write_reward_adapter(folder, Path("reward"), seed=1)
    held = policy(folder, adapter)
    device = {"device": "cpu"} if base == "own" else {}
    options = RewardModelConfig(path=str(path), base=base, **device)
    try:
        (ScorerOnHeldBase if base == "shared" else Scorer)(options).scores([list(PROMPT)])
    finally:
        held.close()


FAMILY = tiny("deepseek_v3", **BIASED, output_router_logits=True)
FORMED = {"serve": "auto", "quantize": "none", "engine": "embedded"}
BESIDE = {"device": "cpu", "drops": 0.0, "overlap": "always", "overlaps": True}
OUT = {"leave the option out": {"overlap": "auto"}}

WEIGHTS_CHOSEN = {
    "rlhf_plugin_inference/serving/adapter_form.py:form_of": [
        Advised(
            call=adapter_form,
            slow=True,
            wrong={**FORMED, "serve": "adapter", "use_dora": True},
            told={
                "Leave the option out": {"serve": "auto"},
                "set --model.serve merged": {"serve": "merged"},
            },
        )
    ],
    "rlhf_plugin_inference/serving/adapter_form.py:_beside_quantized": [
        Advised(
            call=adapter_form,
            wrong={**FORMED, "serve": "merged", "quantize": "nf4"},
            told={"Set --model.serve adapter": {"serve": "adapter"}},
            given=("--model.quantize",),
        ),
        Advised(
            call=adapter_form,
            wrong={**FORMED, "quantize": "nf4", "engine": "plain_engine"},
            told={"such as --engine embedded": {"engine": "embedded"}},
            given=("--model.adapter", "--model.quantize"),
        ),
    ],
    "rlhf_plugin_inference/serving/adapter_source.py:_in_four_bits": [
        Advised(
            call=in_four_bits,
            wrong={"installed": False},
            told={"pip install 'rlhf-plugin-inference[quantize]'": {"installed": True}},
            given=("--model.quantize",),
            slow=True,
        )
    ],
    "rlhf_plugin_inference/serving/model_source.py:buckets": [
        Advised(
            call=in_buckets,
            wrong={"merged": False},
            told={"Merge it first: rlhf merge model adapter OUT": {"merged": True}},
            given=("--model.adapter",),
            slow=True,
        )
    ],
    "rlhf_plugin_local/engine/beside/decision.py:is_beside_training": [
        Advised(
            call=beside,
            wrong={**BESIDE, "overlaps": False},
            told={"Set --rollout.max_staleness 1": {"overlaps": True}, **OUT},
            given=("--engine.embedded.overlap",),
        ),
        Advised(
            call=beside,
            wrong={**BESIDE, "quantization": "nf4"},
            told={"Choose an adapter whose base is not quantized": {"quantization": None}, **OUT},
            given=("--engine.embedded.overlap",),
        ),
        Advised(
            call=beside,
            wrong={**BESIDE, "device": "cuda", "drops": 0.5},
            told={"Set --actor.lora.dropout 0": {"drops": 0.0}, **OUT},
            given=("--engine.embedded.overlap",),
        ),
    ],
    "rlhf_plugin_local/engine/embedded.py:_guide": [
        Advised(
            call=guided,
            wrong={"decode": "resident"},
            told={"run with --engine.embedded.decode stepwise": {"decode": "stepwise"}},
            slow=True,
        )
    ],
    "rlhf_plugin_local/engine/weights.py:check_unchanged": [
        Advised(
            call=changed,
            wrong={"weights": "shared", "paused": False},
            told={
                "Call pause before training, and update_weights and resume behind it": {
                    "paused": True
                },
                "set --engine.embedded.weights copy": {"weights": "copy"},
            },
        )
    ],
    "rlhf_plugin_lora/token_rows.py:_require_plain": [
        Advised(
            call=tokens_learned,
            wrong={"token": 105, "more": 0},
            told={
                "Give ids below that": {"token": 7},
                "or a base in which the token has a row (--model.resize_embeddings adds some where a model is trained "
                "whole)": {"more": 20},
            },
        )
    ],
    "rlhf_plugin_lora/weights.py:_merged": [
        Advised(
            call=served_whole,
            wrong={"adapter": "qlora", "shared": False},
            told={
                "Use --actor.adapter lora": {"adapter": "lora"},
                "--engine embedded with --runtime local, which share the model": {"shared": True},
            },
            slow=True,
        )
    ],
    "rlhf_plugin_reward_model/on_held_base.py:on_held_base": [
        Advised(
            call=judged,
            wrong={"base": "shared", "adapter": None},
            told={
                "Train the policy with an adapter of this base (--actor.adapter)": {
                    "adapter": "lora"
                },
                "set base to own": {"base": "own"},
            },
            slow=True,
        )
    ],
    "rlhf_torch/experts/family.py:coefficient_of": [
        Advised(
            call=coefficient_of,
            wrong={"model": FAMILY, "wanted": 0.1},
            told={"Set --actor.router_aux_loss 0": {"wanted": 0.0}},
        )
    ],
}
"""Place -> calls, one for each message."""
