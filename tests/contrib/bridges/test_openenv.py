"""The bridge to OpenEnv against a server that speaks its protocol, and breaks it."""

import asyncio
import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
from tests.contrib.bridges import openenv_server
from tests.deadlines import HANG_S
from tests.open_places import listening, promised

from rlhf_bridge_openenv.absent import absent_module, advice
from rlhf_bridge_openenv.actions import ActionForm, MalformedAction, action_form, call_action
from rlhf_bridge_openenv.config import OpenEnvConfig
from rlhf_bridge_openenv.environment import OpenEnvBridge
from rlhf_bridge_openenv.observations import NOTHING, offered_tools, shown, tool_result
from rlhf_bridge_openenv.servers import started_server, stop_servers
from rlhf_cli.main import main
from rlhf_core import ConfigError, RolloutError
from rlhf_core.contracts import Task, ToolCall, Uid
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

SERVER = Path(openenv_server.__file__)


@pytest.fixture(scope="module")
def url(served):
    """Address of the server."""
    return served(openenv_server.app)


@pytest.fixture
def bridge(url):
    """``bridge(**options)``: an episode at the server."""
    return lambda **options: OpenEnvBridge(OpenEnvConfig(url=url, **options))


def content(observation):
    return observation.messages[0]["content"]


def begin(environment, **row):
    async def begun():
        try:
            return await environment.reset(Task(uid=Uid(0, 0), row=row), 0)
        finally:
            await environment.close()

    return asyncio.run(begun())


def test_an_episode_is_played_to_its_end(bridge, played):
    seen, results = played(bridge(), ["1", "<action>9</action>", "3"], seed=0)

    assert content(seen) == "Answer with a JSON integer. Write it as <action>...</action>.\nguess"
    assert [content(result.observation) for result in results[:2]] == ["higher", "lower"]
    assert [result.reward for result in results] == [0.0, 0.0, 1.0]
    assert [result.done for result in results] == [False, False, True]
    assert results[-1].metrics == {"turns": 3.0, "malformed": 0.0}


def test_the_servers_tasks_are_rows_that_reset_plays(bridge, played):
    rows = bridge().tasks("train")

    assert len(rows) == 3
    assert rows[2] == {
        "key": "train-2",
        "task": {"id": "train/2"},
        "reset": {"split": "train", "index": 2},
    }
    assert played(bridge(), ["8"], **rows[2])[1][-1].reward == 1.0
    with pytest.raises(IndexError):
        rows[3]


def test_a_split_of_the_run_is_the_servers_of_that_name_or_kind_or_as_told(bridge):
    assert [row["key"] for row in bridge().tasks("eval")] == ["test-0"]
    assert [row["key"] for row in bridge(splits={"more": "test"}).tasks("more")] == ["test-0"]
    with pytest.raises(KeyError, match="the server has train, test"):
        bridge().tasks("more")


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("higher!", "error: expected a JSON integer"),
        ("true", "error: expected a JSON integer"),
        ("[" * 10_000, "error: expected a JSON integer"),
        ("11", "error: Invalid message; guess: Input should be less than 11"),
    ],
)
def test_an_answer_that_is_no_action_is_told_and_costs_what_the_option_says(
    bridge, played, word, told
):
    _, results = played(bridge(malformed_reward=-0.5), [word, "3"])

    assert content(results[0].observation) == told
    assert [result.reward for result in results] == [-0.5, 1.0]
    assert results[-1].metrics["malformed"] == 1.0


def test_an_answer_that_is_no_action_ends_the_episode_with_the_least_that_an_option_says(
    bridge, played
):
    _, results = played(bridge(least_reward=-7.0, malformed_reward=-0.5), ["1", "higher!", "3"])

    assert [result.reward for result in results] == [0.0, -7.0]
    assert results[-1].done


