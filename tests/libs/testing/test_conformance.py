"""The kit itself: needs are honest, announced failures, reports without pytest, and batches that a run could give."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import Field, ValidationError

from rlhf_core import Component, Config, ConfigError, Registered
from rlhf_core.contracts import Advantages, TokenLoss
from rlhf_core.hookspecs import COMPONENT_HOOKS
from rlhf_core.math import advantages_at_tokens, group_mean, rewards_by_turn
from rlhf_testing.conformance import (
    CHECKED_HOOKS,
    Check,
    CheckOutcome,
    applying,
    checks_of,
    parametrize_checks,
    run_checks,
    subject,
)
from rlhf_testing.conformance.loss_inputs import equal_policies, loss_case, loss_inputs
from rlhf_testing.conformance.reward_batches import (
    WEIGHTS,
    mixed_rows,
    permuted,
    reward_batch,
    tensors_of,
)
from rlhf_testing.errors import has_code

LOSSES, ESTIMATORS = "rlhf_policy_losses", "rlhf_advantage_estimators"
ALL_NEEDS = frozenset(
    {
        "values",
        "final_values",
        "old_logprobs",
        "sum_pi_squared",
        "greedy_rewards",
        "observations",
        "ref_logprobs",
        "rollout_logprobs",
        "entropy",
        "teacher_logprobs",
        "teacher_top_k",
    }
)


class LossConfig(Config):
    scale: float = Field(1.0, description="times the loss")
    reference: bool = Field(False, description="reads the reference too")

    def needed_by_options(self):
        return frozenset({"ref_logprobs"}) if self.reference else frozenset()


class Loss:
    def __init__(self, config):
        self.config = config

    def __call__(self, inputs):
        if self.config.reference:
            assert inputs.ref_logprobs is not None
        ratio = (inputs.policy_logprobs - inputs.old_logprobs).clamp(-20, 20).exp()
        return TokenLoss(loss=-self.config.scale * inputs.advantages * ratio)


class DishonestLoss(Loss):
    def __call__(self, inputs):
        return TokenLoss(loss=inputs.policy_logprobs - inputs.ref_logprobs)


def baseline(batch):
    by_turn = rewards_by_turn(batch)
    centered = by_turn - group_mean(by_turn, batch.group, batch.episode)
    return Advantages(advantages=advantages_at_tokens(centered, batch))


class Remembering:
    """An estimator with a running mean of all rewards, which no checkpoint keeps."""

    def __init__(self, config):
        self.mean = 0.0

    def __call__(self, batch):
        before = self.mean
        self.mean += 0.1 * (float(batch.rewards.mean()) - before)
        return Advantages(advantages=advantages_at_tokens(rewards_by_turn(batch) - before, batch))


def component(factory=Loss, **changes):
    described = {"name": "mine", "factory": factory, "config": LossConfig}
    return Component(**{**described, "provides": {"off_policy"}, **changes})


def failures(outcomes):
    return {outcome.check for outcome in outcomes if outcome.failed}


def test_a_right_component_passes_without_pytest():
    code = (
        "import sys; sys.modules['pytest'] = None\n"
        "from rlhf_testing.conformance import run_checks\n"
        "from rlhf_core import plugins\n"
        "entry = plugins.load('').get('rlhf_advantage_estimators', 'dr_grpo')\n"
        "assert not any(o.failed for o in run_checks('rlhf_advantage_estimators', entry))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_component_a_registered_one_and_a_factory_can_be_checked():
    for source in (component(), Registered(component(), "x"), lambda: Loss(LossConfig())):
        outcomes = run_checks(LOSSES, source)
        names = {check.run.__name__ for check in checks_of(LOSSES)}
        # Advantages weigh this loss, so one check does not ask it anything.
        assert {outcome.check for outcome in outcomes} == names - {
            "check_advantages_have_no_effect"
        }
        assert failures(outcomes) == set()


@pytest.mark.parametrize(
    ("hook", "answer", "reason"),
    [
        (ESTIMATORS, lambda batch: batch.rewards, "it returned a Tensor; expected Advantages"),
        (LOSSES, lambda inputs: inputs.policy_logprobs, "it returned a Tensor; expected TokenLoss"),
        (
            "rlhf_preference_losses",
            lambda inputs: inputs.chosen.policy,
            "it returned a Tensor; expected PreferenceResult",
        ),
        (
            "rlhf_is_corrections",
            lambda old, rollout, mask: old - rollout,
            "it returned a Tensor; expected Correction",
        ),
    ],
)
def test_an_answer_of_another_type_is_named(hook, answer, reason):
    outcomes = {outcome.check: outcome for outcome in run_checks(hook, lambda: answer)}
    assert outcomes["check_shapes_and_metrics"].reason == reason


def test_what_is_not_declared_is_not_given():
    outcomes = run_checks(LOSSES, component(DishonestLoss))
    assert outcomes[0].reason.endswith(
        "; a column that the needs of the component do not name is None"
    )

    assert all(outcome.failed for outcome in outcomes)
    assert {outcome.error for outcome in outcomes} == {"TypeError"}
    declared = run_checks(LOSSES, component(DishonestLoss, needs=frozenset({"ref_logprobs"})))
    assert "check_shapes_and_metrics" not in failures(declared)


def test_needs_of_option_values_are_given():
    assert failures(run_checks(LOSSES, component(), reference=True)) == set()


def test_an_announced_failure_is_expected_and_one_that_does_not_happen_fails():
    announced = {"check_at_ratio_one_it_is_reinforce": "it is scaled"}
    wrong = run_checks(LOSSES, component(), scale=2.0, expected_failures=announced)
    right = run_checks(LOSSES, component(), expected_failures=announced)

    by_check = {outcome.check: outcome for outcome in wrong}
    assert by_check["check_at_ratio_one_it_is_reinforce"].status == "expected"
    assert failures(wrong) == set()
    assert failures(right) == {"check_at_ratio_one_it_is_reinforce"}


def test_a_usual_property_that_does_not_hold_is_no_failure_without_pytest():
    outcomes = run_checks(LOSSES, component(), scale=2.0)

    by_check = {outcome.check: outcome for outcome in outcomes}
    assert by_check["check_at_ratio_one_it_is_reinforce"].status == "differs"
    assert failures(outcomes) == set()


def test_an_announced_failure_of_an_unknown_check_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"names 'check_nothing'; the checks that apply are",
        check=has_code("config/unknown-name"),
    ):
        run_checks(LOSSES, component(), expected_failures={"check_nothing": "?"})
    with pytest.raises(ConfigError, match="check_nothing", check=has_code("config/unknown-name")):
        parametrize_checks(LOSSES, {"x": component()}, expected_failures={"check_nothing": "?"})


def test_an_unknown_hook_is_refused_and_every_kind_has_checks():
    with pytest.raises(ConfigError, match="'rlhf_losses'", check=has_code("plugin/unknown-hook")):
        checks_of("rlhf_losses")
    assert [hook for hook in COMPONENT_HOOKS if not checks_of(hook)] == []


def test_every_check_says_what_it_promises_and_names_are_unique():
    for hook in CHECKED_HOOKS:
        assert hook in COMPONENT_HOOKS
        checks = checks_of(hook)
        assert len({check.name for check in checks}) == len(checks) > 0
        for check in checks:
            assert check.name.startswith("check_")
            assert len(check.promise) > 20, check.name


@parametrize_checks(
    LOSSES,
    {"once": component(), "twice": subject(component(), scale=2.0)},
    expected_failures={},
)
def test_parametrize_gives_one_test_per_component_and_check(check, subject):
    assert isinstance(check, Check)
    if subject.label == "once":
        check(subject)


def test_parametrize_marks_announced_failures_as_strict():
    announced = {"check_gradient_is_the_derivative": "it stops a gradient"}
    mark = parametrize_checks(LOSSES, {"x": component()}, expected_failures=announced)

    marked = [p for p in mark.args[1] if p.id == "x-check_gradient_is_the_derivative"]
    (xfail,) = marked[0].marks
    assert xfail.name == "xfail"
    assert xfail.kwargs["strict"] is True


def test_group_checks_apply_to_components_that_compare_a_group():
    alone = subject(component(lambda config: baseline, config=Config))
    group = subject(component(lambda config: baseline, config=Config, needs={"group>=2"}))

    names = [{check.name for check in applying(ESTIMATORS, one)} for one in (alone, group)]
    assert "check_equal_rewards_teach_nothing" in names[1] - names[0]


def test_a_crash_is_a_failure_with_its_type():
    def broken(batch):
        raise KeyError("x")

    outcomes = run_checks(ESTIMATORS, component(lambda config: broken, config=Config))

    assert all(outcome.failed and outcome.error == "KeyError" for outcome in outcomes)
    assert isinstance(outcomes[0], CheckOutcome)


def test_a_reward_batch_has_what_is_needed_and_nothing_else():
    bare, full = (
        tensors_of(reward_batch(mixed_rows(), needs)) for needs in (frozenset(), ALL_NEEDS)
    )

    assert set(full) - set(bare) == {
        "values",
        "final_values",
        "old_logprobs",
        "sum_pi_squared",
        "greedy_rewards",
        "observation",
    }


def test_a_reward_batch_is_one_that_a_run_could_give():
    batch = reward_batch(mixed_rows(), ALL_NEEDS, kl=0.1, dtype=torch.float64)
    earned = torch.where(batch.action_mask, batch.token_rewards - batch.kl_penalty, 0.0).sum(dim=1)
    turn_rewards = torch.tensor([sum(row.turn_rewards) for row in mixed_rows()]).double()
    named = sum(WEIGHTS[name] * column for name, column in batch.rewards_by_name.items())

    torch.testing.assert_close(earned, batch.rewards)
    torch.testing.assert_close(named + turn_rewards, batch.rewards)
    assert (batch.kl_penalty[batch.action_mask] <= 0).all()
    assert not batch.final_values[~batch.truncated].any()
    assert not batch.turn[~batch.action_mask].any()
    for prompt in batch.group.unique():
        assert len(batch.greedy_rewards[batch.group == prompt].unique()) == 1


def test_observations_differ_across_prompts_and_are_equal_in_first_turns_of_one():
    batch = reward_batch(mixed_rows(), ALL_NEEDS)
    first = batch.observation[:, 0]

    same_text = first[:, None] == first[None, :]
    same_prompt = batch.group[:, None] == batch.group[None, :]
    assert torch.equal(same_text, same_prompt)


def test_rows_keep_their_numbers_when_they_move():
    order = torch.tensor([3, 1, 2, 0, 4, 5, 9, 8, 7, 6])
    moved = reward_batch([mixed_rows()[i] for i in order], ALL_NEEDS, kl=0.1)
    expected = permuted(reward_batch(mixed_rows(), ALL_NEEDS, kl=0.1), order)

    for name, tensor in tensors_of(moved).items():
        if name not in ("group", "episode", "observation"):
            torch.testing.assert_close(tensor, tensors_of(expected)[name], msg=name)


def test_parts_of_a_step_hold_the_numbers_of_the_whole():
    whole = loss_inputs(loss_case(), ALL_NEEDS)
    part = loss_inputs(loss_case().rows([2, 0]), ALL_NEEDS)

    for name in ("policy_logprobs", "ref_logprobs", "teacher_top_logprobs"):
        expected = getattr(whole, name)[[2, 0]]
        torch.testing.assert_close(
            getattr(part, name)[part.action_mask], expected[part.action_mask]
        )


def test_padding_is_only_at_padding():
    case = loss_case().padded(2, float("nan"))
    for name, column in case.columns.items():
        assert torch.isfinite(column[case.action_mask]).all(), name
        assert torch.isnan(column[~case.action_mask]).all(), name


def test_top_tokens_are_sorted_and_leave_room_for_the_others():
    for name in ("teacher_top_logprobs", "policy_top_logprobs"):
        mass = loss_case().columns[name].exp().sum(-1)
        torch.testing.assert_close(mass, torch.full_like(mass, 0.8))
    top = equal_policies(loss_case()).columns["teacher_top_logprobs"]
    assert (top.diff(dim=-1) <= 0).all()


def test_the_page_lists_every_check_with_its_promise():
    page = (Path(__file__).parents[3] / "docs" / "conformance.md").read_text()

    for hook in CHECKED_HOOKS:
        section = page.partition(f"(`{hook}`)\n")[2].partition("\n##")[0]
        rows = [row for row in section.splitlines() if row.startswith("| `check_")]
        listed = [row.split("`")[1] for row in rows]
        assert listed == [check.name for check in checks_of(hook)]
        for check, row in zip(checks_of(hook), rows, strict=True):
            assert check.usual == ("(usual)" in row), check.name


def test_an_estimator_that_remembers_earlier_batches_is_caught():
    outcomes = run_checks(ESTIMATORS, component(Remembering, config=Config))

    assert "check_same_input_same_output" in failures(outcomes)


class Required(Config):
    path: str = Field(description="file")


def test_a_test_without_required_options_is_told_how_to_give_them():
    registered = Registered(Component(name="r", factory=object, config=Required), "sample")
    with pytest.raises(ValidationError) as caught:
        subject(registered)
    assert caught.value.__notes__ == [
        "Give the options in the test: rlhf_testing.conformance.subject(REGISTERED, path=...)"
    ]
