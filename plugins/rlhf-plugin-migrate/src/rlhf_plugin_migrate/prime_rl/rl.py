"""Migration of prime-rl's ``rl`` to ``rlhf train``."""

from __future__ import annotations

import math

from ..table.outcome import Outcome
from ..table.source import SourceOptions
from ..verl.common.placed import set_width
from .environments import set_environments
from .training import num_train_gpus, set_training, train_gpu_keys

_MODELS = ("model.name", "trainer.model.name", "orchestrator.model.name")
_ALGO, _LOSS = "orchestrator.algo.type", "trainer.loss.type"
_ESTIMATORS = {"grpo": "dr_grpo", "max_rl": "maxrl", "hierarchical_grpo": "hierarchical_grpo"}


def migrate(source: SourceOptions) -> Outcome:
    """Return the configuration that the keys mean."""
    out = Outcome(source)
    out.apply_plain_entries()
    model = next(filter(source.given, _MODELS), _MODELS[0])
    out.set("model.path", source.text(model), model)
    set_environments(source, out)
    _set_sizes(source, out)
    _set_algorithm(source, out)
    _set_gpus(source, out)
    set_training(source, out, "trainer.")
    out.note_unused()
    return out


def _set_sizes(source: SourceOptions, out: Outcome) -> None:
    batch, group, ahead = (
        f"orchestrator.{name}" for name in ("batch_size", "group_size", "max_off_policy_steps")
    )
    samples, size = source.whole(batch), max(source.whole(group), 1)
    comment = f"{samples} samples / {size} of each prompt"
    out.set("rollout.batch_size", max(samples // size, 1), batch, group, comment=comment)
    out.set("train.batch_size", max(samples // size, 1) * size, batch, group)
    given = source.given("orchestrator.seq_len") or source.value("seq_len") is None
    length = "orchestrator.seq_len" if given else "seq_len"
    longest = source.whole(length)
    answer = "orchestrator.train.sampling.max_completion_tokens"
    out.set("rollout.max_length", longest, length)
    out.set("train.max_tokens_per_micro_batch", longest, length)
    if source.value(answer) is not None:
        out.copy("rollout.max_new_tokens", answer)
    else:
        out.set("rollout.max_new_tokens", longest, length, comment="a turn may fill the sequence")
    out.set("rollout.max_staleness", min(source.whole(ahead), 64), ahead)
    if source.whole(ahead):
        out.set("rollout.in_flight_updates", True, ahead)
    zero = "orchestrator.train.filter_zero_advantages"
    # A group of one has no variance, and a teacher's signal does not depend on rewards.
    if source.flag(zero) and size > 1 and source.text(_ALGO) != "opd":
        out.set("rollout.filters", ["zero_variance"], zero)


def _set_algorithm(source: SourceOptions, out: Outcome) -> None:
    theirs, teacher = source.text(_ALGO), "orchestrator.algo.teacher.name"
    out.set("algo.advantage.estimator", _ESTIMATORS.get(theirs, "dr_grpo"), _ALGO)
    out.set(
        "algo.loss.aggregation", "token-mean", comment="prime-rl divides by the tokens of the batch"
    )
    if theirs == "opd" and source.value(teacher) is not None:
        out.set("algo.loss.policy", "distill", _ALGO)
        out.set("algo.teacher.path", source.text(teacher), teacher)
        return
    if theirs not in _ESTIMATORS:
        out.missing(_ALGO, f"{theirs} has no counterpart; dr_grpo stands in its place")
    low, high, pull = (
        f"trainer.loss.{name}" for name in ("dppo_mask_low", "dppo_mask_high", "kl_tau")
    )
    out.set("algo.kl.coef", 0.0, _LOSS)
    out.set("algo.loss.policy", "dppo", _LOSS)
    out.copy("algo.loss.dppo.threshold", high)
    out.set("algo.loss.dppo.max_ratio", "none", _LOSS)
    out.set("algo.loss.old_logprobs", "rollout", _LOSS, comment="the ratio is that to the sampler")
    if source.text(_LOSS) != "default":
        out.missing(
            _LOSS,
            f"{source.text(_LOSS)} has no counterpart; dppo, which is prime-rl's default, is taken",
        )
    if source.number(low) != source.number(high):
        out.differs(low, "there is one threshold for both directions: dppo_mask_high")
    out.differs(
        pull,
        "the loss has no squared log-ratio to the sampler; algo.kl is a KL to the model at the start",
    )


def _set_gpus(source: SourceOptions, out: Outcome) -> None:
    """Set engines with GPUs of their own, as prime-rl always has them."""
    width, nodes = "inference.vllm.tensor_parallel_size", "deployment.num_infer_nodes"
    keys: tuple[str, ...] = ("deployment.num_infer_gpus",)
    if source.value(nodes) is not None:
        keys = (nodes, "deployment.num_infer_replicas", "deployment.gpus_per_node")
    number, tensor = math.prod(map(source.whole, keys)), max(source.whole(width), 1)
    out.set("engine.name", "vllm", width)
    out.set("runtime.name", "ray", *train_gpu_keys(source))
    out.set("runtime.ray.ranks.policy", num_train_gpus(source), *train_gpu_keys(source))
    out.set("runtime.ray.engines", max(number // tensor, 1), *keys, width)
    out.set("runtime.ray.colocate", [], *keys)
    set_width(out, tensor, width)
