"""What commands listen at, and the modes of what they make, are what docs/security.md says; the page is read here.

Each command is looked at while it works: its processes, their sockets in /proc/net, and the files that it has made so
far, under a umask that takes nothing away.
"""

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.deadlines import HANG_S
from tests.open_places import listening, modes, ports, processes, promised

HOLD = """
import pathlib, time
pathlib.Path({now!r}).touch()
while not pathlib.Path({go!r}).exists():
    time.sleep(0.02)
"""
"""Code of a reward or an agent, during which the run is looked at."""
ASKS = """
import json, os, urllib.request
message = {"role": "user", "content": "7?"}
urllib.request.urlopen(
    urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["RLHF_MODEL"], "messages": [message]}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"},
    )
).read()
print('{"reward": 1.0}')
"""
"""Code of an agent that asks once."""
ENVIRONMENT = """
from rlhf_core.contracts import Observation, StepResult

class Count:
    async def reset(self, task, seed):
        return Observation(text=str(seed))
    async def step(self, action):
        return StepResult(reward=0.0, done=True)
    async def close(self):
        pass
"""
SERVED = """
import sys
from rlhf_plugin_reward_model.serving import command
command._load = lambda options: command.ServedModel(lambda: "a model", list, list)
sys.exit(command.serve_rm(["model", "--port", "0"]))
"""
"""``rlhf serve-rm`` whose model is none: what listens does not depend on it."""
RANK = """
import sys
import torch, torch.distributed as dist
from rlhf_torch.ranks.ranks import join
join(torch.device("cpu"))
mine = dist.new_group([0, 1])  # as DeepSpeed makes them
numbers = torch.ones(1)
for group in (None, mine):
    dist.all_reduce(numbers, group=group)
print("joined", float(numbers), flush=True)
sys.stdin.readline()
dist.all_reduce(numbers)
print("summed", float(numbers), flush=True)
"""
IN_TURN = """
import pathlib, sys
from rlhf_cli.main import main
for number, words in enumerate(sys.argv[1:]):
    pathlib.Path("new").write_text(words)
    pathlib.Path("new").replace("at_work")
    command, *rest = words.split()
    model = [] if command == "plan" else ["--model", "model"]
    output = [] if command == "plan" else ["--output", f"run{number}"]
    if code := main([command, *rest, *model, *output]):
        sys.exit(f"{words}: {code}")
"""
"""Commands one after another; a file says which is at work."""
OTHERS = (
    "plan model",
    "sft --data sums.jsonl --steps 2 --train.batch_size 2",
    "generate --data mine.jsonl --rollout.max_new_tokens 4",
    "eval --data mine.jsonl --reward my_reward.py:score --rollout.max_new_tokens 4",
    "dpo --data pairs.jsonl --steps 2 --train.batch_size 2",
    "rm --data pairs.jsonl --steps 2 --train.batch_size 2",
    "prm --data steps.jsonl --steps 2 --train.batch_size 2",
    "distill --data sums.jsonl --steps 2 --train.batch_size 2 --teacher.path model",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read in /proc/net"),
]


