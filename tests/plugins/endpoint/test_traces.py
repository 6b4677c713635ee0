import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from tests.contrib.bridges.interpreters import own_interpreter
from tests.deadlines import HANG_S

from rlhf_core import DataError
from rlhf_core.contracts import Completion, Stop, Uid
from rlhf_episodes import EpisodeGraph
from rlhf_plugin_endpoint.traces import (
    TrainingTrace,
    TrainingTurn,
    graph_from_trace,
    read_traces,
    trace_from_graph,
    write_traces,
)
from rlhf_testing.errors import has_code

UID = Uid(0, 1, 2)


def completion(*token_ids, stop=Stop.EOS, version=3):
    count = len(token_ids)
    return Completion(
        token_ids=np.array(token_ids, dtype=np.int32),
        logprobs=-np.arange(1, count + 1, dtype=np.float32) / 8,
        weight_version=np.full(count, version, dtype=np.int32),
        stop=stop,
    )


@pytest.fixture
def graph():
    """Two turns of one path, a fork, a sub-agent, and a request that nobody read."""
    graph = EpisodeGraph(UID)
    first = graph.add([1, 2], completion(3, 4))
    graph.reward(graph.add([1, 2, 3, 4, 5], completion(6, stop=Stop.LENGTH)), 0.5)
    graph.add([1, 2, 3, 9], completion(10))
    graph.add([20], completion(21, 22), "helper")
    graph.discard(graph.add([1, 2], completion(7)))
    assert first.index == 0
    return graph


def same(rows, others):
    assert [row.uid for row in rows] == [row.uid for row in others]
    for row, other in zip(rows, others, strict=True):
        for name in ("token_ids", "action_mask", "rollout_logprobs", "weight_version"):
            np.testing.assert_array_equal(getattr(row, name), getattr(other, name))
        assert row.turns == other.turns
        assert row.total_reward == other.total_reward


def test_a_graph_goes_through_a_file_and_comes_back(graph, tmp_path):
    path = tmp_path / "traces.jsonl"

    write_traces(path, [trace_from_graph(graph)] * 2)
    traces = list(read_traces(path))

    assert len(traces) == 2
    for trace in traces:
        same(graph_from_trace(trace, UID).trajectories(), graph.trajectories())
    assert [turn.metadata["agent"] for turn in traces[0].turns] == ["", "", "", "helper"]
    assert [path.name for path in tmp_path.iterdir()] == ["traces.jsonl"]


def test_a_turn_has_the_fields_of_version_1(graph):
    trace = json.loads(json.dumps(trace_from_graph(graph).as_json()))

    assert trace["schema_version"] == 1
    assert trace["turns"][1] == {
        "node_id": "0.1.2.0/1",
        "prompt_token_ids": [1, 2, 3, 4, 5],
        "completion_token_ids": [6],
        "per_token_logps": [-0.125],
        "loss_mask": [0, 0, 0, 0, 0, 1],
        "request": {},
        "response": {},
        "metadata": {"agent": "", "stop": "length", "reward": 0.5, "weight_version": 3},
    }


GOOD = TrainingTurn(
    node_id="a",
    prompt_token_ids=(1, 2),
    completion_token_ids=(3, 4),
    per_token_logps=(-0.5, -0.25),
    loss_mask=(0, 0, 1, 1),
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_id": ""}, "node_id is empty"),
        ({"prompt_token_ids": (), "loss_mask": (1, 1)}, "prompt_token_ids is empty"),
        ({"completion_token_ids": (3, -4)}, "no whole number from 0"),
        ({"per_token_logps": (-0.5,)}, "1 log-probs for 2 tokens"),
        ({"per_token_logps": (-0.5, 0.5)}, "positive or not finite"),
        ({"per_token_logps": (-0.5, float("nan"))}, "positive or not finite"),
        ({"loss_mask": (1, 1)}, "loss_mask has 2 numbers for 2 [+] 2 tokens"),
        ({"loss_mask": (0, 0, 1, 2)}, "something else than 0 and 1"),
        ({"loss_mask": (0, 1, 1, 1)}, "a token of the prompt trains"),
    ],
)
def test_a_turn_that_does_not_hold_is_refused(change, message):
    with pytest.raises(DataError, match=message, check=has_code("trace/malformed")):
        replace(GOOD, **change)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: "),
        ("[]", "expected an object, got list"),
        ('{"schema_version": 2, "turns": []}', "schema_version is 2; expected 1"),
        ('{"turns": [{"extra": 1}]}', r"turns\[0\] has extra"),
        ('{"turns": [{}]}', "node_id is missing"),
        ('{"turns": {}}', "turns: expected an array, got dict"),
    ],
)
def test_a_line_that_is_no_trace_is_refused_with_its_number(line, message, tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_text(f'{{"turns": []}}\n{line}\n')

    with pytest.raises(DataError, match=message, check=has_code("trace/malformed")):
        list(read_traces(path))


def test_one_name_for_two_turns_is_refused():
    with pytest.raises(DataError, match="node_id", check=has_code("trace/repeated-node")):
        TrainingTrace(turns=(GOOD, GOOD))


def test_what_does_not_train_is_discarded_and_half_a_turn_is_refused():
    untrained = TrainingTrace(
        turns=(replace(GOOD, node_id="b", loss_mask=(0, 0, 0, 0)), GOOD),
    )
    half = TrainingTrace(turns=(replace(GOOD, loss_mask=(0, 0, 0, 1)),))

    assert len(graph_from_trace(untrained, UID).trajectories()) == 1
    with pytest.raises(
        DataError, match="only some of its tokens train", check=has_code("trace/malformed")
    ):
        graph_from_trace(half, UID)


@pytest.mark.matrix
def test_released_openenv_reads_what_is_written_and_writes_what_is_read(graph, tmp_path):
    """Its own models, strict ones, in the virtual environment that docs/bridges.md makes for ``openenv``."""
    python = own_interpreter("openenv")
    given, back = tmp_path / "given.jsonl", tmp_path / "back.jsonl"
    trace = trace_from_graph(graph)
    write_traces(given, [trace, trace])
    code = (
        "import sys\n"
        "from openenv.core.harness.training import TrainingTrace\n"
        "traces = map(TrainingTrace.model_validate_json, open(sys.argv[1]))\n"
        "open(sys.argv[2], 'w').writelines(trace.model_dump_json() + '\\n' for trace in traces)\n"
    )

    subprocess.run(
        [f"{python}/bin/python", "-I", "-c", code, given, back], check=True, timeout=HANG_S
    )

    assert list(read_traces(back)) == list(read_traces(given))
    assert next(read_traces(back)) == trace