@pytest.mark.parametrize("at", ["reset", "step"])
@pytest.mark.parametrize(
    ("fault", "message", "code"),
    [
        ("silence", "did not answer (reset|step) within (0.5|30) s", "environment/too-slow"),
        ("huge", "with more than 1 MiB", "environment/closed"),
        ("text", "with what is no JSON", "environment/no-json"),
        ("deep", "with what is no JSON", "environment/no-json"),
        ("nan", "NaN is no finite number", "environment/no-json"),
        ("vast", "expected a finite number", "environment/not-a-number"),
        ("list", "expected an object with type and data", "environment/wrong-message"),
        ("type", "with the type 'state'; expected observation", "environment/wrong-message"),
        ("no_observation", "with the observation None", "environment/wrong-observation"),
        ("done", "with done = 'yes'", "environment/wrong-answer"),
        ("hang_up", "ended the session", "environment/closed"),
        ("raise", "EXECUTION_ERROR: no such move", "environment/refused"),
    ],
)
def test_a_broken_answer_is_an_error_that_names_environment_and_version(
    bridge, played, fault, message, at, code
):
    # On a busy machine the session may take longer to open than the shorter time.
    for seconds in (0.5, HANG_S / 10) if fault == "silence" else (HANG_S,):
        options = {"answer_s": seconds, "max_message_mib": 1}
        with pytest.raises(RolloutError) as caught:
            played(bridge(reset={"fault": fault, "at": at}, **options), ["3"])
        if caught.value.code == code:
            break

    assert caught.value.code == code
    assert re.search(message, str(caught.value))
    assert "OpenEnv environment Guess 2.1 at 127.0.0.1:" in str(caught.value)


def test_a_step_that_raises_may_be_told_to_the_policy(bridge, played):
    _, results = played(
        bridge(reset={"fault": "raise"}, step_errors="show", max_turns=2), ["3", "3"]
    )

    assert [content(result.observation) for result in results] == ["error: no such move"] * 2
    assert results[-1].done


@pytest.mark.parametrize(
    ("raw", "message", "code"),
    [
        (b"", "broke off its answer to GET /metadata", "environment/unreachable"),
        (b"\x00\xff" * 1000, "broke off its answer to GET /metadata", "environment/unreachable"),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", "what is no JSON", "environment/no-json"),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", "expected an object", "environment/wrong-answer"),
        (b"HTTP/1.1 503 Busy\r\n\r\n{}", "with status 503", "environment/status"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
            "broke off its answer",
            "environment/unreachable",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2**21, "more than 1 MiB", "environment/large-answer"),
    ],
)
def test_a_server_that_talks_nonsense_is_an_error(nonsense, raw, message, code):
    environment = OpenEnvBridge(OpenEnvConfig(url=nonsense(raw), max_message_mib=1))

    with pytest.raises(
        RolloutError, match=f"the OpenEnv server 127.0.0.1:.*{message}", check=has_code(code)
    ):
        begin(environment)


def test_a_half_open_connection_ends_at_its_deadline(nonsense):
    environment = OpenEnvBridge(
        OpenEnvConfig(
            url=nonsense(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", close=False),
            answer_s=0.3,
        )
    )

    with pytest.raises(
        RolloutError,
        match=r"did not answer GET /metadata within 0.3 s",
        check=has_code("environment/too-slow"),
    ):
        environment.tasks("train")


def test_a_server_that_is_down_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    environment = OpenEnvBridge(OpenEnvConfig(url=f"http://127.0.0.1:{port}"))

    with pytest.raises(
        RolloutError,
        match=rf"127.0.0.1:{port}: cannot be reached",
        check=has_code("environment/unreachable"),
    ):
        begin(environment)


def test_episodes_wait_for_room_and_leave_no_session(bridge):
    async def episode(seed):
        environment = bridge()
        await environment.reset(Task(uid=Uid(0, seed)), seed)
        await asyncio.sleep(0.02)
        await environment.close()

    async def all_at_once():
        await asyncio.gather(*map(episode, range(4 * openenv_server.CAPACITY)))
        while openenv_server.open_sessions:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(all_at_once(), HANG_S))


