"""The cluster scripts, run against stand-ins for Slurm and Ray that write down how they were called."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from rlhf_cli.main import main

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "examples/cluster"
RECIPE = ["-c", "examples/cluster_72b/run.toml", "--train.steps", "3"]

STAND_INS = {
    "scontrol": "printf 'n1\\nn2\\nn3\\n'",
    # Options first, then the command, which it becomes.
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    # As on a Debian whose own name stands for the loopback.
    "hostname": '[[ $1 == --ip-address ]] && echo 127.0.1.1 || echo "fe80::1 10.0.0.1 172.17.0.1 "',
    "ray": 'log ray "$@"; [[ " $* " != *" --block "* ]] || exec sleep 3000',
    "python": 'log python "$@"',
    "rlhf": 'log rlhf "$@"; [[ " $* " == *" --check "* ]] && exit "${CHECK_CODE:-0}"; '
    "trap 'log rlhf TERM; exit 130' TERM; for _ in $(seq \"${RUN_TENTHS:-1}\"); do sleep 0.1; done; "
    'exit "${RUN_CODE:-0}"',
}
# In one write, because several log at the same time.
LOG = 'log() { local line; printf -v line "%q " "$@"; printf "%s\\n" "$line" >> "$CALLS"; }\n'


@pytest.fixture
def start(tmp_path, no_process_left):
    """Start a script with stand-ins; gives the process, and the calls so far as lists of words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in STAND_INS.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\n{LOG}{body}\n")
        path.chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    started = []

    def call(script, *words, **variables):
        slurm = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_NODELIST": "n[1-3]"}
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RAY_")},
            "PATH": f"{folder}:{os.environ['PATH']}",
            "CALLS": str(calls),
            **(slurm if script == "slurm.sh" else {}),
            **variables,
        }
        process = subprocess.Popen(
            ["bash", str(CLUSTER / script), *words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    call.calls = lambda: [shlex.split(line) for line in calls.read_text().splitlines()]
    yield call
    for process in started:
        # One that the test did not wait for; what a script that ended has left is for no_process_left to tell.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def ray_head():
    """The address of a Ray cluster with one node."""
    ray = pytest.importorskip("ray")
    context = ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield context.address_info["gcs_address"]
    ray.shutdown()


def calls_of(start, program):
    return [words[1:] for words in start.calls() if words[0] == program]


@pytest.mark.parametrize("script", ["slurm.sh", "submit.sh"])
def test_the_script_is_valid_bash(script):
    subprocess.run(["bash", "-n", str(CLUSTER / script)], check=True)
    assert os.access(CLUSTER / script, os.X_OK)


def test_slurm_starts_a_node_each_waits_for_them_and_trains(start):
    process = start("slurm.sh", *RECIPE, SLURM_GPUS_ON_NODE="4", SLURM_CPUS_PER_TASK="9")
    out, _ = process.communicate(timeout=HANG_S)

    assert process.returncode == 0, out
    token, *nodes = calls_of(start, "ray")  # nodes run side by side, so they come in any order
    assert token == ["get-auth-token", "--generate"]
    (head,) = [words for words in nodes if "--head" in words]
    others = [words for words in nodes if words is not head]
    assert {"--node-ip-address=10.0.0.1", "--port=6379"} <= set(head)
    assert len(others) == 2
    for node in (head, *others):
        assert {"--num-gpus=4", "--num-cpus=9", "--block"} <= set(node)
    for node in others:
        assert "--address=10.0.0.1:6379" in node
    counts = [words[words.index("--nodes") + 1] for words in calls_of(start, "python")]
    assert counts == ["1", "3"]
    check, train = calls_of(start, "rlhf")
    assert "--check" in check
    assert train == ["train", "--resume", "auto", *RECIPE, "--runtime.ray.address", "10.0.0.1:6379"]


def test_slurm_returns_what_the_run_returns_and_leaves_no_node(start):
    process = start("slurm.sh", *RECIPE, RUN_CODE="7")
    process.communicate(timeout=HANG_S)

    assert process.returncode == 7


def test_slurms_warning_reaches_the_run(start):
    process = start("slurm.sh", *RECIPE, RUN_TENTHS="30000")
    give_up = time.monotonic() + HANG_S
    while len(calls_of(start, "rlhf")) < 2:
        assert time.monotonic() < give_up
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANG_S)

    assert ["TERM"] in calls_of(start, "rlhf")
    assert process.returncode == 130


def test_a_wrong_configuration_starts_no_cluster(start):
    for script in ("slurm.sh", "submit.sh"):
        process = start(script, *RECIPE, CHECK_CODE="2", RAY_API_SERVER_ADDRESS="http://h:8265")
        process.communicate(timeout=HANG_S)
        assert process.returncode == 2, script

    assert calls_of(start, "ray") == []


def test_a_job_is_submitted_with_what_was_typed(start):
    words = [*RECIPE, "--output", "runs/with space"]
    process = start("submit.sh", *words, RAY_API_SERVER_ADDRESS="http://10.0.0.1:8265")
    out, _ = process.communicate(timeout=HANG_S)

    assert process.returncode == 0, out
    (job,) = calls_of(start, "ray")
    end = job.index("--")
    assert job[:2] == ["job", "submit"]
    # Ray joins the words by shlex.join and gives them to a shell.
    inside = job[end + 1 :]
    assert inside[:2] == ["bash", "-c"]
    environment = {**os.environ, "PATH": f"{Path(process.args[1]).parent}:{os.environ['PATH']}"}
    shown = subprocess.run(
        shlex.join(
            ["bash", "-c", inside[2].replace('exec "$rlhf"', 'printf "%s|" "$PWD"'), *inside[3:]]
        ),
        shell=True,
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("|")[:-1]
    assert shown == [str(ROOT), "train", "--resume", "auto", *words, "--runtime", "ray"]


def test_without_an_address_nothing_is_submitted(start):
    process = start("submit.sh", *RECIPE)
    out, _ = process.communicate(timeout=HANG_S)

    assert process.returncode != 0
    assert "the address of the head node" in out
    assert start.calls() == []


@pytest.mark.parametrize("script", ["slurm.sh", "submit.sh"])
def test_every_flag_that_the_script_adds_exists(start, script, monkeypatch, capsys):
    """The recorded command lines, read by the real program."""
    process = start(script, *RECIPE, RAY_API_SERVER_ADDRESS="http://10.0.0.1:8265")
    process.communicate(timeout=HANG_S)
    monkeypatch.chdir(ROOT)

    lines = calls_of(start, "rlhf")
    assert lines
    for words in lines:
        rest = [word for word in words[1:] if word != "--check"]
        assert main([words[0], "--dry-run", *rest]) == 0, capsys.readouterr().err


@pytest.mark.scale
def test_every_flag_of_ray_exists(start):
    scripts = pytest.importorskip("ray.scripts.scripts")
    jobs = pytest.importorskip("ray.dashboard.modules.job.cli")
    start("slurm.sh", *RECIPE).communicate(timeout=HANG_S)
    start("submit.sh", *RECIPE, RAY_API_SERVER_ADDRESS="http://h:8265").communicate(timeout=HANG_S)
    commands = {
        "get-auth-token": scripts.get_auth_token,
        "start": scripts.start,
        "job": jobs.submit,
    }

    for words in calls_of(start, "ray"):
        known = {name for option in commands[words[0]].params for name in option.opts}
        own = words[: words.index("--")] if "--" in words else words
        typed = {word.partition("=")[0] for word in own if word.startswith("--")}
        assert typed <= known, (words, typed - known)


@pytest.mark.scale
@pytest.mark.slow
def test_nodes_are_waited_for_and_missed(ray_head):
    """Against a real cluster: one node is there at once, the second never comes."""

    def wait(nodes):
        return subprocess.run(
            [
                *(sys.executable, str(CLUSTER / "wait_for_nodes.py"), "--address", ray_head),
                *("--nodes", str(nodes), "--deadline-s", "1"),
            ],
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )

    there, missed = wait(1), wait(2)

    assert there.returncode == 0, there.stderr
    assert missed.returncode == 1
    assert "1 of 2 nodes joined" in missed.stderr


def test_the_image_names_files_that_exist_and_holds_no_secret():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    copied = [line.split()[2] for line in lines if line.startswith("COPY")]
    allowed = (ROOT / ".dockerignore").read_text().split()

    assert copied == ["core", "cli", "libs", "plugins"]
    for name in copied:
        assert (ROOT / name).is_dir()
        assert f"!{name}" in allowed
    users = [line.split()[1] for line in lines if line.startswith("USER")]
    assert users[-1] not in ("root", "0")
    settings = [line for line in lines if line.startswith(("ENV", "ARG", "    "))]
    assert not [
        line for line in settings if "TOKEN" in line or "_KEY" in line or "PASSWORD" in line
    ]


def test_every_extra_that_the_image_installs_exists():
    import re
    import tomllib

    text = (ROOT / "Dockerfile").read_text()
    for plugin, extra in re.findall(r"\*/(rlhf-plugin-\w+)/\) echo \"\S+\[(\w+)\]\"", text):
        project = tomllib.loads((ROOT / "plugins" / plugin / "pyproject.toml").read_text())
        assert extra in project["project"]["optional-dependencies"], plugin
    assert "rlhf-plugin-vllm" in text
