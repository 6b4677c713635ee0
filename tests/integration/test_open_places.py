"""What commands listen at, and the modes of what they make, are what docs/security.md says; the page is read here.

Each command is looked at while it works: its processes, their sockets in /proc/net, and the files that it has made so
far, under a umask that takes nothing away.
"""

import os
import re
import stat
import subprocess
import sys
import time
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

PAGE = Path(__file__).parents[2] / "docs/security.md"
ROW = re.compile(r"^\| (.+?) \| (.+?) \|(?: (.*?) \|)?$", re.MULTILINE)
LISTENS = "0A"
ACCEPTS = 0x10000
"""Bit of a Unix socket's flags, in hexadecimal, that says that it listens."""

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

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="sockets are read in /proc/net"),
]


def promised(heading, who):
    """The second cell of the row of a table of the page whose first cell has these words."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    (cell,) = [
        where for first, where, _ in ROW.findall(section.partition("\n## ")[0]) if who in first
    ]
    return cell


def processes(root):
    """A process and all below it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(words[1])
    found, level = {root}, {root}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def inodes(pids):
    """Inodes of the sockets that processes have open."""
    found = set()
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    return found


def address_of(text):
    """The address of an entry of /proc/net/tcp: words of four bytes in this machine's order."""
    packed = bytes.fromhex(text.partition(":")[0])
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    ordered = [word[::-1] if sys.byteorder == "little" else word for word in words]
    return str(ip_address(b"".join(ordered)))


def listening(root):
    """Addresses at which a process and those below it listen; of Unix sockets their paths."""
    own = inodes(processes(root))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENS and words[9] in own:
                found.add(address_of(words[1]))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & ACCEPTS and words[6] in own:
            found.add(words[7] if len(words) > 7 else "a Unix socket")
    return found


def modes(folder):
    """Mode of each file and folder that is directly in a folder, by its name."""
    return {entry.name: oct(stat.S_IMODE(entry.lstat().st_mode))[2:] for entry in folder.iterdir()}


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