def test_a_server_that_stays_full_is_an_error(bridge):
    async def one_too_many():
        held = [bridge() for _ in range(openenv_server.CAPACITY)]
        for seed, environment in enumerate(held):
            await environment.reset(Task(uid=Uid(0, seed)), seed)
        try:
            await bridge(capacity_s=0.1).reset(Task(uid=Uid(0, 9)), 0)
        finally:
            for environment in held:
                await environment.close()

    with pytest.raises(
        RolloutError, match="CAPACITY_REACHED: full", check=has_code("environment/refused")
    ):
        asyncio.run(one_too_many())


def test_a_token_goes_with_each_request(bridge, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    openenv_server.headers_seen.clear()

    begin(bridge(bearer_file=str(tmp_path / "token")))

    seen = {headers["authorization"] for headers in openenv_server.headers_seen}
    assert seen == {"Bearer s3cret"}


@pytest.mark.parametrize(
    ("options", "message", "code"),
    [
        ({}, "got none", "environment/several-places"),
        ({"url": "http://a:1", "app": "b:c"}, "got url and app", "environment/several-places"),
        ({"url": "ftp://a"}, "expected http://HOST:PORT", "environment/address"),
        ({"url": "http://a:99999999"}, "expected http://HOST:PORT", "environment/address"),
        (
            {"url": "http://a", "bearer_file": "token"},
            "sent unencrypted",
            "environment/token-unencrypted",
        ),
        (
            {"url": "https://a", "bearer_file": "none"},
            "expected a file with a token",
            "environment/token-file",
        ),
        (
            {"url": "https://a", "bearer_file": "empty"},
            "expected one token",
            "environment/token-characters",
        ),
        (
            {"app": "a:b", "bearer_file": "token"},
            "expected url beside it",
            "environment/token-without-url",
        ),
        (
            {"app": "a:b", "server_python": "/none"},
            "expected a Python interpreter",
            "environment/no-interpreter",
        ),
        ({"app": "a:b", "server_folder": "/none"}, "expected a folder", "environment/no-folder"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message, tmp_path, monkeypatch, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("t")
    (tmp_path / "empty").write_text("\n")

    with pytest.raises(ConfigError, match=message, check=has_code(code)):
        OpenEnvBridge(OpenEnvConfig(**options))


@pytest.fixture
def started(no_process_left):
    yield
    stop_servers()


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    "options",
    [
        {"app": "openenv_server:app", "server_folder": str(SERVER.parent)},
        {"command": (sys.executable, str(SERVER), "{port}")},
    ],
)
def test_a_started_server_plays_and_one_that_died_is_started_again(played, options):
    config = OpenEnvConfig(**options, server_restarts=1, start_s=HANG_S)
    dying = config.model_copy(update={"reset": {"fault": "die"}})

    assert played(OpenEnvBridge(config), ["3"])[1][-1].reward == 1.0
    with pytest.raises(
        RolloutError, match="ended the session", check=has_code("environment/closed")
    ):
        played(OpenEnvBridge(dying), ["3"])
    assert played(OpenEnvBridge(config), ["3"])[1][-1].reward == 1.0
    with pytest.raises(
        RolloutError, match="ended the session", check=has_code("environment/closed")
    ):
        played(OpenEnvBridge(dying), ["3"])
    with pytest.raises(
        RolloutError,
        match="died 2 times; expected at most 1 restarts",
        check=has_code("environment/restarted-too-often"),
    ):
        played(OpenEnvBridge(config), ["3"])


@pytest.mark.usefixtures("started")
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read in /proc/net")
def test_a_server_that_a_run_starts_is_on_loopback():
    config = OpenEnvConfig(
        app="openenv_server:app", server_folder=str(SERVER.parent), start_s=HANG_S
    )
    before = listening(os.getpid())

    started_server(config).address()

    assert listening(os.getpid()) - before <= {"127.0.0.1"}
    where = promised("What listens, and where", "servers of OpenEnv that a run starts from `app`")
    assert where.startswith("127.0.0.1,")


@pytest.mark.usefixtures("started")
def test_an_absent_package_of_a_server_is_named_with_the_command_that_installs_it():
    config = OpenEnvConfig(app="no_such_env.server.app:app", start_s=HANG_S)

    with pytest.raises(ConfigError) as caught:
        started_server(config).address()

    said = str(caught.value)
    assert "the server no_such_env.server.app:app cannot start" in said
    assert f"{sys.executable} has no package no_such_env" in said
    assert f"  {sys.executable} -m pip install 'git+https://github.com/huggingface/OpenEnv" in said


@pytest.mark.usefixtures("started")
def test_a_server_that_ends_for_another_reason_shows_what_it_printed(tmp_path):
    (tmp_path / "broken_env.py").write_text("raise OSError('no such maze')")
    config = OpenEnvConfig(app="broken_env:app", server_folder=str(tmp_path), start_s=HANG_S)

    with pytest.raises(
        RolloutError,
        match=r"ended before it answered(.|\n)*OSError: no such maze",
        check=has_code("environment/not-started"),
    ):
        started_server(config).address()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/env/bin/python: No module named uvicorn", "/env/bin/python -m pip install 'openenv>=0.10"),
        ("ModuleNotFoundError: No module named 'openenv.core'", "pip install 'openenv>=0.10"),
        ("ModuleNotFoundError: No module named 'maze_env'", "subdirectory=envs/maze_env'"),
        ("ModuleNotFoundError: No module named 'maze_env.server.ap'", "has no module maze_env.server.ap;"),
        ("ModuleNotFoundError: No module named 'PIL.Image'", "/env/bin/python -m pip install PIL"),
    ],
)  # fmt: skip
def test_what_a_server_lacks_is_read_off_its_last_words(line, told):
    module = absent_module(["Traceback (most recent call last):", line, "later words"])

    assert told in advice(module, "maze_env.server.app:app", "/env/bin/python")


def test_words_that_name_no_absent_module_give_no_advice():
    assert absent_module(["OSError: no such maze", "No module named x was loaded"]) is None


@pytest.mark.usefixtures("started")
def test_a_server_that_never_answers_is_ended():
    config = OpenEnvConfig(
        command=(sys.executable, "-c", "import time; time.sleep(1000)"), start_s=0.5
    )

    with pytest.raises(
        RolloutError, match=r"did not answer within 0.5 s", check=has_code("environment/too-slow")
    ):
        started_server(config).address()


def test_what_a_failing_server_costs_a_run_is_the_executors_to_say(url, tmp_path):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    words = f"train --model {tmp_path / 'model'} --output {tmp_path / 'run'} --steps 1 --executor multi_turn"
    words += " --rollout.batch_size 2 --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 4"
    words += " --rollout.max_length 512 --rollout.multi_turn.on_error value --log.progress off"
    words += f" --log.tensorboard false --env openenv --env.openenv.url {url}/text/ --env.openenv.reset.fault raise"

    assert main([*words.split(), "--rollout.multi_turn.error_reward", "-1"]) == 0

    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    (metrics,) = [line["metrics"] for line in lines if line.get("metrics")]
    assert metrics["rollout/end/environment_error"] == 1.0
    assert metrics["reward/mean"] == -1.0
    log = (tmp_path / "run" / "run.log").read_text()
    assert "OpenEnv environment Guess 2.1 at 127.0.0.1:" in log
    assert "EXECUTION_ERROR: no such move" in log


def schema(**fields):
    return {"properties": {**fields, "metadata": {"type": "object"}}}


@pytest.mark.parametrize(
    ("fields", "options", "text", "action"),
    [
        ({"message": {"type": "string"}}, {}, " any {text} ", {"message": " any {text} "}),
        ({"message": {"type": "string"}}, {}, "half \ud800", {"message": "half ?"}),
        ({"move": {"type": "string", "enum": ["UP", "DOWN"]}}, {}, "I go <action>UP</action>", {"move": "UP"}),
        ({"x": {"type": "number"}}, {}, "0.5", {"x": 0.5}),
        ({"x": {"type": "boolean"}}, {}, "true", {"x": True}),
        ({"x": {"type": "integer"}, "y": {"type": "string"}}, {"action_field": "x"}, "7", {"x": 7}),
        ({"x": {"type": "integer"}, "y": {"type": "string"}}, {}, 'so:\n```json\n{"x": 1}\n```', {"x": 1}),
        ({"x": {"type": "integer"}}, {"action": "json"}, '{"x": 1}', {"x": 1}),
    ],
)  # fmt: skip
def test_answers_become_actions_by_the_schema(fields, options, text, action):
    assert action_form(schema(**fields), OpenEnvConfig(**options)).action(text) == action


@pytest.mark.parametrize(
    ("fields", "options", "text", "message"),
    [
        ({"move": {"type": "string", "enum": ["UP"]}}, {}, "LEFT", "expected one of: UP"),
        ({"x": {"type": "integer"}}, {}, "1.5", "expected a JSON integer"),
        ({"x": {"type": "array"}}, {}, "{}", "expected a JSON array"),
        ({"x": {}, "y": {}}, {}, "[]", "expected a JSON object"),
        ({"x": {}, "y": {}}, {}, "x = 1", "expected one JSON object"),
    ],
)
def test_answers_that_are_no_actions_say_what_was_expected(fields, options, text, message):
    with pytest.raises(MalformedAction, match=message):
        action_form(schema(**fields), OpenEnvConfig(**options)).action(text)


def test_a_choice_that_the_schema_defines_elsewhere_is_found():
    whole = {
        **schema(move={"$ref": "#/$defs/Move"}),
        "$defs": {"Move": {"type": "string", "enum": ["UP"]}},
    }

    form = action_form(whole, OpenEnvConfig())

    assert form.explained == "Answer with one of: UP. Write it as <action>...</action>."
    assert form.action("UP") == {"move": "UP"}


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"action": "text"}, "environment/unknown-action-field"),
        ({"action_field": "z"}, "environment/unknown-action-field"),
        ({"action": "tools"}, "environment/actions-no-tools"),
    ],
)
def test_a_form_that_the_schema_lacks_is_refused(options, code):
    with pytest.raises(
        ConfigError, match=r"expected one of the fields|no calls of tools", check=has_code(code)
    ):
        action_form(schema(x={}, y={}), OpenEnvConfig(**options))


