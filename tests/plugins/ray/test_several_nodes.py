"""A cluster of two nodes, of two addresses of the loopback: equal numbers, and what happens when a node is gone.

The nodes are those of ``ray start``: each has a raylet, an object store and resources of its own, and the cluster asks
for a token. What two addresses of one machine cannot show is in ``docs/ray.md``.
"""

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.deadlines import HANG_S

from .conftest import PATIENCE_S, processes_of
from .records import books_of, seconds_until_noted, train_here

pytestmark = [pytest.mark.scale, pytest.mark.slow]
pytest.importorskip("ray")

STEPS = 4
HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
"""Not 127.0.0.1, in whose place Ray takes the address of the machine."""
JOIN_S = 300
STORE_BYTES = 100_000_000
WAIT = Path(__file__).parents[3] / "examples/cluster/wait_for_nodes.py"


class Nodes:
    """Nodes of one cluster, of which the first is the head."""

    def __init__(self, folder, temporary):
        self.folder = folder
        self._temporary = temporary
        self._nodes = []
        token = temporary / "token"
        token.write_text(secrets.token_hex(32))
        self.environment = {"RAY_AUTH_TOKEN_PATH": str(token)}
        """What a driver needs to connect."""
        with socket.socket() as one, socket.socket() as other:
            one.bind((HOSTS[0], 0))
            other.bind((HOSTS[0], 0))
            self.address = f"{HOSTS[0]}:{one.getsockname()[1]}"
            self._client_port = other.getsockname()[1]

    def start(self, *cpus, **environment):
        """Start a node for each number of CPUs, and wait until all have joined."""
        for num in cpus:
            self._nodes.append(self._started(num, environment))
            # The others ask the head for its token.
            self._wait()

    def _started(self, num_cpus, environment):
        index = len(self._nodes)
        where = ["--head", "--port", self.address.rpartition(":")[2]]
        where += ["--temp-dir", str(self._temporary / "ray"), "--include-dashboard", "false"]
        where += ["--ray-client-server-port", str(self._client_port)]
        if index:
            where = ["--address", self.address]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where]
        command += ["--node-ip-address", HOSTS[index], "--num-cpus", str(num_cpus)]
        command += ["--object-store-memory", str(STORE_BYTES), "--disable-usage-stats"]
        command += ["--dashboard-agent-listen-port", "0"]
        with (self._temporary / f"node-{index}").open("w") as output:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, **self._for_nodes, "OMP_NUM_THREADS": "1", **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def _for_nodes(self):
        return {**self.environment, "RAY_AUTH_MODE": "token"}

    def _wait(self):
        command = [sys.executable, str(WAIT), "--address", self.address]
        alive = sum(node.poll() is None for node in self._nodes)
        command += ["--nodes", str(alive), "--deadline-s", str(JOIN_S)]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, **self._for_nodes},
            capture_output=True,
            text=True,
            timeout=2 * JOIN_S,
        )
        assert done.returncode == 0, (done.stderr, self.output)

    @property
    def output(self):
        return [path.read_text() for path in sorted(self._temporary.glob("node-*"))]

    def kill(self, index):
        """End all processes of a node at once, as a machine that is switched off; return when."""
        pids = {self._nodes[index].pid, *_below(self._nodes[index].pid)}
        when = time.time()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._nodes[index].wait()
        return when

    def close(self):
        for index in reversed(range(len(self._nodes))):
            if self._nodes[index].poll() is None:
                self.kill(index)


