"""Migration of SkyRL's ``main_base``: the table's plain entries, then the rules by which keys act together."""

from __future__ import annotations

import math

from ..adapters import SKYRL_NAME, skyrl_environment
from ..table.outcome import Outcome
from ..table.source import SourceOptions
from ..verl.common.adapter import set_lora
from ..verl.common.optimizer import set_form, set_warmup
from ..verl.common.placed import set_backend, set_width
from ..verl.common.sets import set_files
from ..verl.common.trainer import set_logs
from .algorithm import (
    ALGORITHM,
    ANSWER,
    ESTIMATOR,
    kl_mode,
    set_advantage,
    set_correction,
    set_filter,
    set_kl,
    set_loss,
    set_overlong,
)

POLICY, PLACEMENT, ENGINE = "trainer.policy", "trainer.placement", "generator.inference_engine"
_ENV, _STEPS = "environment.env_class", "trainer.max_training_steps"
_MATH = {
    "gsm8k": ("reward_spec.ground_truth", "wants #### before it, too"),
    "aime": ("reward_model.ground_truth", "gives -1 for a wrong one"),
}
"""Environment that compares final answers -> the entry of its rows with the answer, and how it differs."""
_LORA = ("rank", "alpha", "dropout", "target_modules", "exclude_modules")


def migrate(source: SourceOptions, adapter: str, *, runs_ahead: bool = False) -> Outcome:
    """Return the configuration that the keys mean.

    Args:
        adapter: path of the file with the environment, if one is needed.
        runs_ahead: the program is one that generates while it trains.
    """
    out = Outcome(source)
    out.apply_plain_entries()
    _set_rows(source, out)
    _set_environment(source, out, adapter.replace("_reward.py", "_env.py"))
    for rule in (
        *(_set_sizes, _set_backend, _set_gpus, set_advantage, set_loss, set_kl),
        *(set_correction, set_filter, _set_duration, set_overlong),
    ):
        rule(source, out)
    set_logs(source, out, "trainer.run_name")
    _set_ahead(source, out, runs_ahead=runs_ahead)
    _set_role(source, out, POLICY, "actor")
    if source.text(ESTIMATOR) == "gae":
        _set_role(source, out, "trainer.critic", "critic")
        out.copy("critic.value_clip", f"{ALGORITHM}.value_clip")
        out.copy("critic.path", "trainer.critic.model.path")
    else:
        for path in [path for path in out.settings if path.startswith("critic.")]:
            for key in out.settings.pop(path).sources:
                out.notes.pop(key, None)
                out.nothing(key, "the estimator has no critic, in SkyRL neither")
    out.note_unused()
    return out


def _set_rows(source: SourceOptions, out: Outcome) -> None:
    set_files(source, out, "data.train_data", "data.val_data")
    out.set("data.on_bad_row", "skip", comment="a prompt that is too long is left out, as in SkyRL")
    heat = "generator.eval_sampling_params.temperature"
    number = "generator.eval_n_samples_per_prompt"
    out.set("eval.temperatures", [source.number(heat)], heat)
    if source.number(heat) or source.whole(number) == 1:
        out.copy("eval.n_samples", number)
    else:
        out.differs(number, "one answer: at temperature 0, SkyRL's default, all are the same")
    for name in ("top_p", "top_k", "min_p"):
        key, training = (
            f"generator.eval_sampling_params.{name}",
            f"generator.sampling_params.{name}",
        )
        if source.number(heat) and source.value(key) != source.value(training):
            out.set(f"eval.{name}", max(source.number(key), 0), key)
        else:
            out.nothing(key, f"the same as rollout.{name}, or answers are greedy")


def _set_environment(source: SourceOptions, out: Outcome, adapter: str) -> None:
    name, turns = source.text(_ENV), "generator.max_turns"
    if name in _MATH:
        label, how = _MATH[name]
        out.set("reward.use", ["math"], _ENV)
        out.set("reward.math.label_key", label, _ENV)
        out.differs(
            _ENV,
            f"math compares the final answer; {name} {how}. Rows with another env_class need a reward or "
            "an environment of their own",
        )
        return
    own = [key for key in source.entries if key.startswith(f"environment.skyrl_gym.{name}.")]
    settings = {key.rpartition(".")[2]: source.value(key) for key in own}
    out.files[adapter] = skyrl_environment(name, source.whole(turns), settings)
    out.set("env.use", [f"{adapter}:{SKYRL_NAME}"], _ENV, *own)
    out.set("rollout.executor", "multi_turn", _ENV)
    out.copy("rollout.multi_turn.max_turns", turns)
    out.differs(
        _ENV,
        f"{adapter} plays {name} of SkyRL-gym (pip install skyrl-gym). Register an environment of your own there, as "
        "your program does",
    )


def _set_sizes(source: SourceOptions, out: Outcome) -> None:
    mini, micro = "trainer.policy_mini_batch_size", "trainer.micro_train_batch_size_per_gpu"
    group, budget = "generator.n_samples_per_prompt", "trainer.max_tokens_per_microbatch"
    prompts, samples = source.whole("trainer.train_batch_size"), source.whole(group)
    size = math.gcd(prompts, max(source.whole(mini), 1))
    comment = f"{size} prompts x {samples} samples; updates in a step: {prompts // size}"
    out.set("train.batch_size", size * samples, mini, group, comment=comment)
    limit, prompt = "generator.max_input_length", "trainer.max_prompt_length"
    longest = source.whole(prompt if source.value(limit) is None else limit) + source.whole(ANSWER)
    if source.value(limit) is not None or "env.use" in out.settings:
        comment = "the longest input of a turn, and its answer"
        out.set("rollout.max_length", longest, limit, prompt, ANSWER, comment=comment)
    held_out = "generator.eval_sampling_params.max_generate_length"
    if source.value(held_out) not in (None, source.value(ANSWER)):
        out.copy("eval.max_new_tokens", held_out)
        if "rollout.max_length" in out.settings:
            answers = longest - source.whole(ANSWER) + source.whole(held_out)
            out.set("eval.max_length", answers, limit, prompt, held_out, comment=comment)
    else:
        out.nothing(held_out, "the same as rollout.max_new_tokens")
    path, rows = "train.max_tokens_per_micro_batch", source.whole(micro)
    if source.whole(budget) > 0:
        out.set(path, max(source.whole(budget), longest), budget)
    else:
        comment = f"{rows} x {longest}; a matter of memory, the gradient does not depend on it"
        out.set(path, rows * longest, micro, comment=comment)


