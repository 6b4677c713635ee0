"""The observer ``token_files``: a row for each token, limits, and files that agree with the run after a resume."""

import numpy as np
import pyarrow.parquet as parquet
import pytest
from tests.plugins.lab.run_folders import sample, write_run

from rlhf_core.contracts import RolloutSample, RunInfo, SampleTokens
from rlhf_plugin_lab.paper.contents import contents_of
from rlhf_plugin_lab.recorded.problems import Problems
from rlhf_plugin_lab.recorded.tokens import TokenFiles
from rlhf_plugin_lab.token_files import COMPONENT, TokensConfig, TokensObserver
from rlhf_testing.conformance import checks_of, subject


@pytest.mark.parametrize("check", checks_of("rlhf_observers"), ids=lambda check: check.name)
def test_contract(check):
    check(subject(COMPONENT))


def heard(uid="0.5.0.0", texts=("a", "b", "c"), actions=(False, True, True), **columns):
    count = sum(actions)
    tokens = SampleTokens(
        token_ids=np.arange(len(texts), dtype=np.int32),
        texts=texts,
        action_mask=np.array(actions),
        weight_version=np.full(count, 7, np.int32),
        columns={"rollout_logprobs": np.float32([-1.0, np.nan][:count])} | columns,
    )
    return RolloutSample(
        uid=uid, prompt="a", response="bc", reward=1.0, truncated=False, tokens=tokens
    )


def started(tmp_path, start_step=0, **options):
    observer = TokensObserver(TokensConfig(**options))
    observer.run_start(RunInfo(output=tmp_path, config={}, total_steps=9, start_step=start_step))
    return observer


def rows(tmp_path, step):
    return parquet.read_table(tmp_path / f"tokens/step-{step:08d}.parquet").to_pylist()


def test_each_token_is_a_row_and_only_actions_have_numbers(tmp_path):
    started(tmp_path).rollout_end(3, [heard(advantages=np.float32([0.5, -0.5]))], {})

    context, first, second = rows(tmp_path, 3)
    assert context == {
        "uid": "0.5.0.0", "index": 0, "token_id": 0, "text": "a", "action": False, "version": None,
        "rollout_logprob": None, "advantage": None,
    }  # fmt: skip
    assert first == context | {
        "index": 1, "token_id": 1, "text": "b", "action": True, "version": 7, "rollout_logprob": -1.0, "advantage": 0.5,
    }  # fmt: skip
    assert (second["rollout_logprob"], second["advantage"]) == (
        None,
        -0.5,
    )  # nobody asked the engine for the first


def test_an_entropy_has_a_column_where_the_step_computed_it(tmp_path):
    """p = 1/2, 1/4, 1/4 has 1/2 log 2 + 2 * 1/4 log 4 = 1.5 log 2 = 1.03972 nats; a certain token has 0."""
    observer = started(tmp_path)
    observer.rollout_end(1, [heard(entropy=np.float32([1.0397208, 0.0]))], {})
    observer.rollout_end(2, [heard()], {})

    assert [row["entropy"] for row in rows(tmp_path, 1)] == [None, np.float32(1.0397208), 0.0]
    assert "entropy" not in rows(tmp_path, 2)[0]


def test_samples_that_do_not_fit_are_left_out_whole(tmp_path):
    samples = [
        heard("0.1.0.0"),
        heard("0.2.0.0", tuple("abcd"), (True,) * 2 + (False,) * 2),
        heard("0.3.0.0"),
    ]

    started(tmp_path, max_tokens=6).rollout_end(1, samples, {})

    assert {row["uid"] for row in rows(tmp_path, 1)} == {"0.1.0.0", "0.3.0.0"}


def test_only_every_nth_step_has_a_file(tmp_path):
    observer = started(tmp_path, every=2)

    for step in range(1, 5):
        observer.rollout_end(step, [heard()], {})

    assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == [
        "step-00000001.parquet", "step-00000003.parquet",
    ]  # fmt: skip


def test_samples_without_tokens_leave_no_file(tmp_path):
    started(tmp_path).rollout_end(
        1, [RolloutSample(uid="0", prompt="", response="", reward=0.0, truncated=False)], {}
    )

    assert list((tmp_path / "tokens").iterdir()) == []


def test_files_of_steps_that_a_resumed_run_does_again_are_gone(tmp_path):
    observer = started(tmp_path)
    for step in (1, 2, 3):
        observer.rollout_end(step, [heard()], {})

    started(tmp_path, start_step=2)

    assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == [
        "step-00000001.parquet", "step-00000002.parquet",
    ]  # fmt: skip


def test_the_page_reads_what_the_observer_writes(tmp_path):
    run = write_run(tmp_path / "run", [sample()])
    columns = {"old_logprobs": np.float32([-0.5, -0.5]), "values": np.float32([1.0, 2.0])}
    started(run).rollout_end(1, [heard(**columns)], {})

    tokens = TokenFiles(run, Problems()).of(1, "0.5.0.0")

    assert tokens.text == ["a", "b", "c"]
    assert tokens.columns["ratio"] == [None, 1.649, None]  # e^0.5, and no log-prob of the sampler
    assert tokens.columns["value"] == [None, 1, 2]
    assert (
        contents_of([run], max_bytes=10**7, wanted=lambda step: True).index["runs"][0]["problems"]
        == []
    )