def test_calls_of_tools_become_actions_and_their_results_texts():
    form = action_form(schema(type={}, tool_name={}, arguments={}), OpenEnvConfig())
    tools = offered_tools({"tools": [{"name": "add", "inputSchema": {"type": "object"}}]})

    assert isinstance(form, ActionForm)
    assert form.kind == "tools"
    assert tools[0]["function"]["name"] == "add"
    assert call_action(ToolCall(name="add", arguments='{"a": 1}')) == {
        "type": "call_tool",
        "tool_name": "add",
        "arguments": {"a": 1},
    }
    assert tool_result({"result": {"data": 3}}) == "3"
    assert (
        tool_result({"error": {"error_type": "timeout", "message": "late"}})
        == "error (timeout): late"
    )
    for arguments in ("[1]", "{"):
        with pytest.raises(MalformedAction):
            call_action(ToolCall(name="add", arguments=arguments))
    for listed in (None, {}, {"tools": []}, {"tools": [{"name": 1}]}):
        with pytest.raises(RolloutError):
            offered_tools(listed)


def test_what_is_shown_can_be_chosen():
    fields = {"question": "2+2?", "score": None, "metadata": {"answer": 4}}

    assert shown(fields, ()) == "2+2?"
    assert json.loads(shown(fields, ("question", "metadata"))) == {
        "question": "2+2?",
        "metadata": {"answer": 4},
    }
    assert shown({"score": None}, ()) == NOTHING
    with pytest.raises(
        RolloutError,
        match="question, score, metadata",
        check=has_code("environment/nothing-to-show"),
    ):
        shown(fields, ("hint",))