def _num_gpus(source: SourceOptions) -> int:
    nodes, each = (f"{PLACEMENT}.policy_num_{name}" for name in ("nodes", "gpus_per_node"))
    return max(source.whole(nodes) * source.whole(each), 1)


def _set_backend(source: SourceOptions, out: Outcome) -> None:
    strategy, parallel = "trainer.strategy", f"{POLICY}.sequence_parallel_size"
    is_fsdp, width = source.text(strategy) in ("fsdp", "fsdp2"), max(source.whole(parallel), 1)
    backend = set_backend(out, _num_gpus(source), width, strategy, parallel, is_fsdp=is_fsdp)
    if backend == "deepspeed":
        out.differs(strategy, "DeepSpeed shares weights, gradients and state at stage 3")
    out.copy(f"backend.{backend}.gradient_checkpointing", "trainer.gradient_checkpointing")
    engine = f"{ENGINE}.backend"
    out.set("engine.name", "vllm", engine)
    if source.text(engine) != "vllm":
        out.differs(engine, f"there is no engine {source.text(engine)}; vLLM generates")


def _set_gpus(source: SourceOptions, out: Outcome) -> None:
    gpus = [f"{PLACEMENT}.policy_num_{name}" for name in ("nodes", "gpus_per_node")]
    shares, engines = f"{PLACEMENT}.colocate_all", f"{ENGINE}.num_engines"
    width, number = f"{ENGINE}.tensor_parallel_size", _num_gpus(source)
    if source.flag(shares):
        out.set("runtime.name", "ray" if number > 1 else "local", *gpus, shares)
        if number > 1:
            out.set("runtime.ray.gpus", number, *gpus, engines)
        if source.whole(width) > 1:
            out.differs(
                width,
                "an engine that shares its GPUs with trainers has one of them, and holds the whole model",
            )
        return
    roles = ["policy"] + ["critic"] * (source.text(ESTIMATOR) == "gae")
    roles += ["reference"] * bool(kl_mode(source))
    out.set("runtime.name", "ray", shares)
    for role in roles:
        out.set(f"runtime.ray.ranks.{role}", number, *gpus)
    out.copy("runtime.ray.engines", engines)
    out.set("runtime.ray.colocate", ["+".join(roles)] if len(roles) > 1 else [], shares)
    set_width(out, source.whole(width), width)


def _set_duration(source: SourceOptions, out: Outcome) -> None:
    if source.value(_STEPS) is not None:
        out.copy("train.steps", _STEPS)
    else:
        out.copy("train.epochs", "trainer.epochs")
    keep = "trainer.max_ckpts_to_keep"
    for key, path in (
        ("trainer.eval_interval", "eval.every"),
        ("trainer.ckpt_interval", "checkpoint.every"),
        (keep, "checkpoint.keep"),
    ):
        if source.whole(key) > 0:
            out.copy(path, key)
    if source.whole(keep) <= 0:
        out.differs(keep, "the newest checkpoint.keep = 2 are kept; SkyRL keeps all")
    folder, mode = "trainer.ckpt_path", "trainer.resume_mode"
    if source.given(folder):
        out.set("output", source.text(folder).rstrip("/"), folder)
        out.differs(folder, "it is the run folder, with checkpoints/ and, at the end, model/")
    if source.text(mode) == "latest":
        comment = "goes on if the run folder has a checkpoint of ours; SkyRL's cannot be read"
        out.set("resume.checkpoint", "auto", mode, comment=comment)


def _set_ahead(source: SourceOptions, out: Outcome, *, runs_ahead: bool) -> None:
    enabled, steps = (f"trainer.fully_async.{name}" for name in ("enabled", "max_staleness_steps"))
    if source.flag(enabled) or source.given(steps):
        out.copy("rollout.max_staleness", steps, enabled)
        out.set("rollout.in_flight_updates", True, enabled)
    elif runs_ahead:
        out.set("rollout.max_staleness", 1, comment="the program generates one step ahead")


def _set_role(source: SourceOptions, out: Outcome, prefix: str, role: str) -> None:
    """Set a role's schedule and adapter."""
    warmup, steps = f"{prefix}.optimizer_config.num_warmup_steps", source.value(_STEPS)
    mini = max(source.whole("trainer.policy_mini_batch_size"), 1)
    updates = max(source.whole("trainer.train_batch_size") // mini, 1)
    number = updates * steps if isinstance(steps, int) else None
    set_form(source, out, f"{prefix}.optimizer_config.scheduler", role)
    set_warmup(out, warmup, role, source.whole(warmup), number)
    keys = {name.removesuffix("_modules"): f"{prefix}.model.lora.{name}" for name in _LORA}
    if source.whole(keys["rank"]) > 0:
        out.set(f"{role}.adapter", "lora", keys["rank"])
        set_lora(source, out, f"{role}.lora", keys)