@contextmanager
def started(words, folder, umask):
    """A command in a folder, with a folder for temporary files of its own."""
    (folder / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    environment.pop("RLHF_REWARD_TOKEN", None)
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        umask=umask,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def at_work(workspace, umask, *words):
    """A run whose reward or agent has begun; it is let go on afterwards, and has to end well."""
    small = ["--rollout.batch_size", "1", "--rollout.n_samples_per_prompt", "2", "--steps", "1"]
    small += ["--rollout.max_new_tokens", "4", "--data.max_prompt_tokens", "256"]
    small += ["--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false"]
    given = ["--model", "model", "--data", "mine.jsonl", "--output", "run", *small, *words]
    with started(["-m", "rlhf_cli", "train", *given], workspace, umask) as process:
        give_up = time.monotonic() + HANG_S
        while not (workspace / "now").exists() and process.poll() is None:
            assert time.monotonic() < give_up
            time.sleep(0.05)
        assert process.poll() is None, process.stdout.read()
        yield process
        (workspace / "go").touch()
        said = process.communicate(timeout=HANG_S)[0]
        assert process.returncode == 0, said


def hold(workspace):
    return HOLD.format(now=str(workspace / "now"), go=str(workspace / "go"))


def test_a_run_in_one_process_and_its_workers_listen_nowhere(workspace):
    body = "".join(f"    {line}\n" for line in hold(workspace).splitlines())
    (workspace / "my_reward.py").write_text(f"def score(response):\n{body}    return 1.0\n")
    reward = ["--reward", "my_reward.py:score", "--reward.score.timeout_s", str(HANG_S)]

    with at_work(workspace, 0o000, *reward, "--estimator", "reinforce") as process:
        assert listening(process.pid) == set()
        assert len(processes(process.pid)) > 1

    for who in ("`rlhf train`", "workers of rewards"):
        assert promised("What listens, and where", who).startswith("nothing listens")
    assert modes(workspace / "tmp") == {}
    assert promised("Files", "the run folder") == "your umask"
    made = list((workspace / "run").rglob("*"))
    assert {"metrics.jsonl", "model.safetensors"} <= {path.name for path in made}
    # All that such a umask leaves: of folders 777, of files 666.
    assert {(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in made} == {
        (True, 0o777),
        (False, 0o666),
    }


def test_agents_get_a_loopback_port_and_a_folder_of_their_own(workspace):
    (workspace / "agent.py").write_text(hold(workspace) + ASKS)
    agent = ["--executor", "endpoint", "--rollout.endpoint.agent", "command"]
    agent += ["--rollout.endpoint.command", sys.executable, str(workspace / "agent.py")]
    agent += ["--rollout.max_length", "320", "--estimator", "reinforce"]

    with at_work(workspace, 0o000, *agent) as process:
        assert listening(process.pid) == {"127.0.0.1"}
        folders = modes(workspace / "tmp")

    assert promised("What listens, and where", "executor `endpoint`").startswith("127.0.0.1,")
    assert folders
    assert set(folders.values()) == {promised("Files", "an agent's folder").lstrip("0")}
    assert modes(workspace / "tmp") == {}


def test_ranks_of_one_machine_listen_on_the_loopback_and_answer_nobody(tmp_path, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    ranks = []
    with ExitStack() as running:
        for rank in ("0", "1"):
            monkeypatch.setenv("RANK", rank)
            (tmp_path / rank).mkdir()
            ranks.append(running.enter_context(started(["-c", RANK], tmp_path / rank, 0o000)))
        for process in ranks:
            assert process.stdout.readline() == "joined 4.0\n"
        for process in ranks:
            assert listening(process.pid) == {"127.0.0.1"}
            found = ports(process.pid)
            assert len(found) == 2
            for address in found:
                with pytest.raises(TimeoutError):
                    socket.create_connection(address, timeout=0.2)
            assert modes(tmp_path / str(ranks.index(process)) / "tmp") == {}
        for process in ranks:
            process.stdin.write("\n")
            process.stdin.flush()
        for process in ranks:
            assert process.communicate(timeout=HANG_S)[0] == "summed 8.0\n"

    assert promised("What listens, and where", "ranks of one machine").startswith(
        "127.0.0.1, a free port for each member"
    )


@pytest.mark.parametrize("umask", [0o000, 0o022])
def test_a_served_environment_is_on_loopback_and_its_token_its_owners_alone(tmp_path, umask):
    (tmp_path / "mine.py").write_text(ENVIRONMENT)
    words = ["-m", "rlhf_cli", "env", "serve", "mine.py:Count", "--token-file", "token"]

    with started(words, tmp_path, umask) as process:
        assert process.stdout.readline().startswith("serving count")
        assert listening(process.pid) == {"127.0.0.1"}

    assert promised("What listens, and where", "`rlhf env serve`").startswith("127.0.0.1 ")
    promise = promised("Files", "`rlhf env serve --token-file FILE` writes")
    assert modes(tmp_path)["token"] == promise.lstrip("0")


def test_a_served_reward_model_is_on_loopback_and_writes_nothing(tmp_path):
    with started(["-c", SERVED], tmp_path, 0o000) as process:
        while not (line := process.stdout.readline()).startswith("token:"):
            assert line, "the server ended"
        assert listening(process.pid) == {"127.0.0.1"}
        assert modes(tmp_path / "tmp") == {}

    assert promised("What listens, and where", "`rlhf serve-rm`").startswith("127.0.0.1 ")
    assert set(modes(tmp_path)) == {"tmp"}


def test_other_commands_of_one_process_listen_nowhere_from_start_to_end(workspace):
    """One after another in one process, which imports what they need once."""
    rows = [json.dumps({"prompt": f"{n}=", "response": "1"}) for n in range(8)]
    (workspace / "sums.jsonl").write_text("\n".join(rows) + "\n")
    pairs = [json.dumps({"prompt": f"{n}=", "chosen": "1", "rejected": "0"}) for n in range(8)]
    (workspace / "pairs.jsonl").write_text("\n".join(pairs) + "\n")
    judged = [
        json.dumps({"prompt": f"{n}=", "completions": ["1", "2"], "labels": [True, False]})
        for n in range(8)
    ]
    (workspace / "steps.jsonl").write_text("\n".join(judged) + "\n")
    told, seen, looks = workspace / "at_work", {}, Counter()

    with started(["-c", IN_TURN, *OTHERS], workspace, 0o022) as process:
        give_up = time.monotonic() + HANG_S
        while process.poll() is None:
            assert time.monotonic() < give_up
            at_work = told.read_text() if told.exists() else "the start"
            seen |= {address: at_work for address in listening(process.pid)}
            looks[at_work] += 1
            time.sleep(0.1)
        assert process.returncode == 0, process.communicate()[0]

    assert seen == {}
    assert len(looks.keys() & set(OTHERS)) > len(OTHERS) // 2, looks
    assert modes(workspace / "tmp") == {}
    for words in OTHERS:
        command = words.partition(" ")[0]
        assert promised("What listens, and where", f"`{command}`").startswith("nothing listens")


def test_a_chat_listens_nowhere(workspace):
    words = ["-m", "rlhf_cli", "chat", "model", "--rollout.max_new_tokens", "4"]

    with started(words, workspace, 0o022) as process:
        process.stdin.write("hello\n")
        process.stdin.flush()
        while line := process.stdout.readline():
            if line.strip():
                break
        assert process.poll() is None, line
        assert listening(process.pid) == set()
        process.communicate("/exit\n", timeout=HANG_S)

    assert promised("What listens, and where", "`chat`").startswith("nothing listens")
