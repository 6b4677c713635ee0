"""Task folders of Harbor in this machine's sandbox, and through a stand-in for a container engine."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from tests.contrib.bridges.judged_episode import judged_episode
from tests.deadlines import HANG_S

from rlhf_bridge_harbor.config import HarborConfig
from rlhf_bridge_harbor.dockerfiles import read_recipe
from rlhf_bridge_harbor.environment import HarborBridge
from rlhf_bridge_harbor.folders import read_folder, task_folders
from rlhf_bridge_harbor.rewards import chosen_reward, named_rewards, plain_reward
from rlhf_cli.main import main as rlhf
from rlhf_core import ConfigError, DataError, RolloutError
from rlhf_core.contracts import ToolCall
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model


def sandbox_works():
    probe = ["unshare", "-Urnmpf", "--map-root-user", "--mount-proc", "true"]
    return sys.platform == "linux" and subprocess.run(probe, capture_output=True).returncode == 0


in_a_sandbox = pytest.mark.skipif(
    not sandbox_works(), reason="this machine gives no namespaces to users"
)
VERIFIER = """
if [ "$(cat /app/hello.txt)" = "Hello, world!" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
DOCKERFILE = """
# comment
FROM ubuntu:24.04
RUN apt-get update \\
    && apt-get install -y cowsay
WORKDIR /app
ENV GREETING="Hello, world!" PLACE=here
COPY data.txt notes/ ./given/
"""


@pytest.fixture
def folder(tmp_path):
    """``folder(verifier, toml)``: the path of a task."""

    def make(verifier=VERIFIER, toml="", dockerfile=DOCKERFILE):
        path = tmp_path / "tasks" / "hello"
        for name in ("tests", "environment/notes", "solution"):
            (path / name).mkdir(parents=True, exist_ok=True)
        (path / "task.toml").write_text(f'schema_version = "1.1"\n{toml}')
        (path / "instruction.md").write_text("Write the greeting to hello.txt.\n")
        (path / "tests" / "test.sh").write_text(verifier)
        (path / "environment" / "Dockerfile").write_text(dockerfile)
        (path / "environment" / "data.txt").write_text("data")
        (path / "environment" / "notes" / "n.txt").write_text("note")
        return path

    return make


def command(text):
    return f"I think.\n```bash\n{text}\n```"


def play(path, words, **options):
    """The first observation, the results, the rewards of the episode."""
    config = HarborConfig(**{"host": True, "train": (str(path),), **options})
    (row,) = HarborBridge(config).tasks("train")
    episode = judged_episode(HarborBridge(config), row, words)
    return asyncio.run(asyncio.wait_for(episode, HANG_S))


def shown(result):
    return result.observation.messages[0]["content"]


@in_a_sandbox
@pytest.mark.usefixtures("no_process_left")
def test_commands_solve_a_task_and_the_verifier_rewards_it(folder):
    first, results, rewards = play(
        folder(), [command('echo "$GREETING" > hello.txt; ls given; exit 3'), "Done."]
    )

    assert first.messages[0]["content"].startswith("Write the greeting to hello.txt.")
    assert shown(results[0]) == "data.txt\nn.txt\n(exit status 3)"
    assert results[1].done
    assert results[1].rewards == {"verifier": 1.0}
    assert results[1].metrics == {"commands": 1.0, "verifier/missing": 0.0, "verifier/reward": 1.0}
    assert rewards == {}
    assert play(folder(), ["Done."])[1][0].rewards == {"verifier": 0.0}


@in_a_sandbox
def test_an_episode_that_a_limit_ends_is_verified(folder):
    solve = command('echo "$GREETING" > hello.txt')

    assert play(folder(), [solve])[2] == {"verifier": 1.0}
    assert play(folder(), [solve, solve], max_turns=1)[1][0].rewards == {"verifier": 1.0}


@in_a_sandbox
def test_calls_of_the_tool_are_commands_too(folder):
    call = ToolCall(name="bash", arguments='{"command": "pwd"}', id="c")
    wrong = ToolCall(name="bash", arguments="[" * 10_000)

    first, results, _ = play(folder(), [call, wrong, "Done."], form="tools")

    assert first.tools[0]["function"]["name"] == "bash"
    assert results[0].observation.messages[0] == {
        "role": "tool",
        "tool_call_id": "c",
        "name": "bash",
        "content": "/app",
    }
    assert "expected a call of bash" in shown(results[1])


@in_a_sandbox
def test_the_sandbox_shows_no_other_file_and_no_network(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    tries = f"""
    cat {secret}; cat /etc/shadow; cat /proc/1/environ | tr -d '\\0'; touch /usr/x; ls /tests
    mount -o remount,rw /usr; unshare -Urm true; kill -9 {os.getpid()}
    (echo > /dev/tcp/127.0.0.1/{os.getpid() % 60000 + 1}) 2>&1; grep CapEff /proc/self/status
    """

    _, results, _ = play(folder(), [command(tries)])

    text = shown(results[0])
    assert "s3cret" not in text
    assert "root:" not in text
    assert "Network is unreachable" in text
    assert "Read-only file system" in text
    assert "No such process" in text
    assert "CapEff:\t0000000000000000" in text


@in_a_sandbox
@pytest.mark.usefixtures("no_process_left")
def test_a_command_ends_at_its_deadline_with_all_that_it_started(folder):
    started = time.monotonic()

    _, results, _ = play(
        folder(), [command("setsid sleep 1000 & setsid sleep 1000"), "Done."], command_s=1.0
    )

    assert "killed after 1 s" in shown(results[0])
    assert time.monotonic() - started < HANG_S


@in_a_sandbox
@pytest.mark.usefixtures("no_process_left")
def test_what_a_command_leaves_running_ends_with_it_and_long_output_is_cut(folder):
    _, results, _ = play(
        folder(),
        [command("sleep 1000 & yes | head -c 10000000"), command("ps -e | wc -l"), "Done."],
        output_chars=100,
    )

    assert shown(results[0]) == "y\n" * 49 + "y\n(more output is left out)"
    assert int(shown(results[1])) < 10


@in_a_sandbox
def test_the_time_of_a_task_is_shared_by_its_commands(folder):
    path = folder(toml="[agent]\ntimeout_sec = 0.5\n")

    _, results, _ = play(path, [command("sleep 1000")])

    assert results[0].done  # The time is used up, so the verifier runs.


@in_a_sandbox
def test_the_policy_cannot_stand_in_for_the_verifier(folder):
    """Files and links of the policy at the verifier's places are gone when it runs, and no link is followed."""
    plant = command(
        "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh\n"
        "rm -rf /logs; mkdir -p /elsewhere; echo 1 > /elsewhere/reward.txt; ln -s /elsewhere /logs"
    )
    assert play(folder(), [plant, "Done."])[1][1].rewards == {"verifier": 0.0}
    links = "rm -rf /logs/verifier; ln -s /elsewhere /logs/verifier; echo 1 > /elsewhere/reward.txt"
    with pytest.raises(
        RolloutError, match="wrote no reward", check=has_code("environment/no-reward")
    ):
        play(folder(verifier=f"mkdir /elsewhere; {links}"), ["Done."])


@in_a_sandbox
@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        ("exit 5", r"wrote no reward; it printed: '\(exit status 5\)'"),
        ("echo nan > /logs/verifier/reward.txt", "expected finite numbers"),
        ("echo high > /logs/verifier/reward.txt", "expected a finite number"),
        ("head -c 3000000 /dev/zero > /logs/verifier/reward.txt", "more than 1 MiB"),
        ("mkfifo /logs/verifier/reward.txt", "wrote no reward"),
        ("ln -s /etc/passwd /logs/verifier/reward.txt", "wrote no reward"),
        ("echo '[1]' > /logs/verifier/reward.json", "expected an object of numbers"),
        ('echo \'{"a": 1, "b": 2}\' > /logs/verifier/reward.json', "the option reward_key"),
        ("sleep 1000", r"killed after 1 s"),
    ],
)
def test_a_verifier_without_a_reward_is_an_error_that_names_the_task(folder, verifier, message):
    limit = 1.0 if "killed" in message else 60.0
    path = folder(verifier, f'[task]\nname = "org/hello"\n[verifier]\ntimeout_sec = {limit}\n')

    with pytest.raises(
        RolloutError, match=message, check=has_code("environment/no-reward")
    ) as caught:
        play(path, ["Done."])

    assert str(caught.value).startswith("Harbor task org/hello (format 1.1): ")
    if "no reward" in message:
        assert play(path, ["Done."], missing_reward=-1.0)[1][0].rewards == {"verifier": -1.0}


