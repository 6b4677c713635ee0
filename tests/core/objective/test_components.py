"""From the names in an objective to components."""

import pytest

from rlhf_core import UnknownComponent
from rlhf_core.contracts import ComponentRef, ValueObjective
from rlhf_core.objective import BuiltPolicyObjective, BuiltValueObjective, build_objective


def test_an_objective_is_built_with_what_it_names(built, refs, term):
    objective = built(correction=refs.correction, terms=(term(), term(rows="supervised")))

    components = objective.components
    assert isinstance(objective, BuiltPolicyObjective)
    assert type(components.loss).__name__ == "PolicyGradient"
    assert type(components.correction).__name__ == "FarTokens"
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
    with pytest.raises(UnknownComponent, match="nothing"):
        built(loss=ComponentRef(kind="rlhf_policy_losses", name="nothing"))
