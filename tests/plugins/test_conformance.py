"""Every installed component keeps the promises of its contract, or says which usual property it does not have and why.

A component that is installed is tested here without anybody naming it. What it does not keep goes into
``EXPECTED_FAILURES``, with the reason; a reason that no longer holds fails too.
"""

from __future__ import annotations

import pytest

from rlhf_core import plugins
from rlhf_core.errors import ConfigError, MissingDependency
from rlhf_testing.conformance import (
    CHECKED_HOOKS,
    applying,
    checks_of,
    has_required_options,
    subject,
)

CREDITED_TO_ITS_TOKEN = (
    "the gradient of a sequence's ratio is credited to each token with its own advantage, as in GSPO-token; it is not "
    "the derivative of the sum, which would count a sequence's length twice"
)

IS_A_WEIGHT = "the ratio is a weight of the log-prob: no gradient flows through it"

EXPECTED_FAILURES: dict[str, dict[str, str]] = {
    "agents:echo_after_hint": {
        "check_no_constant_answer_wins": "a toy: one digit in few tasks, and every digit earns something",
        "check_no_single_word_wins": "a toy: repeating a word of the hint is the task",
    },
    "env_guess_number:guess_number": {
        "check_splits_do_not_overlap": "a task is a secret from 0 to 99, so both splits ask for the same numbers"
    },
    "algorithms:gspo": {
        "check_at_ratio_one_it_is_reinforce": "a row's tokens share one ratio, so each gets the row's mean advantage"
    },
    "algorithms:gspo_token": {"check_gradient_is_the_derivative": CREDITED_TO_ITS_TOKEN},
    "algorithms:cispo": {"check_gradient_is_the_derivative": IS_A_WEIGHT},
    "algorithms:dppo": {"check_gradient_is_the_derivative": IS_A_WEIGHT},
    "algorithms:topr": {"check_gradient_is_the_derivative": IS_A_WEIGHT},
    "supervised:distill": {
        "check_gradient_is_the_derivative": "a policy gradient: the log-ratio to the teacher is a detached advantage"
    },
    "supervised:distill-divergence=top_k": {},  # an exact divergence, with an exact gradient
    "supervised:distill-divergence=top_k-direction=forward": {},
    "algorithms:grpo_passk": {
        "check_better_samples_get_more": "only the best sample of a prompt gets anything: its lead",
        "check_more_reward_is_more_advantage": "the same",
    },
    "algorithms:grpo_passk-advantage=analytic-k=2": {
        "check_shifted_rewards_change_nothing": "a shift takes samples over the line between right and wrong",
        "check_more_reward_is_more_advantage": "samples are right or wrong; how much they earned does not count",
    },
    "algorithms:maxrl": {
        "check_shifted_rewards_change_nothing": "it divides by the mean reward of the prompt, so the level counts"
    },
    "algorithms:apo_down": {
        "check_chosen_answers_become_likelier": "a chosen answer is not pulled at first, and becomes rarer afterwards"
    },
    "algorithms:dpo-f_divergence=js_divergence": {
        "check_loss_is_of_the_rewards": "rewards are not linear in log-ratios"
    },
    "algorithms:dpo-f_divergence=alpha_divergence-alpha=0.3": {
        "check_loss_is_of_the_rewards": "the same"
    },
    "algorithms:dpo-f_divergence=forward_kl": {"check_loss_is_of_the_rewards": "the same"},
    "algorithms:ipo": {
        "check_loss_is_of_the_rewards": "beta is the distance of the log-ratios, not a factor of them"
    },
    "algorithms:ipo-length_normalized=True": {
        "check_loss_is_of_the_rewards": "the same",
        "check_lengths_do_not_count": "log-ratios are per token",
    },
    "algorithms:orpo": {"check_lengths_do_not_count": "an answer's log-prob is per token"},
    "algorithms:simpo": {"check_lengths_do_not_count": "an answer's log-prob is per token"},
    "algorithms:opo": {
        "check_rows_of_an_episode_count_once": "an episode weighs by its tokens, and more rows are more tokens"
    },
    "algorithms:raft-keep=best": {
        "check_more_reward_is_more_advantage": "all but the best samples of a prompt get 0"
    },
    "algorithms:optimal_token_baseline-tail=zero": {
        "check_equal_rewards_teach_nothing": "the last tokens of a group's longest sample have no baseline, as in verl",
        "check_shifted_rewards_change_nothing": "the same",
    },
    "sequence_losses:gmpo": {"check_gradient_is_the_derivative": CREDITED_TO_ITS_TOKEN},
    "sequence_losses:luspo": {"check_gradient_is_the_derivative": CREDITED_TO_ITS_TOKEN},
    "sequence_losses:vespo": {
        "check_gradient_is_the_derivative": "the kernel is a weight of the log-prob, through which no gradient flows"
    },
}
"""Qualified name, or with options as they are labeled below -> check -> why."""

