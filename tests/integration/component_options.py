"""The options of every component that a training run may choose: another value for each, the options beside which it
acts, and those that a run without models cannot show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from rlhf_config.option_tree import Selector
from rlhf_config.sections import fields_of
from rlhf_config.train import SLOTS, TRAIN

from .first_party import installed
from .options_at_resume import another, at


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentOption:
    """An option of a component, or of every component of a slot."""

    slot: Selector
    name: str
    """Of the component."""
    option: str
    info: FieldInfo

    @property
    def path(self) -> str:
        return f"{self.slot.path.rpartition('.')[0]}.{self.name}.{self.option}"

    @property
    def chosen(self) -> dict[str, Any]:
        """The layer of options that chooses the component."""
        return at(self.slot.path, [self.name] if self.slot.many else self.name)


def every_component_option() -> Iterator[ComponentOption]:
    """Yield every option of every component that this repository has for a slot of ``rlhf train``."""
    for slot in SLOTS:
        for entry in installed(slot.hook):
            shared = TRAIN.shared.get(slot.path)
            for model in (entry.component.config, *([shared] if shared else ())):
                for option, info in fields_of(model):
                    yield ComponentOption(slot=slot, name=entry.name, option=option, info=info)


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return one layer of options that has those of all, later ones winning."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
            whole[key] = merged(whole[key], value) if both else value
    return whole


CRITIC = {"algo": {"advantage": {"estimator": "gae"}}}
CUT = {"rollout": {"max_new_tokens": 4}}
"""Some answers are longer, and are cut off."""
SETS = {
    **at("rollout.n_samples_per_prompt", 6),
    **at("algo.advantage.grpo_passk", {"advantage": "analytic", "k": 2, "correct_above": 7.5}),
}
JSD = {"divergence": "top_k", "direction": "jsd", "teacher_share": 0.5}
SCENES: dict[str, dict[str, Any]] = {
    "critic.optim": CRITIC,
    "critic.lr_schedule": CRITIC,
    "actor.sgd.nesterov": at("actor.sgd.momentum", 0.5),
    "critic.sgd.nesterov": at("critic.sgd.momentum", 0.5),
    "algo.loss.distill": at("algo", {"teacher": {"path": "model"}, "kl": {"mode": "loss"}}),
    "algo.terms.distill": at("algo.teacher.path", "model"),
    "algo.terms.sft": at("supervised.data", ["held_out.jsonl"]),
    "algo.advantage.gae.bootstrap_truncated": CUT,
    "algo.advantage.gdpo": at("reward.shapers", []),
    "algo.advantage.grpo_passk.advantage": SETS,
    "algo.advantage.grpo_passk.k": SETS,
    "algo.advantage.grpo_passk.correct_above": SETS,
    "algo.loss.distill.direction": at("algo.loss.distill.divergence", "top_k"),
    "algo.loss.distill.teacher_share": at("algo.loss.distill", JSD),
    "algo.terms.distill.direction": at("algo.terms.distill.divergence", "top_k"),
    "algo.terms.distill.teacher_share": at("algo.terms.distill", JSD),
    "algo.correction.importance.gate": at("algo.correction.importance", {"low": None, "high": 3.0}),
    "actor.muon.adjust_lr": at("actor.muon.adam_lr", 0.001),
    "critic.muon.adjust_lr": at("critic.muon.adam_lr", 0.001),
    "backend.deepspeed.leaf_modules": at("backend.deepspeed.zero_stage", 3),
    "backend.deepspeed.offload_param": at("backend.deepspeed.zero_stage", 3),
    "backend.deepspeed.pin_memory": at("backend.deepspeed.offload_optimizer", True),
    "algo.correction.importance": at("algo.correction.importance", {"mode": "mask", "low": 0.5}),
    "reward.use": at("reward.regex.pattern", "b"),
    "reward.length_bonus.per_token": at("reward.length_bonus.mode", "token"),
    "reward.length_bonus.only_correct": at("reward.length_bonus.correct_above", 4.0),
    "reward.length_bonus.correct_above": at("reward.length_bonus.only_correct", True),
    "reward.overlong": at("reward.overlong", {"max_tokens": 8, "buffer": 6}),
    "reward.stop_properly": CUT,
}
"""Slot, component or option -> the options with which it acts, of the run that is begun and of those that go on."""
OTHER: dict[str, Any] = {
    "betas": [0.5, 0.75],
    "adam_betas": [0.5, 0.75],
    "adam_names": ["embed"],
    "correct_above": 4.0,
    "raft.threshold": 4.0,
    "clip.low": 4.0,
    "clip.high": 5.0,
    "overlong.factor": 2.0,
    "importance.mode": "clip",
    "importance.gate": "binary_kl",
    "label_key": "prompt",
    "extract": "b",
    "answer_after": "=",
    "regex.pattern": "c",
    "pass_env": ["HOME"],
    "timeout_s": 120.0,
    "start_timeout_s": 120.0,
    "match_timeout_s": 2.0,
    "step_timeout_s": 2.0,
    "kv_cache_gib": 2.0,
    "embedded.block": 32,
    "deepspeed.leaf_modules": ["Experts"],
    "inverse_sqrt.timescale": 3,
    "aggregation": "seq-mean-token-sum-norm",
    "topr.aggregation": "token-mean",
    "distill.direction": "forward",
    "args": {"seed": 1},
}
"""Option, or component and option -> a value that no rule of types gives, or that acts on these answers of 2 to 8
letters."""


def scene_of(one: ComponentOption) -> dict[str, Any]:
    """Return the options with which another value of an option shows in a step."""
    keys = (one.slot.path, one.path.rpartition(".")[0], one.path)
    return merged(one.chosen, *(SCENES[key] for key in keys if key in SCENES))


def another_of(one: ComponentOption, now: Any) -> Any:
    """Return a value that the option may have and does not have now; None if no rule gives one."""
    for key in (f"{one.name}.{one.option}", one.option):
        if key in OTHER:
            return OTHER[key]
    return another(one.path, one.info, now)