@in_a_sandbox
def test_several_rewards_are_metrics_and_one_is_chosen(folder):
    verifier = 'echo \'{"speed": 0.5, "right": 1}\' > /logs/verifier/reward.json'

    (result,) = play(folder(verifier), ["Done."], reward_key="right")[1]

    assert result.rewards == {"verifier": 1.0}
    assert result.metrics["verifier/speed"] == 0.5


@in_a_sandbox
def test_variables_come_from_the_task_and_what_it_asks_of_the_host_from_the_options(folder):
    toml = '[environment]\nenv = {A = "${ASKED}", B = "${NONE:-b}"}\n[verifier]\nenv = {C = "c"}\n'
    verifier = 'echo "{\\"$A$B$C\\": 1}" > /logs/verifier/reward.json'

    _, results, _ = play(
        folder(verifier, toml),
        [command("echo $A$B$C; env | wc -l"), "Done."],
        variables={"ASKED": "a"},
    )

    assert shown(results[0]).startswith("ab\n")
    assert "verifier/abc" in results[1].metrics
    with pytest.raises(DataError, match="ASKED", check=has_code("environment/variable-of-host")):
        play(folder(verifier, toml), [])


@in_a_sandbox
@pytest.mark.usefixtures("no_process_left")
def test_commands_end_with_the_run_that_is_killed(folder, tmp_path):
    code = textwrap.dedent(f"""
        import asyncio, os, signal
        from tests.contrib.bridges.test_harbor import command, play
        async def die():
            await asyncio.sleep(1.5)
            os.kill(os.getpid(), signal.SIGKILL)
        import threading
        threading.Thread(target=lambda: asyncio.run(die())).start()
        play({str(folder())!r}, [command("sleep 1000")])
    """)

    ended = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # A killed run leaves its files.
        check=False,
        timeout=HANG_S,
    )

    assert ended.returncode == -signal.SIGKILL


