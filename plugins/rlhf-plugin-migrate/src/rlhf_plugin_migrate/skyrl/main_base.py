"""Migration of SkyRL's ``main_base``: the table's plain entries, then the rules by which keys act together."""

from __future__ import annotations

import math

from ..table.entries import Rule
from ..table.outcome import Outcome
from ..table.source import SourceOptions
from ..verl.common.sets import named
from ..verl.common.trainer import names_of
from .algorithm import (
    ALGORITHM,
    ESTIMATOR,
    kl_mode,
    set_advantage,
    set_correction,
    set_kl,
    set_loss,
)
from .environment import NAME, environment_text

POLICY, PLACEMENT, ENGINE = "trainer.policy", "trainer.placement", "generator.inference_engine"
_ENV, _ANSWER = "environment.env_class", "generator.sampling_params.max_generate_length"
_MATH = {
    "gsm8k": ("reward_spec.ground_truth", "wants #### before it, too"),
    "aime": ("reward_model.ground_truth", "gives -1 for a wrong one"),
}
"""Environment that compares final answers -> the entry of its rows with the answer, and how it differs."""
_SCHEDULES = {"constant_with_warmup": "constant"} | {
    name: name for name in ("constant", "cosine", "linear")
}
_LOGGERS = ("wandb", "mlflow", "trackio")


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
    _set_sizes(source, out)
    _set_backend(source, out)
    _set_gpus(source, out)
    for rule in (set_advantage, set_loss, set_kl, set_correction, _set_duration, _set_logs):
        rule(source, out)
    _set_ahead(source, out, runs_ahead=runs_ahead)
    _set_role(source, out, POLICY, "actor")
    if source.text(ESTIMATOR) == "gae":
        _set_role(source, out, "trainer.critic", "critic")
        clip = f"{ALGORITHM}.value_clip"
        out.set("critic.value_clip", source.number(clip), clip)
        out.set(
            "critic.path", source.value("trainer.critic.model.path"), "trainer.critic.model.path"
        )
    else:
        for path in [path for path in out.settings if path.startswith("critic.")]:
            for key in out.settings.pop(path).sources:
                out.notes.pop(key, None)
                out.nothing(key, "the estimator has no critic, in SkyRL neither")
    used = {key for setting in out.settings.values() for key in setting.sources}
    for key, entry in source.entries.items():
        if isinstance(entry.fate, Rule) and key not in used and key not in out.notes:
            out.nothing(key, "it changes nothing with the other keys")
    return out


def _set_rows(source: SourceOptions, out: Outcome) -> None:
    train, held_out = "data.train_data", "data.val_data"
    out.set("data.train", names_of(source, train), train)
    if files := names_of(source, held_out):
        out.set("eval.data", named(files), held_out)
    out.set("data.on_bad_row", "skip", comment="a prompt that is too long is left out, as in SkyRL")
    heat = "generator.eval_sampling_params.temperature"
    number = "generator.eval_n_samples_per_prompt"
    out.set("eval.temperatures", [source.number(heat)], heat)
    if source.number(heat) or source.whole(number) == 1:
        out.set("eval.n_samples", source.whole(number), number)
    else:
        out.differs(number, "one answer: at temperature 0, SkyRL's default, all are the same")


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
    out.files[adapter] = environment_text(name, source.whole(turns), settings)
    out.set("env.use", [f"{adapter}:{NAME}"], _ENV, *own)
    out.set("rollout.executor", "multi_turn", _ENV)
    out.set("rollout.multi_turn.max_turns", source.whole(turns), turns)
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
    longest = source.whole(prompt if source.value(limit) is None else limit) + source.whole(_ANSWER)
    if source.value(limit) is not None or "env.use" in out.settings:
        comment = "the longest input of a turn, and its answer"
        out.set("rollout.max_length", longest, limit, prompt, _ANSWER, comment=comment)
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
    ulysses = max(source.whole(parallel), 1)
    is_fsdp = source.text(strategy) in ("fsdp", "fsdp2") and ulysses == 1
    backend = "deepspeed" if not is_fsdp else "fsdp" if _num_gpus(source) > 1 else "torch"
    out.set("backend.name", backend, strategy)
    if backend == "deepspeed":
        out.set("backend.deepspeed.zero_stage", 3, strategy)
        out.set("backend.deepspeed.sequence_parallel", ulysses, parallel)
        out.differs(strategy, "DeepSpeed shares weights, gradients and state at stage 3")
    checkpointing = "trainer.gradient_checkpointing"
    out.set(f"backend.{backend}.gradient_checkpointing", source.flag(checkpointing), checkpointing)
    engine = f"{ENGINE}.backend"
    out.set("engine.name", "vllm", engine)
    if source.text(engine) != "vllm":
        out.differs(engine, f"there is no engine {source.text(engine)}; vLLM generates")


