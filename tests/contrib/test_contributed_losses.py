"""What holds for every contributed loss: its registration, padding, cutting into micro-batches, extremes."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from rlhf_core import Config, plugins
from rlhf_core.contracts import LossInputs, merge_metrics, metric_values
from rlhf_plugin_covariance.covariance import ClipCovConfig, KlCovConfig
from rlhf_plugin_sequence_losses.gmpo import GmpoConfig
from rlhf_plugin_sequence_losses.luspo import LuspoConfig
from rlhf_plugin_sequence_losses.vespo import VespoConfig
from rlhf_plugin_soft_losses.sapo import SapoConfig

NAN = float("nan")
HOOK = "rlhf_policy_losses"

# qualified name: needs, conflicts, provides
DECLARED = {
    "covariance:clip_cov": (
        {"old_logprobs"},
        set(),
        {"prepares_step", "aggregation:token-mean", "off_policy"},
    ),
    "covariance:kl_cov": (
        {"old_logprobs"},
        set(),
        {"prepares_step", "aggregation:token-mean", "off_policy"},
    ),
    "sequence_losses:gmpo": (set(), set(), {"aggregation:seq-mean-token-mean", "off_policy"}),
    "sequence_losses:luspo": (set(), set(), {"aggregation:seq-mean-token-sum-norm", "off_policy"}),
    "sequence_losses:vespo": (set(), set(), {"aggregation:token-mean", "off_policy"}),
    "soft_losses:sapo": (set(), set(), {"aggregation:seq-mean-token-mean", "off_policy"}),
    "soft_losses:gpg": (set(), set(), {"aggregation:token-mean"}),
}

# Options with which each loss does what sets it apart on the random step.
CASES = {
    "clip_cov": {"fraction": 0.3, "cov_low": 0.2, "clip_low": 0.2, "clip_high": 0.2},
    "kl_cov": {"fraction": 0.3},
    "gmpo": {"clip_low": 0.2, "clip_high": 0.2},
    "luspo": {"clip_low": 0.05, "clip_high": 0.05},
    "vespo": {"behavior": "rollout"},
    "sapo": {},
    "gpg": {},
}


@pytest.fixture(scope="module")
def installed():
    return plugins.load()


@pytest.fixture(params=CASES)
def loss(request, installed):
    registered = installed.get(HOOK, request.param)
    return registered.build(registered.validate(CASES[request.param]))


def gradient_of(loss, inputs: LossInputs):
    """The result, and the gradient of its sum over action tokens."""
    policy = inputs.policy_logprobs.clone().requires_grad_()
    result = loss(replace(inputs, policy_logprobs=policy))
    result.loss[inputs.action_mask].sum().backward()
    return result, policy.grad


def changed(inputs: LossInputs, change) -> LossInputs:
    """All columns passed through ``change``."""
    names = ("policy_logprobs", "old_logprobs", "rollout_logprobs", "advantages", "action_mask")
    columns = {name: change(getattr(inputs, name)) for name in names}
    prepared = {name: change(column) for name, column in inputs.prepared.items()}
    return LossInputs(**columns, prepared=prepared)


@pytest.mark.parametrize("name", DECLARED)
def test_each_loss_is_registered_with_what_it_needs(installed, name):
    component = installed.get(HOOK, name).component

    assert (component.needs, component.conflicts, component.provides) == DECLARED[name]
    assert component.summary
    for field in component.config.model_fields.values():
        assert field.description


@pytest.mark.parametrize(
    "module", ["rlhf_plugin_covariance", "rlhf_plugin_sequence_losses", "rlhf_plugin_soft_losses"]
)
def test_importing_a_plugin_and_its_options_imports_nothing_heavy(module):
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'transformers', 'jaxtyping'} & set(sys.modules)\n"
        "sys.exit(f'imported {sorted(heavy)}' if heavy else 0)"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr


def test_the_sampler_s_log_probs_are_needed_only_when_they_are_read():
    assert VespoConfig().needed_by_options() == set()
    assert VespoConfig(behavior="rollout").needed_by_options() == {"rollout_logprobs"}


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (ClipCovConfig, {"fraction": 0.0}),
        (ClipCovConfig, {"fraction": 1.1}),
        (ClipCovConfig, {"cov_low": 5.0, "cov_high": 5.0}),
        (ClipCovConfig, {"clip_low": 0.0}),
        (KlCovConfig, {"kl_coef": 0.0}),
        (KlCovConfig, {"fraction": NAN}),
        (GmpoConfig, {"clip_low": 0.0}),
        (GmpoConfig, {"clip_high": 21.0}),
        (LuspoConfig, {"clip_low": 1.1}),
        (LuspoConfig, {"eps": 0.2}),
        (VespoConfig, {"lambda_pos": 0.0}),
        (VespoConfig, {"behavior": "reference"}),
        (SapoConfig, {"tau_pos": 0.0}),
        (Config, {"clip": 0.2}),
    ],
)
def test_options_out_of_range_are_refused(config, wrong):
    with pytest.raises(ValidationError):
        config(**wrong)


def test_the_message_about_bounds_in_the_wrong_order_names_both():
    with pytest.raises(ValidationError, match=r"cov_low is 6\.0 and cov_high 5\.0"):
        ClipCovConfig(cov_low=6.0)


def test_the_gradient_at_equal_policies_is_that_of_reinforce(loss, random_step, prepared):
    inputs = random_step()
    same = inputs.policy_logprobs
    inputs = replace(inputs, old_logprobs=same, rollout_logprobs=same)
    inputs = replace(inputs, prepared=prepared(loss, inputs))

    _, gradient = gradient_of(loss, inputs)

    expected = torch.where(inputs.action_mask, -inputs.advantages, 0.0)
    if "detached" in inputs.prepared:
        assert inputs.prepared["detached"].sum() == 4  # 0.3 * 15 tokens
        expected = torch.where(inputs.prepared["detached"] > 0, 0.0, expected)
    torch.testing.assert_close(gradient, expected)


def test_nan_and_more_of_it_at_padding_has_no_effect(loss, random_step, prepared):
    clean = random_step()
    clean = replace(clean, prepared=prepared(loss, clean))
    mask = clean.action_mask

    def widened(column):
        if column.dtype == torch.bool:
            return torch.nn.functional.pad(column, (0, 2))
        return torch.nn.functional.pad(torch.where(mask, column, NAN), (0, 2), value=NAN)

    dirty = changed(clean, widened)

    clean_result, clean_gradient = gradient_of(loss, clean)
    dirty_result, dirty_gradient = gradient_of(loss, dirty)

    wide = dirty.action_mask
    torch.testing.assert_close(dirty_result.loss[wide], clean_result.loss[mask])
    torch.testing.assert_close(dirty_gradient[wide], clean_gradient[mask])
    assert (dirty_gradient[~wide] == 0).all()
    assert (dirty_result.loss[~wide] == 0).all()
    assert metric_values(dirty_result.metrics) == metric_values(clean_result.metrics)


def test_nan_at_padding_has_no_effect_on_what_is_prepared(loss, random_step, prepared):
    clean = random_step()
    dirty = changed(
        clean, lambda c: c if c.dtype == torch.bool else torch.where(clean.action_mask, c, NAN)
    )

    actual = prepared(loss, dirty)

    for name, column in prepared(loss, clean).items():
        assert torch.equal(actual[name], column)
        assert set(column.unique().tolist()) <= {0.0, 1.0}
        assert (column[~clean.action_mask] == 0).all()


def test_rows_by_themselves_have_the_losses_of_the_whole_step(loss, random_step, prepared):
    step = random_step()
    step = replace(step, prepared=prepared(loss, step))
    whole, gradient = gradient_of(loss, step)

    parts = []
    for rows in ([3, 0], [4], [1, 2]):
        part = changed(step, lambda column, rows=rows: column[rows])
        result, part_gradient = gradient_of(loss, part)
        torch.testing.assert_close(result.loss, whole.loss[rows])
        torch.testing.assert_close(part_gradient, gradient[rows])
        parts.append(result.metrics)

    assert metric_values(merge_metrics(parts)) == pytest.approx(metric_values(whole.metrics))


@pytest.mark.parametrize("gap", [0.0, 30.0, 1e4, -1e4])
@pytest.mark.parametrize("size", [1e-6, 1e4])
def test_extremes_stay_finite_in_float32(loss, gap, size, prepared):
    advantages = size * torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    old = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, 0.0, 0.0]])
    inputs = LossInputs(
        policy_logprobs=old + gap,
        old_logprobs=old,
        advantages=advantages,
        action_mask=mask,
        rollout_logprobs=old,
    )
    inputs = replace(inputs, prepared=prepared(loss, inputs))

    result, gradient = gradient_of(loss, inputs)

    assert result.loss.dtype == torch.float32
    assert torch.isfinite(result.loss).all()
    assert torch.isfinite(gradient).all()
    assert all(value == value for value in metric_values(result.metrics).values())


def test_a_step_without_action_tokens_gives_nothing(loss, prepared):
    empty = torch.full((2, 3), NAN)
    inputs = LossInputs(
        policy_logprobs=empty,
        old_logprobs=empty,
        advantages=empty,
        action_mask=torch.zeros(2, 3, dtype=torch.bool),
        rollout_logprobs=empty,
    )
    inputs = replace(inputs, prepared=prepared(loss, inputs))

    result, gradient = gradient_of(loss, inputs)

    assert (result.loss == 0).all()
    assert (gradient == 0).all()
    assert metric_values(result.metrics) == {}


def test_arguments_and_the_global_random_state_are_left_alone(loss, random_step, prepared):
    inputs = random_step()
    inputs = replace(inputs, prepared=prepared(loss, inputs))
    before = changed(inputs, torch.clone)
    state = torch.random.get_rng_state()

    prepared(loss, inputs)
    loss(inputs)

    assert torch.equal(state, torch.random.get_rng_state())
    for name in ("policy_logprobs", "old_logprobs", "advantages", "rollout_logprobs"):
        assert torch.equal(getattr(inputs, name), getattr(before, name))


def test_equal_advantages_of_zero_teach_nothing(loss, random_step, prepared):
    inputs = random_step()
    inputs = replace(inputs, advantages=torch.zeros_like(inputs.advantages))
    inputs = replace(inputs, prepared=prepared(loss, inputs))

    _, gradient = gradient_of(loss, inputs)

    assert (gradient == 0).all()


def test_vespo_excludes_a_second_weight_only_against_the_samplers_policy(installed):
    config = installed.get("rlhf_policy_losses", "vespo").component.config

    assert config(behavior="old").excluded_by_options() == frozenset()
    assert config(behavior="rollout").excluded_by_options() == {
        "is_correction",
        "renormalized_sampling",
    }
