from typing import get_args

import pytest

from rlhf_core import CapabilityError, Component, PluginError, Registered, capabilities
from rlhf_core.capabilities import Chosen, check, check_words, needs_of
from rlhf_core.contracts import Aggregation
from rlhf_testing.errors import has_code


def chosen(flag="--loss", name="mine", **keywords):
    return Chosen(flag, Registered(Component(name=name, factory=dict, **keywords), "plugin"))


def test_needs_of_all_components_are_collected():
    found = needs_of([chosen(needs={"values"}), chosen(needs={"values", "entropy"}), chosen()])

    assert found == {"values", "entropy"}
    assert needs_of([]) == frozenset()


def test_what_the_loop_supplies_is_met_by_asking():
    check([chosen(needs={"values", "ref_logprobs", "old_logprobs"})], frozenset(), 1)


def test_what_another_component_provides_is_met():
    check([chosen(needs={"several_turns"}), chosen(provides={"several_turns"})], frozenset(), 1)


def test_what_an_option_brings_is_met():
    check([chosen(needs={"kl_in_loss"})], frozenset({"kl_in_loss"}), 1)


@pytest.mark.parametrize(
    ("need", "fix"),
    [
        ("environment", "choose one with --env"),
        ("is_correction", "set --algo.correction.kind"),
        ("something_new", "no chosen component provides it"),
    ],
)
def test_an_unmet_need_names_component_need_and_fix(need, fix):
    with pytest.raises(CapabilityError) as caught:
        check([chosen(needs={need})], frozenset(), 1)

    assert str(caught.value) == f"--loss mine needs {need!r}: {fix}."


@pytest.mark.parametrize(
    ("samples", "need", "fails"),
    [(1, "group>=2", True), (2, "group>=2", False), (3, "group>=4", True)],
)
def test_groups_have_a_smallest_size(samples, need, fails):
    if not fails:
        check([chosen(needs={need})], frozenset(), samples)
        return
    with pytest.raises(
        CapabilityError,
        match=f"rollout.n_samples_per_prompt is {samples}.*Set --rollout",
        check=has_code("config/too-few-samples-per-prompt"),
    ):
        check([chosen(needs={need})], frozenset(), samples)


def test_samples_have_to_be_as_old_as_a_component_is_about():
    filters = [chosen(needs={"staleness>=2"})]

    check(filters, frozenset(), 4, 2)
    with pytest.raises(
        CapabilityError,
        match=r"rollout.max_staleness is 1.*at least 2.*Set --rollout.max_staleness 2",
        check=has_code("config/no-samples-so-old"),
    ):
        check(filters, frozenset(), 4, 1)


def test_a_conflict_with_a_component_names_both():
    with pytest.raises(
        CapabilityError,
        match=r"--loss mine.*'several_turns'.*--executor turns",
        check=has_code("config/conflicting-component"),
    ):
        check(
            [
                chosen(conflicts={"several_turns"}),
                chosen("--executor", "turns", provides={"several_turns"}),
            ],
            frozenset(),
            1,
        )


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ("renormalized_sampling", r"comes from --rollout\.top_p, .*Sample without them"),
        ("reward_shaper", "comes from an option: rewards are changed after they are given"),
    ],
)
def test_a_conflict_with_an_option_says_what_the_option_does(feature, words):
    with pytest.raises(
        CapabilityError, match=words, check=has_code("config/conflicting-component")
    ):
        check([chosen(conflicts={feature})], frozenset({feature}), 1)


def test_a_need_that_nobody_has_conflicts_with_nothing():
    check([chosen(conflicts={"values"})], frozenset(), 1)


def test_a_conflict_with_what_the_loop_supplies_for_another_component_counts():
    with pytest.raises(
        CapabilityError,
        match=r"'values'.*--estimator critic",
        check=has_code("config/conflicting-component"),
    ):
        check(
            [chosen(conflicts={"values"}), chosen("--estimator", "critic", needs={"values"})],
            frozenset(),
            1,
        )


def test_the_modes_of_aggregation_are_those_of_the_contract():
    assert get_args(Aggregation) == capabilities.AGGREGATIONS


@pytest.mark.parametrize("label", ["needs", "conflicts", "provides"])
@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("valus", "'values'"),
        ("off-policy", "'off_policy'"),
        ("aggregation:token_mean", "'aggregation:token-mean'"),
        ("unpaired_answer", "'unpaired_answers'"),
        ("group>2", ""),
        ("sorted_groups", ""),
    ],
)
def test_a_misspelled_word_is_refused_with_the_nearest(label, word, near):
    component = Component(name="mine", factory=dict, **{label: frozenset({word})})

    with pytest.raises(
        PluginError,
        match=f"'mine': {label} '{word}'.*{near}",
        check=has_code("plugin/unknown-capability"),
    ):
        check_words(component)


@pytest.mark.parametrize(
    "word", ["values", "group>=16", "off_policy", "aggregation:token-mean", "acme:sorted_groups"]
)
def test_words_of_the_tables_and_of_the_plugin_itself_are_taken(word):
    check_words(Component(name="mine", factory=dict, needs=frozenset({word})))
