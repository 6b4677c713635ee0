"""The bridge to NeMo Gym against servers that speak its protocols, and break them."""

import asyncio
import json
import socket
from types import SimpleNamespace

import pytest
from tests.contrib.bridges import nemo_gym_server
from tests.contrib.bridges.judged_episode import judged_episode
from tests.deadlines import HANG_S

from rlhf_bridge_nemo_gym.agent import nemo_gym_agent
from rlhf_bridge_nemo_gym.config import NemoGymConfig
from rlhf_bridge_nemo_gym.environment import NemoGymBridge
from rlhf_bridge_nemo_gym.items import chat_tools, messages_of
from rlhf_bridge_nemo_gym.relay import relay_at
from rlhf_bridge_nemo_gym.rows import gym_rows, main
from rlhf_cli.main import main as rlhf
from rlhf_core import ConfigError, DataError, RolloutError
from rlhf_core.contracts import ToolCall
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

TOOL = {"type": "function", "name": "increment", "parameters": {"type": "object"}, "strict": True}
VERIFY = {"type": "function", "name": "verify", "parameters": {"type": "object"}}


@pytest.fixture(scope="module")
def url(served):
    """Address of the servers."""
    return served(nemo_gym_server.app)


def row(**fields):
    params = {"input": [{"role": "developer", "content": "Count."}], "tools": [TOOL, VERIFY]}
    return {"responses_create_params": params, **fields}


def play(url, kind, gym, actions, **options):
    """The first observation, the results, the rewards of the episode."""
    environment = NemoGymBridge(NemoGymConfig(url=f"{url}/{kind}", label="count@3", **options))
    return asyncio.run(judged_episode(environment, {"gym": gym}, actions))


def call(arguments, name="increment"):
    return ToolCall(name=name, arguments=arguments)


def content(result):
    return result.observation.messages[0]["content"]


def test_calls_go_to_the_tools_routes_and_the_verifier_gives_the_reward(url):
    gym = row(initial_count=3, expected_count=6)

    first, results, rewards = play(url, "tools", gym, [call('{"count": 3}'), "six"])

    assert first.messages == ({"role": "system", "content": "Count."},)
    assert [tool["function"]["name"] for tool in first.tools] == ["increment", "verify"]
    assert json.loads(content(results[0])) == {"count": 6}
    assert results[1].rewards == {"verify": 1.0}
    assert results[1].metrics == {"verify/extracted": 1.0, "verify/format": 1.0}
    assert rewards == {}
    kinds = [item["type"] for item in nemo_gym_server.seen["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message"]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (call('{"count": "x"}'), "not an integer"),
        (call("{"), "Invalid tool call arguments"),
        (call("[" * 10_000), "Invalid tool call arguments"),
        (call("{}", name="seed_session"), "no tool seed_session"),
        (call("{}", name="verify"), "no tool verify"),
        (call("{}", name="../steps/reset"), "no tool"),
    ],
)
def test_a_call_that_fails_is_what_the_policy_reads(url, made, told):
    _, results, _ = play(url, "tools", row(expected_count=0), [made, "none"])

    assert told in content(results[0])
    assert results[1].rewards == {"verify": 1.0}


def test_an_episode_that_a_limit_ends_is_verified_at_its_end(url):
    gym = row(expected_count=2)

    by_run = play(url, "tools", gym, [call('{"count": 2}')])
    by_option = play(url, "tools", gym, [call('{"count": 2}')] * 2, max_steps=1)

    assert (by_run[1][0].done, by_run[2]) == (False, {"verify": 1.0})
    assert by_option[1][0].done
    assert by_option[1][0].rewards == {"verify": 0.0}  # The call of the last turn is not made.


def test_steps_are_rewarded_until_the_server_ends_them(url):
    gym = row(greeting="hello", follow_ups=["go on"])
    nemo_gym_server.closed.clear()

    first, results, rewards = play(url, "steps", gym, [call('{"a": 1}'), "b"])

    assert [message["content"] for message in first.messages] == ["Count.", "hello"]
    assert [message["role"] for message in results[0].observation.messages] == ["tool", "user"]
    assert [(result.reward, result.done) for result in results] == [(0.5, False), (0.5, True)]
    assert results[1].metrics == {"info/turn": 2.0}
    assert rewards == {}
    assert len(nemo_gym_server.closed) == 1


