"""``rlhf check``: which components it finds, what it prints, and its exit code."""

import json

import pytest

from rlhf_testing.conformance.kinds.placing import any_runtime, runtimes

RIGHT = """
from rlhf_core.contracts import TokenLoss


def plain(inputs):
    \"\"\"Minus advantage times ratio.\"\"\"
    ratio = (inputs.policy_logprobs - inputs.old_logprobs).clamp(-20, 20).exp()
    return TokenLoss(loss=-inputs.advantages * ratio)


def batch_mean(inputs):
    \"\"\"Divides by the tokens of the micro-batch.\"\"\"
    result = plain(inputs)
    return TokenLoss(loss=result.loss / inputs.action_mask.sum())
"""


@pytest.fixture
def losses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "losses.py").write_text(RIGHT)
    return tmp_path


def test_a_component_that_keeps_its_promises_passes(rlhf):
    code, out, _ = rlhf("check", "dr_grpo")

    assert code == 0
    assert "check_equal_rewards_teach_nothing" in out
    assert "0 failed" in out


def test_a_broken_promise_is_shown_with_its_numbers_and_gives_exit_code_1(rlhf, losses):
    code, out, _ = rlhf("check", "losses.py:batch_mean", "--kind", "policy-loss")

    assert code == 1
    line = next(line for line in out.splitlines() if "check_rows_are_independent" in line)
    assert "FAILED: loss of rows [0, 3] by themselves" in line


def test_a_function_in_a_file_is_checked_like_a_plugin(rlhf, losses):
    code, out, _ = rlhf("check", "losses.py:plain", "--kind", "policy_loss")

    assert code == 0, out
    assert "check_at_ratio_one_it_is_reinforce" in out


@pytest.mark.parametrize("name", ["grpo", "rlhf-plugin-algorithms"])
def test_a_plugin_or_its_distribution_stands_for_all_of_its_components(rlhf, name):
    code, out, _ = rlhf("check", name, "--kind", "advantage_estimator", "--json")

    outcomes = json.loads(out)["outcomes"]
    components = {outcome["component"] for outcome in outcomes}
    assert code == 0
    assert components >= {"algorithms:dr_grpo", "algorithms:group_norm"} or name == "grpo"
    assert all(outcome["ok"] for outcome in outcomes)


def test_a_plugin_as_a_whole_must_import_nothing_heavy(rlhf):
    code, out, _ = rlhf("check", "rlhf-plugin-algorithms", "--kind", "optimizer", "--json")

    outcomes = json.loads(out)["outcomes"]
    assert code == 0
    assert ("algorithms", "assert_imports_stay_light") in {
        (outcome["component"], outcome["check"]) for outcome in outcomes
    }


def test_what_cannot_be_checked_without_options_is_said(rlhf):
    code, out, _ = rlhf("check", "function")

    assert code == 0
    assert (
        "not checked: rewards:function: the component has required options; its tests give them: "
        "rlhf_testing.conformance.subject(REGISTERED, path=...)" in " ".join(out.split())
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["nope"], "no installed plugin or component is called 'nope'"),
        (["ppo", "--kind", "nope"], "--kind nope: expected one of"),
        (["losses.py:plain"], "give the kind of the component with --kind"),
    ],
)
def test_a_name_that_means_nothing_is_refused(rlhf, losses, words, part):
    code, _, err = rlhf("check", *words)

    assert code == 2
    assert part in err


TWO = """
from rlhf_core import Component, hookimpl


@hookimpl
def rlhf_runtimes():
    return [Component(name="first", factory="needs_library:Runtime", summary="first")]


@hookimpl
def rlhf_sample_filters():
    return [
        Component(name="second", factory="two_of_them.gone:Filter", summary="its module is gone"),
        Component(name="third", factory=lambda config: object()),
    ]
"""


def test_a_component_is_never_both_failed_and_not_checked(rlhf, tmp_path, monkeypatch):
    """The first needs what is not installed, the second lacks a module of its own, the third a summary."""
    (tmp_path / "two_of_them.py").write_text(TWO)
    (tmp_path / "needs_library.py").write_text("import no_such_library_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("RLHF_PLUGINS", "two_of_them")

    code, out, _ = rlhf("check", "two_of_them", "--json")

    found = json.loads(out)
    failed = {outcome["component"] for outcome in found["outcomes"] if not outcome["ok"]}
    assert code == 1
    assert failed == {"two_of_them:second", "two_of_them:third"}
    assert found["unchecked"] == [
        "two_of_them:first cannot be made here: No module named 'no_such_library_at_all'"
    ]


def test_a_component_to_which_no_check_applies_is_not_checked_and_that_is_said(
    rlhf, tmp_path, monkeypatch
):
    for_others = [check for check in runtimes.CHECKS if check not in any_runtime.CHECKS]
    monkeypatch.setattr(runtimes, "CHECKS", for_others)
    (tmp_path / "far.py").write_text("class Far:\n    pass\n")

    code, out, _ = rlhf("check", str(tmp_path / "far.py:Far"), "--kind", "runtime", "--json")

    found = json.loads(out)
    assert (code, found["outcomes"]) == (0, [])
    assert found["unchecked"][0].endswith("no check of a runtime applies to it")