def _below(root):
    """All processes that a process has started, and those that they have."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below - {root}


@pytest.fixture
def nodes(folder, start):
    """Not started yet. They end before ``start`` looks for what a run has left."""
    temporary = Path(
        tempfile.mkdtemp(prefix="rn", dir="/tmp")
    )  # short: paths of sockets have to be
    made = Nodes(folder, temporary)
    yield made
    made.close()
    shutil.rmtree(temporary)


@pytest.fixture
def train(nodes, start, folder):
    """Starts a run on the nodes; afterwards none of its processes may be there, while the nodes are."""
    started = []

    def run(*flags):
        where = ["--runtime.ray.address", nodes.address, "--steps", str(STEPS)]
        started.append(start(*where, *flags, **nodes.environment))
        return started[-1]

    yield run
    give_up = time.monotonic() + PATIENCE_S
    while (left := actors_in(folder)) and time.monotonic() < give_up:
        time.sleep(0.1)
    assert not left


def actors_in(folder):
    return {pid: words for pid, words in processes_of(folder).items() if b"Actor" in words}


@pytest.fixture
def undisturbed(folder, monkeypatch):
    """(metrics, ledger) of the run in one process."""
    monkeypatch.chdir(folder)
    assert train_here("--output", "expected", "--steps", str(STEPS)) == 0
    return books_of(folder / "expected")


def places_in(folder):
    """What is on each machine, as the log tells it."""
    log = (folder / "run" / "run.log").read_text()
    rows = re.findall(r"^(127\.0\.0\.\d+) +\S+ CPU +(.*)$", log, re.MULTILINE)
    return {(address, who) for address, who in rows}


SPLIT = ["--runtime.ray.colocate", "none", "--runtime.ray.cpus_per.policy", "2.5"]
SPLIT += ["--runtime.ray.threads", "1"]
WORKERS = ["--runtime.ray.rollout_workers", "2", "--runtime.ray.cpus_per.rollout", "0.5"]


@pytest.mark.parametrize(
    "weights",
    [
        "collective",
        pytest.param("store", marks=pytest.mark.matrix),
        pytest.param("memory", marks=pytest.mark.matrix),
    ],
)
def test_policy_and_engine_on_two_nodes_have_the_metrics_of_one_process(
    nodes, train, folder, undisturbed, weights
):
    """The rollout workers compute rewards on both nodes, and the learner is beside the policy."""
    nodes.start(3, 2)

    run = train(*SPLIT, *WORKERS, "--runtime.ray.weights", weights)

    assert run.end() == 0, run.output
    assert books_of(folder / "run") == undisturbed
    assert {(HOSTS[0], "policy 0"), (HOSTS[1], "engine 0")} <= places_in(folder)
    assert {host for host, who in places_in(folder) if "rollout" in who} == set(HOSTS[:2])


def until_steps(run, folder, num):
    metrics = folder / "run" / "metrics.jsonl"
    run.until(lambda: metrics.exists() and metrics.read_text().count("\n") >= num)


def node_of(folder, who):
    (host,) = {host for host, row in places_in(folder) if who in row}
    return HOSTS.index(host)


def test_a_run_outlives_the_node_of_its_engine(nodes, train, folder, undisturbed):
    """The policy fills the head, so that the engine is on one of the others, and then on the other."""
    nodes.start(2, 1, 1)
    run = train("--runtime.ray.colocate", "none", "--runtime.ray.cpus_per.policy", "2")
    until_steps(run, folder, 1)

    when = nodes.kill(node_of(folder, "engine 0"))

    assert run.end() == 0, run.output
    assert seconds_until_noted(folder, "engine 0", when) < HANG_S
    assert books_of(folder / "run") == undisturbed


@pytest.mark.matrix
def test_a_run_outlives_the_node_of_a_rollout_worker(nodes, train, folder, undisturbed):
    """Policy and engine fill the head; the groups that the node held are played again."""
    nodes.start(4, 1, 1)
    flags = ["--runtime.ray.cpus_per.policy", "4", "--runtime.ray.threads", "1"]
    run = train(*flags, "--runtime.ray.rollout_workers", "2", "--runtime.ray.cpus_per.rollout", "1")
    until_steps(run, folder, 1)

    when = nodes.kill(1)

    assert run.end() == 0, run.output
    assert seconds_until_noted(folder, "rollout worker", when) < HANG_S
    assert books_of(folder / "run") == undisturbed


def test_a_run_ends_with_the_node_of_a_rank_and_resumes_elsewhere(
    nodes, train, folder, undisturbed
):
    nodes.start(1, 2)
    flags = ["--runtime.ray.colocate", "none", "--runtime.ray.cpus_per.policy", "2"]
    flags += ["--runtime.ray.threads", "1", "--checkpoint.every", "1"]
    run = train(*flags)
    until_steps(run, folder, 1)

    when = nodes.kill(node_of(folder, "policy 0"))

    assert run.end() == 1, run.output
    assert (folder / "run" / "run.log").stat().st_mtime - when < HANG_S
    told = re.search(r"error: policy rank 0 \(pid \d+ on .*", run.output)
    assert told is not None, run.output
    assert "--resume auto" in told[0]
    assert "Traceback" not in run.output
    resumed = train_here("--output", "run", "--steps", str(STEPS), "--resume", "auto")
    assert resumed == 0
    assert books_of(folder / "run") == undisturbed


@pytest.mark.matrix
def test_a_run_whose_engine_has_no_place_any_more_says_so(nodes, train, folder):
    nodes.start(2, 1)
    flags = ["--runtime.ray.colocate", "none", "--runtime.ray.cpus_per.policy", "2"]
    flags += ["--runtime.ray.max_engine_restarts", "1", "--runtime.ray.start_timeout_s", "20"]
    run = train(*flags)
    until_steps(run, folder, 1)

    nodes.kill(node_of(folder, "engine 0"))

    assert run.end() == 1, run.output
    assert "engine 0 has no place: its machine is gone, and no other has" in run.output
    assert "Traceback" not in run.output


def test_a_set_that_fits_the_sum_but_no_node_is_refused(nodes, train):
    nodes.start(1, 1)

    run = train("--runtime.ray.cpus_per.policy", "2")

    assert run.end() == 2, run.output
    told = " ".join(run.output.split())
    assert "no machine of the cluster has that" in told
    assert all(f"{host} has 1 CPUs" in told for host in HOSTS[:2])
