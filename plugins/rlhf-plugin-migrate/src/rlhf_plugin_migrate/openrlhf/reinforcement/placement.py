"""Rules of placement: how many processes each role has, which of them share GPUs, and generation that runs ahead."""

from __future__ import annotations

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from ..common.machine import set_backend
from ..common.model_adapter import has_adapter
from .algorithm import has_critic, has_reference

SLEEP_FLAGS = ("vllm.enable_sleep", "ds.enable_sleep")
"""Sleep of the engine, and of the trainer."""
_ROLES = {"actor": "policy", "critic": "critic", "ref": "reference"}


def set_components(source: SourceOptions, out: Outcome) -> None:
    """Set runtime, engine and backend, which OpenRLHF gives no choice of."""
    out.set("runtime.name", "ray")
    out.set("engine.name", "vllm")
    set_backend(source, out)


def has_reference_role(source: SourceOptions) -> bool:
    """Return True if the reference is a model of its own, and not the policy without its adapter."""
    return has_reference(source) and not has_adapter(source)


def set_ranks(source: SourceOptions, out: Outcome) -> None:
    """Set the number of processes of each role: nodes times GPUs per node."""
    roles = {"actor": True, "critic": has_critic(source), "ref": has_reference_role(source)}
    for role, is_built in roles.items():
        nodes, gpus = f"{role}.num_nodes", f"{role}.num_gpus_per_node"
        if is_built:
            number = source.whole(nodes) * source.whole(gpus)
            out.set(f"runtime.ray.ranks.{_ROLES[role]}", number, nodes, gpus)
        elif role == "ref":
            why = "no reference model is built with a KL coefficient of 0"
            if has_reference(source):
                why = "the reference is the policy without its adapter, not a model of its own"
            out.nothing((nodes, gpus), why)
    local_model = source.given("reward.model_name_or_path") and not source.given(
        "reward.remote_url", "train.agent_func_path"
    )
    for name in ("reward.num_nodes", "reward.num_gpus_per_node"):
        if local_model:
            out.missing(
                name,
                "the reward model is computed in one process of the driver's machine (reward.reward_model.device); for "
                "more, start several rlhf serve-rm and use the reward http",
            )
        else:
            out.nothing(name, "there is no reward model to place")


def set_colocation(source: SourceOptions, out: Outcome) -> None:
    """Set which roles and engines share GPUs, and the number of engines with their GPUs."""
    engines = source.whole("vllm.num_engines") if source.given("vllm.num_engines") else 1
    if not source.given("vllm.num_engines"):
        out.warnings.append(
            "--vllm.num_engines is missing, which OpenRLHF needs; 1 engine is assumed"
        )
    width = source.whole("vllm.tensor_parallel_size")
    hybrid = source.flag("train.colocate_all") and not source.flag("train.async_enable")
    _set_colocate(source, out)
    if hybrid and width > 1:
        engines *= width
        comment = f"one GPU each, in place of {width}: processes that share GPUs have one each"
        out.set(
            "runtime.ray.engines",
            engines,
            "vllm.num_engines",
            "vllm.tensor_parallel_size",
            comment=comment,
        )
        out.differs(
            "vllm.tensor_parallel_size",
            "an engine that shares its GPUs with trainers has one GPU, so there are more engines and each holds the "
            "whole model. If one GPU is too small for the model, place the engines apart (runtime.ray.colocate)",
        )
    else:
        out.set("runtime.ray.engines", engines, "vllm.num_engines")
        _set_width(out, width)
    share = source.number("vllm.gpu_memory_utilization")
    out.set("engine.vllm.memory_share", share, "vllm.gpu_memory_utilization")
    _set_sleep(source, out, hybrid=hybrid)


def _set_sleep(source: SourceOptions, out: Outcome, *, hybrid: bool) -> None:
    """Have engine and trainer sleep in turn if either did; here both do, or neither."""
    asked = [flag for flag in SLEEP_FLAGS if source.flag(flag)]
    if not hybrid:
        out.nothing(asked, "engines share no GPU with the trainer, so sleep would gain nothing")
    elif asked:
        out.set("runtime.sleep", "always", *asked)
        if asked == ["vllm.enable_sleep"]:
            out.differs(asked[0], "the trainer's state also leaves while the engine generates")
        elif asked == ["ds.enable_sleep"]:
            out.differs(asked[0], "the engine also sleeps while the trainer computes")


def _set_width(out: Outcome, width: int) -> None:
    flag = "vllm.tensor_parallel_size"
    if width > 1:
        out.set("engine.vllm.args.tensor_parallel_size", width, flag)
        out.set("runtime.ray.gpus_per.engine", width, flag)
    else:
        out.nothing(flag, "an engine has one GPU unless more are asked for")


def _set_colocate(source: SourceOptions, out: Outcome) -> None:
    out.nothing("train.colocate_critic_reward", "the reward model is not a role on the cluster")
    if source.flag("train.colocate_all") and not source.flag("train.async_enable"):
        out.nothing("train.colocate_all", "the default: all roles and the engines share GPUs")
        out.nothing("train.colocate_actor_ref", "all roles share GPUs")
        return
    shared = ["policy"]
    if source.flag("train.colocate_all") and has_critic(source):
        shared.append("critic")
    if has_reference_role(source):
        shared.append("reference")
    wanted = source.flag("train.colocate_all") or source.flag("train.colocate_actor_ref")
    sets = ["+".join(shared)] if wanted and len(shared) > 1 else []
    flags = ("train.colocate_actor_ref", "train.colocate_all")
    comment = "" if sets else "each role and each engine on GPUs of its own"
    out.set("runtime.ray.colocate", list(sets), *flags, comment=comment)


def set_async(source: SourceOptions, out: Outcome) -> None:
    """Set by how many versions generation may run ahead of training."""
    ahead = source.flag("train.async_enable")
    if not ahead:
        out.nothing("train.async_queue_size", "OpenRLHF reads it only with --train.async_enable")
    else:
        size = source.whole("train.async_queue_size")
        flags = ("train.async_enable", "train.async_queue_size")
        out.set(
            "rollout.max_staleness",
            size,
            *flags,
            comment="a bound for each token, not a queue of batches",
        )
        out.differs(
            "train.async_enable",
            "samples older than rollout.max_staleness versions are never trained on; without a correction the ratio is "
            "to the policy that sampled, where OpenRLHF's is to the trainer's own",
        )
    if source.flag("train.partial_rollout_enable"):
        out.set("rollout.in_flight_updates", True, "train.partial_rollout_enable")
    _set_oversampling(source, out)


def _set_oversampling(source: SourceOptions, out: Outcome) -> None:
    flag = "rollout.vllm_generate_batch_size"
    if not source.given(flag):
        return
    factor = source.whole(flag) / source.whole("rollout.batch_size")
    if factor <= 1:
        out.nothing(flag, "a step starts as many prompts as it trains on")
        return
    out.set("rollout.oversampling", min(factor, 8.0), flag)
    out.differs(
        flag,
        "what is left over stays in play under rollout.max_staleness; OpenRLHF keeps it without a bound",
    )
