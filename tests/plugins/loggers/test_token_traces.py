"""Samples as traces with their tokens: by hand, and as trackio keeps them."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.plugins.loggers.places import end, run_info

from rlhf_config import Layer, parse_flags, resolve
from rlhf_core import CapabilityError
from rlhf_core.contracts import RolloutSample, SampleTokens
from rlhf_core.plugins import load
from rlhf_plugin_loggers import token_traces as module
from rlhf_plugin_loggers.token_traces import token_traces
from rlhf_testing.errors import has_code

HOSTILE = "<img src=x onerror=alert(1)></script> \u202e**bold**"


def sample(uid="0.7.0.0", mask="..aa", texts=None, prompt="ab", response="cd", **columns):
    actions = np.array([letter == "a" for letter in mask])
    tokens = SampleTokens(
        token_ids=np.arange(10, 10 + len(mask), dtype=np.int32),
        texts=tuple(texts or "abcdefghij"[: len(mask)]),
        action_mask=actions,
        weight_version=np.full(actions.sum(), 4, np.int32),
        columns={name: np.float32(column) for name, column in columns.items()},
    )
    return RolloutSample(
        uid=uid, prompt=prompt, response=response, reward=0.5, truncated=True, tokens=tokens
    )


def test_a_sample_of_one_turn_has_its_texts_and_a_span_with_its_tokens():
    one = sample(rollout_logprobs=[-0.25, np.nan], entropy=[1.0397208, 0])

    (trace,) = token_traces([one], 4)

    assert trace.messages == [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "cd"},
    ]
    assert trace.metadata == {"uid": "0.7.0.0", "reward": 0.5, "truncated": True}
    assert trace.spans == [
        {
            "id": "0.7.0.0/2",
            "name": "turn 0",
            "kind": "generation",
            "usage": {"input_tokens": 2, "output_tokens": 2},
            "output": {
                "token_ids": [12, 13],
                "texts": ["c", "d"],
                "weight_version": [4, 4],
                "rollout_logprobs": [-0.25, None],
                "entropy": [1.03972, 0.0],  # 1.5 log 2 = 1.0397208
            },
        }
    ]


def test_what_an_environment_wrote_between_two_turns_is_no_answer_of_the_policy():
    (trace,) = token_traces([sample(mask="..a..aa.", entropy=[1, 2, 3])], 1)

    assert [(each["role"], each["content"]) for each in trace.messages] == [
        *(("user", "ab"), ("assistant", "c"), ("user", "de"), ("assistant", "fg")),
    ]
    assert [span["output"]["entropy"] for span in trace.spans] == [[1.0], [2.0, 3.0]]
    assert [span["usage"]["input_tokens"] for span in trace.spans] == [2, 5]


def test_traces_are_bounded_in_number_and_tokens(monkeypatch):
    samples = [sample(f"0.{n}.0.0") for n in range(4)]
    long = sample("0.9.0.0", mask="." + "a" * 9, texts="abcdefghij")

    assert len(token_traces(samples, 3)) == 3
    assert token_traces(samples, 0) == []
    monkeypatch.setattr(module, "MAX_TOKENS", 9)
    assert [trace.metadata["uid"] for trace in token_traces([samples[0], long, *samples[1:]], 9)] == [
        *("0.0.0.0", "0.1.0.0"),
    ]  # fmt: skip


def test_samples_without_tokens_are_no_traces():
    plain = RolloutSample(uid="0.7.0.0", prompt="", response="", reward=0.0, truncated=False)

    assert token_traces([plain], 4) == []


@pytest.fixture
def logged(place_of, tmp_path):
    """Log samples with further options; return the rows of the table of traces in the project's database."""

    def log(samples, **options):
        place = place_of("trackio")
        logger = place.made(**options)
        logger.start(run_info(tmp_path / "run"))
        logger.log_samples(3, samples)
        logger.finish(end())
        file = Path(os.environ["TRACKIO_DIR"]) / f"{place.project}.db"
        with closing(sqlite3.connect(file)) as database:
            return database.execute(
                "select step, key, messages, metadata, spans from traces order by trace_index"
            ).fetchall()

    return log


def test_trackio_keeps_as_many_traces_as_asked_for_and_hostile_text_as_it_is(logged):
    first = sample(prompt=HOSTILE, response=HOSTILE, texts=["a", "b", HOSTILE, "d"], entropy=[1, 2])
    samples = [first, sample("0.7.1.0"), sample("0.7.2.0")]

    rows = logged(samples, traces=2)

    assert [(step, key) for step, key, *_ in rows] == [(3, "tokens")] * 2
    messages, metadata, (span,) = map(json.loads, rows[0][2:])
    assert [each["content"] for each in messages] == [HOSTILE, HOSTILE]
    assert metadata["uid"] == "0.7.0.0"
    assert span["output"]["texts"] == [HOSTILE, "d"]
    assert span["output"]["entropy"] == [1.0, 2.0]


def test_trackio_gets_no_traces_unless_asked(logged):
    assert logged([sample()]) == []


def test_traces_need_an_observer_that_hears_tokens():
    options = {
        "model": {"path": "model"},
        "data": {"train": ["org/set"]},
        "rollout": {"executor": "single_turn"},
        "reward": {"use": ["exact_match"]},
        "algo": {
            "advantage": {"estimator": "reinforce_baseline"},
            "loss": {"policy": "ppo"},
            "kl": {"estimator": "k1"},
        },
        "actor": {"optim": "adam"},
        "critic": {"optim": "adam"},
        "runtime": {"name": "local"},
        "engine": {"name": "embedded"},
        "backend": {"name": "torch"},
        "log": {"to": ["trackio"], "trackio": {"traces": 2}},
    }

    with pytest.raises(
        CapabilityError,
        match=r"--observers\.use token_files",
        check=has_code("config/missing-capability"),
    ):
        resolve([Layer.of(options)], load(""))

    words = ["--observers.use", "token_files"]
    resolve([Layer.of(options), parse_flags(words)], load(""))