def test_a_task_is_refused_by_name_where_there_is_no_engine(folder):
    path = folder(toml='[task]\nname = "org/hello"\n')

    with pytest.raises(
        DataError,
        match=r"org/hello.*the image of environment/Dockerfile",
        check=has_code("environment/no-container-engine"),
    ):
        HarborBridge(HarborConfig(train=(str(path),))).tasks("train")
    with pytest.raises(ConfigError, check=has_code("environment/engine-and-host")):
        HarborBridge(HarborConfig(train=(str(path),), host=True, engine="docker")).tasks("train")
    with pytest.raises(KeyError):
        HarborBridge(HarborConfig()).tasks("train")


@pytest.mark.parametrize(
    ("toml", "message", "code"),
    [
        (
            "[[steps]]\nname = 'a'",
            r"needs steps with instructions of their own \(\[\[steps\]\]\)",
            "environment/task-needs-more",
        ),
        (
            "[environment]\ngpus = 1",
            r"needs GPUs \(environment.gpus\)",
            "environment/task-needs-more",
        ),
        (
            "[environment]\nmcp_servers = [{name = 'a'}]",
            "needs MCP servers",
            "environment/task-needs-more",
        ),
        (
            "[environment]\nos = 'windows'",
            "needs another system than Linux",
            "environment/task-needs-more",
        ),
        (
            "[verifier]\nenvironment_mode = 'separate'",
            "a machine of its own for the verifier",
            "environment/task-needs-more",
        ),
        (
            "[environment]\nmemory_mb = 'much'",
            "memory_mb is 'much'; expected a number above 0",
            "environment/task-number",
        ),
        (
            "[agent]\ntimeout_sec = nan",
            "timeout_sec is nan; expected a number above 0",
            "environment/task-number",
        ),
        ("environment = 5", r"expected a table \[environment\]", "environment/task-table"),
        ("[environment]\nenv = 5", "env is 5; expected a table", "environment/task-table"),
        ("[", "expected a task of Harbor with task.toml", "environment/no-task-file"),
    ],
)
def test_what_a_task_needs_and_would_not_get_is_named(folder, toml, message, code):
    with pytest.raises(DataError, match=message, check=has_code(code)):
        read_folder(folder(toml=toml), {})


