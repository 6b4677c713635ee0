"""Batches that nothing can be learned from, or that are not whole: a defined result, never a crash or a NaN."""

import json
import math
from dataclasses import replace

import pytest

from rlhf_core.objective import ActionColumns
from rlhf_testing.tiny import write_tiny_model

DROP_ALL = """
from rlhf_core import Component

class DropAll:
    def __init__(self, config): ...
    def keep(self, group, info):
        return "never" if info.step == 2 else None

drop_all = Component(name="drop_all", factory=DropAll)
judge_all = Component(
    name="judge_all", factory=DropAll, provides=frozenset({"judges_rewards"})
)
"""

DROP_ONE_SAMPLE = '''
def uneven(response, row):
    """Fails for some samples, so that groups are dropped."""
    if sum(map(ord, response)) % 5 == 0:
        raise ValueError("no score for this one")
    return sum(map(ord, response)) % 7
'''


def finite(lines):
    return all(math.isfinite(x) for line in lines for x in line.get("metrics", {}).values())


@pytest.mark.parametrize(
    "estimator", ["reinforce_baseline", "group_norm", "reinforce", "rloo", "gae"]
)
def test_constant_rewards_teach_the_policy_nothing(train, workspace, estimator):
    (workspace / "constant.py").write_text("def constant(response):\n    return 0.1\n")

    lines = train("run", "--estimator", estimator, "--reward", "constant.py:constant")

    assert finite(lines)
    assert lines[-1]["metrics"]["group/no_signal"] == 1.0
    if estimator in ("reinforce_baseline", "group_norm", "rloo"):
        assert lines[-1]["metrics"]["advantage/abs_mean"] == 0.0


def test_a_run_without_any_signal_says_so_once(train, workspace):
    (workspace / "constant.py").write_text("def constant(response):\n    return 0.1\n")

    train("run", "--estimator", "group_norm", "--reward", "constant.py:constant", "--steps", "12")

    log = (workspace / "run/run.log").read_text().splitlines()
    (warning,) = [line for line in log if "learns nothing" in line]
    assert "WARNING" in warning
    assert "the policy learns nothing: each of its last 10 steps, up to step 10," in warning
    assert "Every advantage of these steps was 0" in warning


def test_a_constant_reward_beside_a_kl_term_is_named_once(train, workspace):
    """The KL's gradient is not 0, so nothing else would say that the reward teaches nothing."""
    (workspace / "constant.py").write_text("def constant(response):\n    return 0.0\n")
    kl = ["--algo.kl.mode", "loss", "--algo.kl.estimator", "k3", "--algo.kl.coef", "0.1"]
    kl += ["--algo.loss.entropy_coef", "0.01"]

    train("run", "--reward", "constant.py:constant", "--steps", "12", *kl)

    log = (workspace / "run/run.log").read_text().splitlines()
    warnings = [line for line in log if "this run likely learns nothing" in line]
    assert sum("no prompt had samples of different rewards" in line for line in warnings) == 1
    assert not [line for line in log if "gradient of norm 0" in line]


def test_a_step_whose_groups_are_all_filtered_leaves_the_weights_alone(train, workspace):
    (workspace / "filters.py").write_text(DROP_ALL)
    flags = ["--rollout.filters", "filters.py:drop_all", "--rollout.max_refills", "1"]
    flags += ["--reward", "vary.py:vary"]

    first, second, third = train("run", *flags, "--steps", "3")

    assert second["metrics"]["train/empty_batch"] == 1.0
    assert second["metrics"]["filter/dropped_groups/never"] == 6.0  # 3 groups, drawn twice
    assert "policy/grad_norm" not in second["metrics"]
    assert first["metrics"]["policy/grad_norm"] > 0
    assert third["metrics"]["policy/grad_norm"] > 0


@pytest.mark.parametrize("kind", ["imitated", "distilled", "held back"])
def test_what_needs_no_rewards_goes_on_where_all_groups_are_dropped_for_theirs(
    train, workspace, kind
):
    """In step 2 the filter drops all: given responses are imitated, the policy's own are compared with a teacher's
    distribution, and the KL holds the policy back, all the same."""
    (workspace / "filters.py").write_text(DROP_ALL)
    rows = [{"prompt": "1=", "response": "11"}, {"prompt": "2=", "response": "22"}]
    (workspace / "good.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    flags = ["--rollout.filters", "filters.py:judge_all", "--rollout.max_refills", "1"]
    if kind == "imitated":
        flags += ["--algo.terms.use", "sft", "--supervised.data", "good.jsonl"]
        flags += ["--supervised.batch_size", "1"]
    elif kind == "distilled":
        write_tiny_model(workspace / "teacher", initializer_range=0.3)
        flags += ["--algo.terms.use", "distill", "--algo.teacher.path", "teacher"]
        flags += ["--algo.terms.distill.divergence", "top_k", "--algo.teacher.top_k", "4"]
    else:
        flags += ["--algo.kl.mode", "loss", "--algo.kl.estimator", "k3", "--algo.kl.coef", "0.1"]

    lines = train("run", "--reward", "vary.py:vary", *flags, "--steps", "3")

    term = {"imitated": "loss/sft", "distilled": "loss/distill", "held back": "loss/kl"}[kind]
    second = lines[1]["metrics"]
    assert second["filter/dropped_groups/never"] == 6.0
    assert second["policy/grad_norm"] > 0
    assert all(line["metrics"][term] > 0 for line in lines[1:])
    assert "train/empty_batch" not in second
    assert finite(lines)


def test_groups_that_lost_members_to_bad_rewards_are_dropped_whole_and_the_rest_is_trained_on(
    train, workspace
):
    (workspace / "uneven.py").write_text(DROP_ONE_SAMPLE)
    flags = ["--reward", "uneven.py:uneven", "--reward.uneven.on_error", "drop"]

    lines = train("run", *flags, "--steps", "6")

    assert finite(lines)
    dropped = sum(line["metrics"].get("filter/dropped_groups/uneven_failed", 0) for line in lines)
    assert dropped > 0


def test_a_gradient_of_nan_ends_the_run_with_the_advice(train, monkeypatch, capsys):
    """Three updates in a row whose gradient is not finite: the weights stay, the run says so."""
    whole = ActionColumns.of

    def poisoned(*arguments):
        columns = whole(*arguments)
        nan = {"advantages": columns.flat["advantages"] * math.nan}
        return replace(columns, flat={**columns.flat, **nan})

    monkeypatch.setattr(ActionColumns, "of", poisoned)

    train("run", "--steps", "5", code=1)

    assert "3 updates of the policy in a row had a gradient that is not finite" in (
        capsys.readouterr().err
    )
