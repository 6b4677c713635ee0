"""Rules of the machine: GPUs, backend, engine, and what leaves a GPU while the other side works."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common import placed
from .algorithm import ACTOR, has_critic, has_reference

_ROLLOUT, _MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
_NODES, _PER_NODE = "trainer.nnodes", "trainer.n_gpus_per_node"
_ENGINE_NODES, _ENGINE_GPUS = "rollout.nnodes", "rollout.n_gpus_per_node"
_STRATEGY, _ULYSSES = "model_engine", f"{ACTOR}.ulysses_sequence_parallel_size"
_WIDTH, _SHARE = f"{_ROLLOUT}.tensor_model_parallel_size", f"{_ROLLOUT}.gpu_memory_utilization"
_PARAMS, _STATE = f"{ACTOR}.fsdp_config.param_offload", f"{ACTOR}.fsdp_config.optimizer_offload"
_FREE = f"{_ROLLOUT}.free_cache_engine"
_FSDP = ("fsdp", "fsdp2", "dp")
_VLLM = ("enable_chunked_prefill", "max_num_seqs", "max_num_batched_tokens")


def num_gpus(source: SourceOptions) -> int:
    """Return the number of GPUs of the trainer."""
    return max(source.whole(_NODES) * source.whole(_PER_NODE), 1)


def ulysses(source: SourceOptions) -> int:
    """Return the number of ranks that compute a sequence together."""
    return max(source.whole(_ULYSSES), 1)


def has_own_engines(source: SourceOptions) -> bool:
    """Return True if engines have GPUs of their own, as where verl trains and generates at the same time."""
    if source.given(_ENGINE_NODES):
        return source.whole(_ENGINE_NODES) > 0
    return source.given(_ENGINE_GPUS) and source.whole(_ENGINE_GPUS) > 0


def set_backend(source: SourceOptions, out: Outcome) -> None:
    """Set the backend with its ways to share a model among ranks, and the weights' type."""
    strategy = source.text(_STRATEGY)
    is_fsdp, width = strategy in _FSDP, ulysses(source)
    backend = placed.set_backend(out, num_gpus(source), width, _STRATEGY, _ULYSSES, is_fsdp=is_fsdp)
    if not is_fsdp:
        out.differs(
            _STRATEGY,
            f"there is no {strategy}; DeepSpeed shares weights, gradients and state at stage 3",
        )
    elif backend == "deepspeed":
        out.differs(
            _ULYSSES, "with sequence parallelism the backend is DeepSpeed; FSDP has none here"
        )
    if backend != "deepspeed":
        out.nothing(_ULYSSES, "1: each rank computes whole sequences")
    reshard, checkpointing = (
        f"{ACTOR}.fsdp_config.reshard_after_forward",
        f"{_MODEL}.enable_gradient_checkpointing",
    )
    if backend == "fsdp":
        out.copy("backend.fsdp.reshard_after_forward", reshard)
    else:
        out.nothing(reshard, f"the backend is {backend}")
    out.copy(f"backend.{backend}.gradient_checkpointing", checkpointing)
    out.copy(f"backend.{backend}.deterministic", f"{ACTOR}.fsdp_config.full_determinism")
    dtype = f"{ACTOR}.fsdp_config.model_dtype"
    name = source.text(dtype)
    out.set("model.dtype", "float32" if name in ("fp32", "float32") else "bfloat16", dtype)
    if name in ("fp16", "float16"):
        out.differs(dtype, "there is no float16: weights are bfloat16")


def set_gpus(source: SourceOptions, out: Outcome) -> None:
    """Set how many GPUs roles and engines have, and whether they share them."""
    number = num_gpus(source)
    if has_own_engines(source):
        _set_engines_apart(source, out, number)
        return
    out.nothing((_ENGINE_NODES, _ENGINE_GPUS), "engines share GPUs with the trainer")
    if number == 1:
        out.set("runtime.name", "local", _NODES, _PER_NODE)
    else:
        out.set("runtime.name", "ray")
        comment = "each role has as many ranks, and there are as many engines"
        out.set("runtime.ray.gpus", number, _NODES, _PER_NODE, comment=comment)


def _set_engines_apart(source: SourceOptions, out: Outcome, number: int) -> None:
    width = max(source.whole(_WIDTH), 1)
    gpus = max(source.whole(_ENGINE_NODES), 1) * source.whole(_ENGINE_GPUS)
    roles = {"policy": True, "critic": has_critic(source), "reference": has_reference(source)}
    out.set("runtime.name", "ray")
    for role in (role for role, is_built in roles.items() if is_built):
        out.set(f"runtime.ray.ranks.{role}", number, _NODES, _PER_NODE)
    out.set("runtime.ray.engines", max(gpus // width, 1), _ENGINE_NODES, _ENGINE_GPUS)
    shared = "+".join(role for role, is_built in roles.items() if is_built)
    out.set("runtime.ray.colocate", [shared] if "+" in shared else [], _ENGINE_NODES, _ENGINE_GPUS)


def set_engine(source: SourceOptions, out: Outcome) -> None:
    """Set the engine and its options."""
    key = f"{_ROLLOUT}.name"
    theirs = source.text(key)
    engine = "embedded" if theirs == "hf" else "vllm"
    out.set("engine.name", engine, key)
    if theirs not in ("hf", "vllm"):
        out.differs(key, f"there is no engine {theirs}; vLLM generates")
    options = [
        _SHARE,
        *(f"{_ROLLOUT}.{name}" for name in ("enforce_eager", "enable_prefix_caching", *_VLLM)),
    ]
    if engine != "vllm":
        out.nothing((*options, _WIDTH), "the trainer's own weights generate")
        return
    out.copy("engine.vllm.memory_share", _SHARE)
    eager, caching = f"{_ROLLOUT}.enforce_eager", f"{_ROLLOUT}.enable_prefix_caching"
    if source.given(eager):
        out.set("engine.vllm.compile", not source.flag(eager), eager)
    out.copy("engine.vllm.prefix_caching", caching)
    for name in _VLLM:
        option = f"{_ROLLOUT}.{name}"
        if source.given(option) and source.value(option) is not None:
            out.copy(f"engine.vllm.args.{name}", option)
        else:
            out.nothing(option, "unset")
    _set_width(source, out)


def _set_width(source: SourceOptions, out: Outcome) -> None:
    width = source.whole(_WIDTH)
    if has_own_engines(source) and width > 1:
        placed.set_width(out, width, _WIDTH)
    elif width > 1 and num_gpus(source) > 1:
        out.differs(
            _WIDTH,
            f"an engine that shares its GPUs with trainers has one of them, in place of {width}, and holds the whole "
            "model. If one GPU is too small for that, place the engines apart (runtime.ray.colocate)",
        )
    else:
        out.nothing(_WIDTH, "an engine has one GPU unless more are asked for")


def set_sleep(source: SourceOptions, out: Outcome) -> None:
    """Set what leaves the GPU while the other side works: verl moves each part by a key of its own."""
    keys = (_PARAMS, _STATE, _FREE)
    if has_own_engines(source):
        out.nothing(keys, "engines share no GPU with the trainer, so sleep would gain nothing")
        return
    params, state, engine = (source.flag(key) for key in keys)
    if not source.given(*keys):
        return
    level = "always" if params else "state" if state else "engine" if engine else "never"
    out.set("runtime.sleep", level, *keys)
    if params and not state:
        out.differs(_PARAMS, "the optimizer's state also leaves while the engine generates")
    if (params or state) and source.given(_FREE) and not engine:
        out.differs(_FREE, "the engine sleeps, too")