def test_folders_are_found_below_a_folder_and_incomplete_ones_are_named(folder, tmp_path):
    path = folder()
    (tmp_path / "tasks" / "loop").symlink_to(tmp_path / "tasks")

    assert task_folders([str(tmp_path / "tasks")]) == [path]
    (path / "environment" / "docker-compose.yaml").write_text("")
    with pytest.raises(
        DataError, match="several containers", check=has_code("environment/task-needs-more")
    ):
        read_folder(path, {})
    (path / "environment" / "docker-compose.yaml").unlink()
    (path / "tests" / "test.sh").unlink()
    with pytest.raises(
        DataError, match=r"tests/test\.sh", check=has_code("environment/task-without-test")
    ):
        read_folder(path, {})
    (path / "instruction.md").unlink()
    with pytest.raises(
        DataError, match=r"instruction\.md", check=has_code("environment/task-without-instruction")
    ):
        read_folder(path, {})
    with pytest.raises(
        DataError, match=r"task\.toml", check=has_code("environment/no-task-folder")
    ):
        task_folders([str(tmp_path / "none")])


def test_of_a_dockerfile_three_instructions_hold_and_the_rest_is_listed(tmp_path):
    (tmp_path / "Dockerfile").write_text(
        DOCKERFILE + 'WORKDIR sub\nENV OLD form\nCOPY ["a b", "c"]\n'
    )

    recipe = read_recipe(tmp_path / "Dockerfile")

    assert recipe.workdir == "/app/sub"
    assert recipe.variables == {"GREETING": "Hello, world!", "PLACE": "here", "OLD": "form"}
    assert recipe.copies == [
        ("data.txt", "/app/given/"),
        ("notes/", "/app/given/"),
        ("a b", "/app/sub/c"),
    ]
    assert [line.partition(" ")[0] for line in recipe.left_out] == ["FROM", "RUN"]
    assert read_recipe(None).workdir == ""


@pytest.mark.parametrize(
    "line", ["WORKDIR a b", "COPY x ../../etc/y", "ENV", "FROM a\nFROM b", "COPY [1"]
)
def test_a_dockerfile_that_cannot_be_read_is_refused(tmp_path, line):
    (tmp_path / "Dockerfile").write_text(line)

    with pytest.raises(DataError, check=has_code("environment/dockerfile-line")):
        read_recipe(tmp_path / "Dockerfile")


@in_a_sandbox
@pytest.mark.parametrize("source", ["../task.toml", "none.txt", "/../../x"])
def test_a_dockerfile_copies_nothing_from_elsewhere(folder, source):
    with pytest.raises(DataError, check=has_code("environment/copies-from-outside")):
        play(folder(dockerfile=f"COPY {source} /x"), [])


def test_rewards_are_read_as_harbor_writes_them():
    assert plain_reward(b" 0.5\n") == {"reward": 0.5}
    assert named_rewards(b'{"a": 1, "b": 0.5}') == {"a": 1.0, "b": 0.5}
    assert chosen_reward({"a": 1.0}, "") == 1.0
    assert chosen_reward({"a": 1.0, "reward": 0.0}, "") == 0.0
    for raw in (b"", b"1 2", b"inf", b"\xff", b"1e400"):
        with pytest.raises(RolloutError):
            plain_reward(raw)
    for raw in (b"{}", b'{"a": true}', b'{"a": "b"}', b'{"a": 1e999}', b"[" * 100_000, b"\xff"):
        with pytest.raises(RolloutError):
            named_rewards(raw)
    with pytest.raises(RolloutError):
        chosen_reward({"a": 1.0}, "b")


