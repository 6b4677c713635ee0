"""Arguments and environment variables with which vLLM starts, from the run's configuration."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args

from rlhf_core import CapabilityError, ConfigError
from rlhf_core.contracts import EngineSpec
from rlhf_data import model_rows

from . import compat, routes
from .config import VllmEngineConfig
from .names import (
    LOAD_FORMAT,
    MERGED_INSTEAD,
    OWNER_VARIABLE,
    PORTION_VARIABLE,
    QUANTIZATION,
    SPREAD_VARIABLE,
    TRANSFER_BACKEND,
    UNREAD,
    WORKER_EXTENSION,
)
from .sockets import SocketFolder

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs

CPU_CACHE_GIB = 1.0
"""Size of the KV cache on a CPU, in GiB, unless an option sets it: vLLM's own default is most of the memory."""
MOST_AT_ONCE = 1024
"""Largest number of sequences that vLLM decodes together, unless an option sets it; further sequences wait. vLLM makes
CUDA graphs for batches of up to this size."""
VERSIONS_AT_ONCE = 4
"""Number of versions of an adapter that vLLM computes with in one batch, unless an option sets it; requests of further
versions wait. As many are in flight with ``rollout.max_staleness`` of 3. Each takes memory on the device."""
VERSIONS_KEPT = 64
"""Largest number of versions of an adapter that vLLM holds, unless an option sets it. A version is dropped when
no request uses it, so this many are there only if an answer takes that many updates."""
GIB = 1 << 30


def engine_args(spec: EngineSpec, config: VllmEngineConfig, *, on_cpu: bool) -> AsyncEngineArgs:
    """Return the arguments of ``AsyncLLM``; imports vLLM.

    Raises:
        ConfigError: vLLM has no such argument, or refuses the combination; the model is to get more embeddings; its
            config.json takes the embeddings for another head; or its layers carry states, on a CPU.
        CapabilityError: it serves no adapter of this rank and dtype.
    """
    from vllm import AsyncEngineArgs

    require_rows(spec)
    require_one_head(spec)
    if on_cpu:
        require_no_states(spec.model_path, trust_remote_code=spec.trust_remote_code)
    _check_names(config, {field.name for field in fields(AsyncEngineArgs)})
    try:
        return AsyncEngineArgs(**{**_ours(spec, config, on_cpu=on_cpu), **config.args})
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"vLLM refuses its arguments: {error}", code="vllm/arguments") from error


def require_rows(spec: EngineSpec) -> None:
    """Refuse a model that the trainer gives more embeddings than its files have, for which vLLM makes no room.

    Raises:
        ConfigError: the files have fewer.
    """
    if spec.embedding_rows is None:
        return
    rows = model_rows(spec.model_path, trust_remote_code=spec.trust_remote_code)
    if rows is not None and rows < spec.embedding_rows:
        raise ConfigError(
            f"--model.resize_embeddings: the tokenizer has {spec.embedding_rows} tokens, and vLLM makes room for the "
            f"{rows} rows of {spec.model_path} alone. Choose --engine embedded; or add the rows by rlhf sft "
            "--model.resize_embeddings first, and give the model that it exports",
            code="vllm/embeddings-too-large",
        )


def require_one_head(spec: EngineSpec) -> None:
    """Refuse a model whose files hold another head than the embeddings that its config.json takes for it: the trainer
    computes with the former, and vLLM with the latter.

    Raises:
        ConfigError: it is such a model.
    """
    from rlhf_torch.models.weight_files import holds_another_head

    if holds_another_head(spec.model_path, trust_remote_code=spec.trust_remote_code):
        raise ConfigError(
            f'model {spec.model_path}: its config.json says "tie_word_embeddings": true, by which vLLM takes the '
            "embeddings for the output head, and its files hold a head that differs, with which the trainer computes. "
            'Write "tie_word_embeddings": false into its config.json.',
            code="model/two-heads",
        )