VARIANTS: dict[str, list[dict[str, object]]] = {
    "algorithms:ppo": [{"dual_clip": 3.0}, {"clip_high": 0.28}],
    "algorithms:gae": [
        {"bootstrap_truncated": True},
        {"gamma": 0.9, "lambda_": 0.5},
        {"whiten": "none"},
        {"lambda_": 1.0},
    ],
    "algorithms:dpo": [
        {"beta": 2.0},
        {"f_divergence": "js_divergence"},
        {"f_divergence": "alpha_divergence", "alpha": 0.3},
        {"f_divergence": "forward_kl"},
    ],
    "algorithms:apo_zero": [{"beta": 2.0}],
    "algorithms:apo_down": [{"beta": 2.0}],
    "algorithms:bco": [{"beta": 2.0}],
    "algorithms:aot": [{"beta": 2.0}, {"label_smoothing": 0.3}],
    "algorithms:aot_unpaired": [{"beta": 2.0}, {"label_smoothing": 0.3}],
    "algorithms:cdpo": [{"label_smoothing": 0.4}],
    "algorithms:robust": [{"label_smoothing": 0.4}],
    "algorithms:ipo": [{"length_normalized": True}],
    "algorithms:kto": [{"desirable_weight": 2.0}, {"undesirable_weight": 0.5}],
    "algorithms:orpo": [{"lambda_": 2.0}],
    "algorithms:simpo": [{"gamma": 0.0}, {"beta": 10.0, "gamma": 5.0}],
    "algorithms:reinforce": [{"whiten": "mean"}, {"gamma": 0.9, "whiten": "none"}],
    "algorithms:raft": [{"keep": "best"}],
    "algorithms:optimal_token_baseline": [{"tail": "zero"}],
    "algorithms:reinforce_baseline": [{"whiten": "none"}, {"whiten": "mean"}],
    "algorithms:group_norm": [{"std": "population"}],
    "algorithms:gdpo": [{"whiten": "none"}],
    "algorithms:gigpo": [{"norm": "none"}, {"step_weight": 0.0}],
    "algorithms:grpo_passk": [{"std": "none"}, {"advantage": "analytic", "k": 2}],
    "lora:lora": [{"serve": "merged", "dropout": 0.2, "use_rslora": True}],
    "lora:qlora": [{"dropout": 0.2, "double_quantization": False}],
    "algorithms:adam": [{"weight_decay": 0.1}],
    "algorithms:sgd": [{"momentum": 0.9, "nesterov": True}],
    "algorithms:muon": [{"adjust_lr": "original", "adam_lr": 0.01}],
    "algorithms:wsd": [{"form": "linear", "decay_share": 1.0}],
    "algorithms:inverse_sqrt": [{"timescale": 7}],
    "algorithms:curriculum": [{"uniform": 1.0, "memory": 0.0}],
    "algorithms:stop_properly": [{"coef": -0.5}],
    "algorithms:length_bonus": [{"mode": "token"}],
    "algorithms:overlong": [{"max_tokens": 12}],
    "algorithms:normalize": [{"of": "episode"}],
    "algorithms:dppo": [{"divergence": "kl"}],
    "algorithms:decoupled_ppo": [{"beyond": "truncate"}],
    "agents:multi_turn": [{"max_turns": 2}],
    "supervised:distill": [
        {"divergence": "top_k"},
        {"divergence": "top_k", "direction": "forward"},
    ],
    "algorithms:importance": [
        {"level": level, "mode": mode, "gate": gate, "low": low, "high": high}
        for level in ("token", "sequence", "geometric")
        for mode, gate, low, high in (
            ("truncate", "ratio", None, 2.0),
            ("clip", "ratio", 0.5, 2.0),
            ("mask", "ratio", 0.5, 2.0),
            ("mask", "binary_kl", None, 0.01),
            ("mask", "tv", None, 0.1),
        )
    ],
}
"""Qualified name -> options that make it another component."""