def _set_gpus(source: SourceOptions, out: Outcome) -> None:
    gpus = [f"{PLACEMENT}.policy_num_{name}" for name in ("nodes", "gpus_per_node")]
    shares, engines, width = (
        f"{PLACEMENT}.colocate_all",
        f"{ENGINE}.num_engines",
        f"{ENGINE}.tensor_parallel_size",
    )
    number, tensor = _num_gpus(source), source.whole(width)
    if source.flag(shares):
        out.set("runtime.name", "ray" if number > 1 else "local", *gpus, shares)
        if number > 1:
            out.set("runtime.ray.gpus", number, *gpus, engines)
        if tensor > 1:
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
    out.set("runtime.ray.engines", source.whole(engines), engines)
    out.set("runtime.ray.colocate", ["+".join(roles)] if len(roles) > 1 else [], shares)
    if tensor > 1:
        out.set("engine.vllm.args.tensor_parallel_size", tensor, width)
        out.set("runtime.ray.gpus_per.engine", tensor, width)


def _set_duration(source: SourceOptions, out: Outcome) -> None:
    steps, epochs, keep = (
        "trainer.max_training_steps",
        "trainer.epochs",
        "trainer.max_ckpts_to_keep",
    )
    if source.value(steps) is not None:
        out.set("train.steps", source.whole(steps), steps)
    else:
        out.set("train.epochs", source.whole(epochs), epochs)
    for key, path in (
        ("trainer.eval_interval", "eval.every"),
        ("trainer.ckpt_interval", "checkpoint.every"),
        (keep, "checkpoint.keep"),
    ):
        if source.whole(key) > 0:
            out.set(path, source.whole(key), key)
    if source.whole(keep) <= 0:
        out.differs(keep, "the newest checkpoint.keep = 2 are kept; SkyRL keeps all")
    folder, mode = "trainer.ckpt_path", "trainer.resume_mode"
    if source.given(folder):
        out.set("output", source.text(folder).rstrip("/"), folder)
        out.differs(folder, "it is the run folder, with checkpoints/ and, at the end, model/")
    if source.text(mode) == "latest":
        comment = "goes on if the run folder has a checkpoint of ours; SkyRL's cannot be read"
        out.set("resume.checkpoint", "auto", mode, comment=comment)


def _set_logs(source: SourceOptions, out: Outcome) -> None:
    logger = "trainer.logger"
    if ours := [name for name in names_of(source, logger) if name in _LOGGERS]:
        out.set("log.to", list(ours), logger)
    for key, path in (("trainer.project_name", "project"), ("trainer.run_name", "name")):
        for name in {"wandb", "trackio"} & set(ours):
            out.set(f"log.{name}.{path}", source.text(key), key)
    buffer = f"{ALGORITHM}.overlong_buffer_len"
    if source.value(buffer) is not None:
        factor = f"{ALGORITHM}.overlong_buffer_penalty_factor"
        out.set("reward.shapers", ["overlong"], buffer)
        out.set("reward.overlong.buffer", source.whole(buffer), buffer)
        out.set("reward.overlong.factor", source.number(factor), factor)
        out.set("reward.overlong.max_tokens", source.whole(_ANSWER), buffer, _ANSWER)


def _set_ahead(source: SourceOptions, out: Outcome, *, runs_ahead: bool) -> None:
    enabled, steps = (f"trainer.fully_async.{name}" for name in ("enabled", "max_staleness_steps"))
    if source.flag(enabled) or source.given(steps):
        out.set("rollout.max_staleness", source.whole(steps), steps, enabled)
        out.set("rollout.in_flight_updates", True, enabled)
    elif runs_ahead:
        out.set("rollout.max_staleness", 1, comment="the program generates one step ahead")


def _set_role(source: SourceOptions, out: Outcome, prefix: str, role: str) -> None:
    """Set a role's schedule and adapter."""
    key, warmup = (
        f"{prefix}.optimizer_config.{name}" for name in ("scheduler", "num_warmup_steps")
    )
    name, number, steps = (
        source.text(key),
        source.whole(warmup),
        source.value("trainer.max_training_steps"),
    )
    out.set(f"{role}.lr_schedule", _SCHEDULES.get(name, "constant"), key)
    if name not in _SCHEDULES:
        out.missing(key, f"no schedule is known to be {name}; the rate stays constant")
    if number and not isinstance(steps, int):
        out.missing(
            warmup,
            f"a warm-up is a share of all updates, whose number depends on the rows: divide {number} by it for "
            f"{role}.warmup_ratio, which stays 0.03",
        )
    else:
        mini = max(source.whole("trainer.policy_mini_batch_size"), 1)
        updates = max(source.whole("trainer.train_batch_size") // mini, 1) * int(str(steps or 1))
        out.set(f"{role}.warmup_ratio", round(min(number / updates, 1.0), 6), warmup)
    rank, alpha, dropout, target, exclude = (
        f"{prefix}.model.lora.{part}"
        for part in ("rank", "alpha", "dropout", "target_modules", "exclude_modules")
    )
    if source.whole(rank) > 0:
        out.set(f"{role}.adapter", "lora", rank)
        out.set(f"{role}.lora.rank", source.whole(rank), rank)
        out.set(f"{role}.lora.alpha", source.whole(alpha), alpha)
        out.set(f"{role}.lora.dropout", source.number(dropout), dropout)
        for part, path in ((target, "target"), (exclude, "exclude")):
            if (names := names_of(source, part)) and names != ["all-linear"]:
                out.set(f"{role}.lora.{path}", names, part)