def _check_names(config: VllmEngineConfig, known: set[str]) -> None:
    for name in config.args:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(
                f"engine.vllm.args: this vLLM has no engine argument {name!r}{hint}",
                code="vllm/arguments",
            )


def _ours(spec: EngineSpec, config: VllmEngineConfig, *, on_cpu: bool) -> dict[str, Any]:
    from vllm import AsyncEngineArgs
    from vllm.config import StructuredOutputsConfig, WeightTransferConfig

    compiled = not on_cpu if config.compile is None else config.compile
    arguments: dict[str, Any] = {
        "model": spec.model_path,
        "trust_remote_code": spec.trust_remote_code,
        "dtype": spec.dtype,
        "max_model_len": spec.max_length,
        "max_num_seqs": min(spec.max_concurrency, MOST_AT_ONCE),
        "enable_prefix_caching": config.prefix_caching,
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": not compiled,
        "load_format": LOAD_FORMAT,
        "worker_extension_cls": WORKER_EXTENSION,
        "weight_transfer_config": WeightTransferConfig(backend=TRANSFER_BACKEND),
        # The folder's own sampling defaults would otherwise be mixed into every request.
        "generation_config": "vllm",
        "structured_outputs_config": StructuredOutputsConfig(backend=compat.GRAMMAR_BACKEND),
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if spec.quantization is not None:
        arguments |= {
            "model_loader_extra_config": {QUANTIZATION: dict(spec.quantization)},
            # vLLM would keep the weights of a folder in 4 bits packed, and compute with kernels of its own.
            "hf_overrides": without_quantization,
        }
    else:
        arguments |= _for_unpacked(spec)
    if spec.returns_routes:
        known = {field.name for field in fields(AsyncEngineArgs)}
        arguments |= routes.arguments(known, on_cpu=on_cpu, prefix_caching=config.prefix_caching)
    if spec.vision is not None:
        arguments |= _for_images()
    if spec.adapter_rank is not None:
        arguments |= _for_adapter(spec.adapter_rank, spec.dtype, on_cpu=on_cpu)
    cache_gib = CPU_CACHE_GIB if on_cpu and config.kv_cache_gib is None else config.kv_cache_gib
    if cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(cache_gib * GIB)
    # vLLM's build for CPUs refuses the argument; its workers keep their memory.
    if spec.sleeps and not on_cpu:
        arguments["enable_sleep_mode"] = True
    if on_cpu:
        # After one chunk of a prompt vLLM resets the request's random generator, which a generator on a CPU cannot do.
        arguments["enable_chunked_prefill"] = False
    else:
        arguments["gpu_memory_utilization"] = config.memory_share
        # Triton's kernel for mixtures of experts computes with weights in the layout of a checkpoint.
        arguments["moe_backend"] = "triton"
    return arguments


def _for_unpacked(spec: EngineSpec) -> dict[str, Any]:
    """Return arguments for a folder whose weights the trainer unpacks as it loads them: a plain model, whose weights
    the first update brings; none for another folder."""
    from rlhf_torch.models.quantized_files import is_unpacked

    if not is_unpacked(spec.model_path):
        return {}
    if spec.adapter_rank is not None:
        raise CapabilityError(
            f"model {spec.model_path}: its files hold quantized weights, and beside an adapter vLLM would read the "
            f"base from them. Choose --engine embedded, or {MERGED_INSTEAD}.",
            code="adapter/not-servable",
        )
    return {
        "model_loader_extra_config": {UNREAD: True},
        "hf_overrides": without_quantization,
    }


def _for_images() -> dict[str, Any]:
    """Return arguments for images that the engine processes, and vLLM does not."""
    from vllm import AsyncEngineArgs

    # vLLM's processor would only serve to try the largest image that there may be.
    arguments: dict[str, Any] = {"skip_mm_profiling": True, "mm_processor_cache_gb": 0}
    if "mm_device_do_normalize" in {field.name for field in fields(AsyncEngineArgs)}:
        # vLLM 0.32 would take bytes of pixels, and normalize them in the model.
        arguments["mm_device_do_normalize"] = False
    return arguments


def _for_adapter(rank: int, dtype: str, *, on_cpu: bool) -> dict[str, Any]:
    from vllm.config.lora import MaxLoRARanks

    if dtype == "float32" and not on_cpu:
        raise CapabilityError(
            "on a GPU vLLM computes adapters in 16 bits only, and model.dtype is float32. Set --model.dtype bfloat16, "
            f"or {MERGED_INSTEAD}.",
            code="adapter/not-servable",
        )
    rooms = sorted(get_args(MaxLoRARanks))
    if rank > rooms[-1]:
        raise CapabilityError(
            f"the adapter's rank is {rank}; vLLM serves adapters of at most rank {rooms[-1]}. Choose a smaller rank, "
            f"or {MERGED_INSTEAD}.",
            code="adapter/not-servable",
        )
    return {
        "enable_lora": True,
        "max_lora_rank": min(room for room in rooms if room >= rank),
        "max_loras": VERSIONS_AT_ONCE,
        "max_cpu_loras": VERSIONS_KEPT,
        # Every request has an adapter, so CUDA graphs without one would only make the start longer.
        "compilation_config": {"cudagraph_specialize_lora": False},
    }


def _on_several_machines(config: VllmEngineConfig) -> bool:
    """Return whether vLLM may start workers of one model on other machines, as its executors for that do."""
    executor = config.args.get("distributed_executor_backend") or "mp"
    return executor not in ("mp", "uni") or config.args.get("nnodes", 1) != 1


@contextmanager
def environment(config: VllmEngineConfig, sockets: SocketFolder) -> Iterator[None]:
    """Set environment variables that vLLM's processes read while they start. The user's variables keep their values.

    Args:
        sockets: folder of their sockets, which is made, and removed if they do not start.

    vLLM's workers are spawned, not forked: the trainer's process has threads, and may use a GPU, which a fork breaks.
    """
    wanted = {
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        # Threads that vLLM binds to cores would compete with the trainer's threads for these cores.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }
    always = {OWNER_VARIABLE: str(os.getpid()), PORTION_VARIABLE: str(config.portion)}
    always[SPREAD_VARIABLE] = str(int(_on_several_machines(config)))
    always |= sockets.make()
    if config.threads is not None:
        always["OMP_NUM_THREADS"] = str(config.threads)
    before = {name: os.environ.get(name) for name in wanted | always}
    os.environ.update(wanted | {name: value for name, value in before.items() if value is not None})
    os.environ.update(always)
    try:
        yield
    except BaseException:
        sockets.remove()
        raise
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def without_quantization(config: Any) -> Any:
    """Return Transformers' configuration without its ``quantization_config``; it is changed in place.

    vLLM's processes call it by its name. The entry is not None but gone: some of vLLM's models ask whether it is there.
    """
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def require_no_states(model: str, *, trust_remote_code: bool) -> None:
    """Refuse a folder or hub name some of whose layers carry a state, by the kinds of layers that its config names.

    Such layers are gated linear attention and short convolutions. With vLLM 0.32 on a CPU log-probs of models with them
    were off by tenths of a nat, with weights equal to the bit.

    Raises:
        ConfigError: there is such a layer.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code)
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    states = (
        kind for kind in kinds if kind == "linear_attention" or not kind.endswith("attention")
    )
    if (kind := next(states, None)) is not None:
        raise ConfigError(
            f"model {model}: layers of the kind {kind} carry a state from token to token. In models with such layers "
            "vLLM's log-probs on a CPU differ from the trainer's by tenths of a nat. Choose --engine embedded, or a "
            "GPU.",
            code="vllm/carried-state",
        )