OPTIONS: dict[str, dict[str, object]] = {
    "rewards:regex": {"pattern": r"\d+"},
    "algorithms:by_column": {"key": "level"},
}
"""Of components with required options; those without an entry are tested by their own tests alone."""


OWN_TESTS = {
    "vllm:vllm",
    "ray:ray",
    "deepspeed:deepspeed",
    "loggers:wandb",
    "loggers:trackio",
    "loggers:mlflow",
    "tools:tools",
    "bridge_harbor:harbor",
    "bridge_openenv:openenv",
}
"""They start processes, write outside of a run's folder, or are nothing without options. Tests of them:
test_contract.py in tests/plugins/vllm, tests/plugins/ray and tests/plugins/loggers, and tests/plugins/deepspeed,
tests/plugins/tools and tests/contrib/bridges."""


NAMED_AFTER_OTHERS = ("rlhf_commands", "rlhf_presets")
"""Kinds of which some have the name of a loss or of an estimator; they have no variants."""


def _subjects():
    for hook in CHECKED_HOOKS:
        for entry in plugins.load("").registries[hook]:
            if entry.qualified in OWN_TESTS:
                continue
            if not has_required_options(entry):
                yield hook, subject(entry, entry.qualified)
            elif entry.qualified in OPTIONS:
                yield hook, subject(entry, entry.qualified, **OPTIONS[entry.qualified])
            if hook in NAMED_AFTER_OTHERS:
                continue
            for options in VARIANTS.get(entry.qualified, []):
                words = "-".join(f"{name}={value}" for name, value in options.items())
                yield hook, subject(entry, f"{entry.qualified}-{words}", **options)


def _parameters():
    for hook, tried in _subjects():
        announced = EXPECTED_FAILURES.get(
            tried.label, EXPECTED_FAILURES.get(tried.origin.qualified, {})
        )
        for check in applying(hook, tried):
            marks = []
            if check.name in announced:
                reason = announced[check.name]
                marks.append(pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError))
            yield pytest.param(check, tried, id=f"{tried.label}-{check.name}", marks=marks)


@pytest.mark.parametrize(("check", "tried"), list(_parameters()))
def test_a_component_keeps_its_promises(check, tried):
    try:
        # The factory of a command is the command itself: called with a config it would run.
        tried.origin.load() if check in checks_of("rlhf_commands") else tried.make()
    except (MissingDependency, ConfigError) as error:
        pytest.skip(f"{tried.label} cannot be made here: {error}")

    check(tried)


def test_every_announced_failure_is_of_an_installed_component_and_an_existing_check():
    names = {}
    for hook, tried in _subjects():
        found = {check.name for check in applying(hook, tried)}
        for name in (tried.origin.qualified, tried.label):
            names.setdefault(name, set()).update(found)

    unknown = {
        f"{component}: {check}"
        for component, checks in EXPECTED_FAILURES.items()
        for check in checks
        if component in names and check not in names[component]
    }
    assert unknown == set()