@pytest.mark.parametrize(
    ("kind", "path", "fault", "message", "code"),
    [
        (
            "tools",
            "/seed_session",
            "error",
            "answered /seed_session with status 500",
            "environment/status",
        ),
        ("tools", "/seed_session", "text", "with what is no JSON", "environment/no-json"),
        ("tools", "/verify", "text", "with what is no JSON", "environment/no-json"),
        ("tools", "/verify", "deep", "with what is no JSON", "environment/no-json"),
        ("tools", "/verify", "list", "expected an object", "environment/wrong-answer"),
        ("tools", "/verify", "huge", "more than 1 MiB", "environment/large-answer"),
        ("tools", "/verify", "nan", "NaN is no finite number", "environment/no-json"),
        ("tools", "/verify", "none", "gave the reward None", "environment/no-reward"),
        ("tools", "/verify", "words", "gave the reward 'high'", "environment/no-reward"),
        ("tools", "/verify", "vast", "expected a finite number", "environment/no-reward"),
        (
            "steps",
            "/reset",
            "observation",
            "gave the observation 5",
            "environment/wrong-observation",
        ),
        ("steps", "/reset", "info", r"gave info = \[\]", "environment/wrong-answer"),
        (
            "steps",
            "/step",
            "observation",
            "gave the observation 5",
            "environment/wrong-observation",
        ),
        (
            "steps",
            "/step",
            "outputs",
            "expected texts with call_id and output",
            "environment/wrong-answer",
        ),
        ("steps", "/step", "error", "answered /step with status 500", "environment/status"),
        ("steps", "/step", "none", "gave the reward None", "environment/no-reward"),
    ],
)
def test_a_broken_answer_is_an_error_that_names_the_environment(
    url, kind, path, fault, message, code
):
    with pytest.raises(RolloutError, match=message, check=has_code(code)) as caught:
        play(url, kind, row(fault={path: fault}), ["a"], max_answer_mib=1)

    assert str(caught.value).startswith("NeMo Gym environment count@3 at 127.0.0.1:")


@pytest.mark.parametrize(
    ("raw", "close", "message", "code"),
    [
        (b"", True, "broke off", "environment/unreachable"),
        (b"\x00\xff" * 100, True, "broke off", "environment/unreachable"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
            False,
            "did not answer /openapi.json",
            "environment/too-slow",
        ),
    ],
)
def test_a_server_that_breaks_off_is_an_error(nonsense, raw, close, message, code):
    with pytest.raises(RolloutError, match=message, check=has_code(code)):
        play(nonsense(raw, close), "", row(), [], answer_s=HANG_S if close else 0.5)


def test_a_server_that_is_down_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

    with pytest.raises(
        RolloutError, match="cannot be reached", check=has_code("environment/unreachable")
    ):
        play(f"http://127.0.0.1:{port}", "", row(), [])


def test_an_agent_server_is_no_resources_server(url):
    with pytest.raises(ConfigError, check=has_code("environment/agent-server")):
        play(url, "agent", row(), [])
    with pytest.raises(ConfigError, check=has_code("environment/address")):
        NemoGymBridge(NemoGymConfig(url="127.0.0.1:80"))


def test_files_are_tasks_and_bad_rows_are_named(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(row(n=1)) + "\n\n" + json.dumps(row(n=2)))
    environment = NemoGymBridge(NemoGymConfig(url="http://a:1", train=(str(tmp_path / "a.jsonl"),)))

    assert [one["key"] for one in environment.tasks("train")] == ["train-0", "train-1"]
    assert environment.tasks("train")[1]["gym"]["n"] == 2
    with pytest.raises(KeyError):
        environment.tasks("eval")
    asyncio.run(environment.close())
    for bad in ("{", "[]", "{}", '{"responses_create_params": {"input": 5}}'):
        (tmp_path / "bad.jsonl").write_text(json.dumps(row()) + "\n" + bad)
        with pytest.raises(
            DataError, match=r"bad\.jsonl, line 2", check=has_code("data/malformed-task")
        ):
            gym_rows([str(tmp_path / "bad.jsonl")], "train")
    with pytest.raises(DataError, check=has_code("data/unreadable-tasks")):
        gym_rows([str(tmp_path / "none.jsonl")], "train")