ENGINE = """#!/bin/bash
# Stands for an engine: writes down what it is asked, and runs commands on this machine in a folder.
echo "$*" >> {log}
case "$1" in
    build) [ -z "$BROKEN_BUILD" ] ;;
    run | rm) ;;
    cp) cp -r "$2" {root}/tests ;;
    exec)
        script="${{@: -1}}"
        case "$script" in
            kill*) rm -rf {root}/logs; mkdir -p {root}/logs/verifier ;;
            *) script="${{script//\\/tests/{root}/tests}}"; cd {root} && bash -c "${{script//\\/logs/{root}/logs}}" ;;
        esac ;;
esac
"""


@pytest.fixture
def engine(tmp_path):
    """A stand-in for a container engine, and the file in which it writes what it is asked."""
    root, log = tmp_path / "container", tmp_path / "log"
    root.mkdir()
    program = tmp_path / "engine"
    program.write_text(ENGINE.format(log=log, root=root))
    program.chmod(0o700)
    return program, log


def test_an_engine_is_asked_to_build_run_and_remove(folder, engine):
    program, log = engine
    toml = "[environment]\nallow_internet = false\ncpus = 2\nmemory_mb = 512\nworkdir = '/w'\n"
    verifier = "cat hello.txt > logs/verifier/reward.txt"
    path = folder(verifier, toml)

    _, results, _ = play(
        path, [command("echo 0.75 > hello.txt; echo ok")], host=False, engine=str(program)
    )

    assert shown(results[0]) == "ok"
    lines = log.read_text().splitlines()
    name = lines[1].split("--name ")[1].split()[0]
    image = lines[0].split("-t ")[1].split()[0]
    assert lines[0] == f"build -q -t {image} {path / 'environment'}"
    assert lines[1] == (
        f"run -d --rm --name {name} --cpus 2 --memory 512m --network none --entrypoint sleep {image} infinity"
    )
    assert lines[2].startswith(f"exec -w /w {name} timeout -s KILL -k 1 60 bash -c echo 0.75")
    assert lines[-1] == f"rm -f {name}"


def test_an_engine_that_fails_is_an_error_that_names_the_task(folder, engine, monkeypatch):
    program, _ = engine
    monkeypatch.setenv("BROKEN_BUILD", "1")

    with pytest.raises(
        RolloutError,
        match=r"Harbor task hello .*build ended with status 1",
        check=has_code("container/failed"),
    ):
        play(folder(), [], host=False, engine=str(program))
    with pytest.raises(
        RolloutError,
        match="expected a program that runs containers",
        check=has_code("container/no-engine"),
    ):
        play(folder(), [], host=False, engine="/no/such/engine")


@in_a_sandbox
@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(
    ("verifier", "metric", "reward"),
    [
        ("echo 0.5 > /logs/verifier/reward.txt", "rollout/end/finished", 0.5),
        pytest.param("exit 1", "rollout/end/environment_error", -1.0, marks=pytest.mark.matrix),
    ],
)
def test_a_run_trains_on_a_task_and_a_failing_verifier_costs_what_the_executor_says(
    folder, tmp_path, verifier, metric, reward
):
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    words = f"train --model {tmp_path / 'model'} --output {tmp_path / 'run'} --steps 1 --executor multi_turn"
    words += " --rollout.batch_size 1 --rollout.n_samples_per_prompt 2 --rollout.max_new_tokens 4"
    words += " --rollout.max_length 1024 --log.progress off --log.tensorboard false --env harbor"
    words += f" --env.harbor.train {folder(verifier)} --env.harbor.host true"
    words += " --rollout.multi_turn.on_error value --rollout.multi_turn.error_reward"

    assert rlhf([*words.split(), "-1"]) == 0

    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    (metrics,) = [line["metrics"] for line in lines if line.get("metrics")]
    assert metrics[metric] == 1.0
    assert metrics["reward/mean"] == reward
