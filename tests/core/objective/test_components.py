"""From the names in an objective to components."""

from dataclasses import replace

import pytest
import torch

from rlhf_core import Component, PluginError, Registered, UnknownComponent
from rlhf_core.contracts import ComponentRef, Correction, Metric, TokenLoss, ValueObjective
from rlhf_core.objective import BuiltPolicyObjective, BuiltValueObjective, build_objective
from rlhf_testing.errors import has_code


def test_an_objective_is_built_with_what_it_names(built, refs, term):
    objective = built(correction=refs.correction, terms=(term(), term(rows="supervised")))

    components = objective.components
    assert isinstance(objective, BuiltPolicyObjective)
    assert type(components.loss.component).__name__ == "PolicyGradient"
    assert type(components.correction.component).__name__ == "FarTokens"
    assert [built.name for built in components.terms] == ["square", "square"]
    assert [built.term.rows for built in components.terms_on("supervised")] == ["supervised"]


def test_what_components_declare_is_known(built, refs, term):
    plain, own = built().components, built(loss=refs.own_weights).components

    assert (plain.applies_is_weights, own.applies_is_weights) == (False, True)
    assert not plain.wants_entropy
    assert built(loss=refs.reads_entropy).components.wants_entropy
    assert built(terms=(term(loss=refs.reads_entropy),)).components.wants_entropy


def test_a_critics_objective_needs_no_component(plugins):
    assert isinstance(build_objective(ValueObjective(), plugins), BuiltValueObjective)


def test_an_unknown_component_is_refused_by_name(built):
    with pytest.raises(
        UnknownComponent, match="nothing", check=has_code("plugin/unknown-component")
    ):
        built(loss=ComponentRef(kind="rlhf_policy_losses", name="nothing"))


@pytest.mark.parametrize(
    ("kind", "wrong", "chosen", "says"),
    [
        (
            "rlhf_policy_losses",
            lambda inputs: TokenLoss(loss=inputs.policy_logprobs.mean()),
            lambda ref, term: {"loss": ref},
            "loss of shape",
        ),
        (
            "rlhf_policy_losses",
            lambda inputs: TokenLoss(loss=inputs.policy_logprobs.mean()),
            lambda ref, term: {"terms": (replace(term(), loss=ref),)},
            "loss of shape",
        ),
        (
            "rlhf_is_corrections",
            lambda old, rollout, mask: Correction(weights=torch.ones(()), keep=mask),
            lambda ref, term: {"correction": ref},
            "weights of shape",
        ),
        (
            "rlhf_kl_estimators",
            torch.mean,
            lambda ref, term: {"kl_estimator": ref},
            "shape",
        ),
    ],
)
def test_a_component_that_answers_one_number_is_refused_by_its_name(
    built, plugins, batch, plan, leaves, part, term, kind, wrong, chosen, says
):
    component = Component(name="wrong", factory=lambda config: wrong)
    plugins.registries[kind].add(Registered(component, "test"))
    ref = ComponentRef(kind=kind, name="test:wrong")
    objective = built(**chosen(ref, term))

    with pytest.raises(
        PluginError,
        match=rf"^test:wrong \(test\) returned {says} \(\); expected \(3, 3\)",
        check=has_code("plugin/wrong-answer"),
    ):
        objective.rollouts(*part(batch, [0, 1, 2], *leaves()), plan)


def loss_with(metrics):
    return lambda config: (
        lambda inputs: TokenLoss(loss=inputs.policy_logprobs.square(), metrics=metrics)
    )


@pytest.mark.parametrize("metric", ["loss/policy", "policy/entropy", "loss/square"])
@pytest.mark.parametrize("place", ["loss", "terms"])
def test_a_metric_of_a_loss_is_refused_that_is_called_like_one_of_the_run(
    built, plugins, batch, plan, leaves, part, term, place, metric
):
    """A term's number was recorded as the policy loss, and the policy loss's own was overridden by the step's."""
    component = Component(name="mine", factory=loss_with({metric: Metric(9.0)}))
    plugins.registries["rlhf_policy_losses"].add(Registered(component, "test"))
    mine = ComponentRef(kind="rlhf_policy_losses", name="test:mine")
    chosen = (
        {"loss": mine, "terms": (term(),)}
        if place == "loss"
        else {"terms": (term(), term(loss=mine))}
    )
    objective = built(**chosen)

    with pytest.raises(
        PluginError,
        match=rf"^test:mine \(test\): {metric} is ",
        check=has_code("metric/name-taken"),
    ):
        objective.rollouts(*part(batch, [0, 1, 2], *leaves()), plan)


def test_a_further_loss_that_would_be_logged_as_the_policy_loss_is_refused_before_a_step(
    built, plugins, term
):
    component = Component(name="policy", factory=loss_with({}))
    plugins.registries["rlhf_policy_losses"].add(Registered(component, "test"))
    named = ComponentRef(kind="rlhf_policy_losses", name="test:policy")

    with pytest.raises(
        PluginError,
        match=r"^test:policy \(test\): loss/policy is ",
        check=has_code("metric/name-taken"),
    ):
        built(terms=(term(loss=named),))