def test_files_become_rows_for_data(tmp_path, capsys):
    (tmp_path / "gym.jsonl").write_text(json.dumps(row()))

    assert main([str(tmp_path / "gym.jsonl"), str(tmp_path / "out.jsonl")]) == 0
    written = json.loads((tmp_path / "out.jsonl").read_text())
    assert written == {"prompt": [{"role": "system", "content": "Count."}], "gym": row()}
    assert main([str(tmp_path / "none.jsonl"), str(tmp_path / "out.jsonl")]) == 2
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


def test_items_become_messages_and_what_is_no_text_is_refused():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ]  # fmt: skip

    user, called, told = messages_of(items)

    assert user == {"role": "user", "content": "ab"}
    assert called["tool_calls"][0]["id"] == told["tool_call_id"] == "c"
    assert messages_of("hi") == ({"role": "user", "content": "hi"},)
    picture = [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
    for bad in (picture, [], None, [5], [{"type": "reasoning"}]):
        with pytest.raises(RolloutError):
            messages_of(bad)
    with pytest.raises(RolloutError):
        chat_tools([{"type": "web_search"}])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def test_the_relay_refuses_requests_that_name_no_episode():
    import httpx2

    async def asked():
        port = free_port()
        await relay_at(port)
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=HANG_S
        ) as client:
            replies = [
                await client.post("/v1/responses", json={"metadata": {"rlhf_episode": "e0"}}),
                await client.post("/ng-rollout/e0/v1/responses", json={}),
                await client.post("/v1/files", json={}),
                await client.post("/v1/responses", content=b"{"),
                await client.get("/v1/responses"),
            ]
        with pytest.raises(ConfigError, check=has_code("environment/port-taken")):
            await asyncio.to_thread(asyncio.run, relay_at(port))
        return [reply.status_code for reply in replies]

    assert asyncio.run(asked()) == [404] * 5


@pytest.mark.parametrize(
    ("fault", "message"),
    [("text", "no JSON"), ("none", "the reward None"), ("error", "status 500")],
)
def test_an_agent_server_that_answers_nonsense_is_an_error(url, fault, message):
    agent = nemo_gym_agent(f"{url}/agent", relay_port=free_port(), label="count@3")
    gym = row(fault={"/run": fault}, model_url=f"{url}/none")
    context = SimpleNamespace(row={"gym": gym}, base_url=f"{url}/v1", api_key="k", model="m")

    with pytest.raises((RolloutError, json.JSONDecodeError), match=message):
        asyncio.run(agent(context))


@pytest.mark.parametrize("by_path", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_an_episode_of_an_agent_server_trains(url, tmp_path, by_path):
    port = free_port()
    gym = {
        "responses_create_params": {"input": "2+2="},
        "model_url": f"http://127.0.0.1:{port}",
        "by_path": by_path,
    }
    (tmp_path / "gym.jsonl").write_text("\n".join([json.dumps(gym)] * 2))
    assert main([str(tmp_path / "gym.jsonl"), str(tmp_path / "rows.jsonl")]) == 0
    (tmp_path / "my_agent.py").write_text(
        "from rlhf_bridge_nemo_gym.agent import nemo_gym_agent\n"
        f"agent = nemo_gym_agent('{url}/agent', relay_port={port})\n"
    )
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    words = f"train --model {tmp_path / 'model'} --output {tmp_path / 'run'} --steps 1"
    words += f" --data {tmp_path / 'rows.jsonl'} --data.chat true --executor endpoint"
    words += f" --rollout.endpoint.agent {tmp_path / 'my_agent.py'}:agent --rollout.batch_size 2"
    words += (
        " --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 4 --rollout.max_length 2048"
    )
    words += " --log.progress off --log.tensorboard false"

    assert rlhf(words.split()) == 0

    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    (metrics,) = [line["metrics"] for line in lines if line.get("metrics")]
    assert metrics["reward/mean"] == 0.25
    assert metrics["rollout/endpoint/requests"] == 1.0
    assert nemo_gym_server.seen["model"]["object"] == "response"
    assert nemo_gym_server.seen["model"]["metadata"] == {}
