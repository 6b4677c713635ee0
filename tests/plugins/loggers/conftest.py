"""A clock that is moved by hand, run folders with a past, and loggers that cannot leave this machine."""

import json
import shutil
import socket
import sys
import threading

import huggingface_hub.constants
import pytest
from tests.libs.trainer.loop.small_run import SmallRun, write_small_run
from tests.plugins.loggers.places import ENVIRONMENT, NAMES, UNSET, Place

from rlhf_core.contracts import RunInfo


class Clock:
    """Callable like ``time.monotonic``; ``now`` is set by the test."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def run_info(tmp_path):
    """Make the RunInfo of a run in ``tmp_path/run`` with the given ``log`` options."""

    def make(*, total_steps=3, start_step=0, notes=(), **log):
        output = tmp_path / "run"
        output.mkdir(exist_ok=True)
        defaults = {
            "progress": "plain",
            "summary": True,
            "tensorboard": False,
            "images": 4,
            "curve": False,
            "samples": 4,
            "samples_every": 10,
        }
        return RunInfo(
            output=output,
            config={"log": defaults | log},
            total_steps=total_steps,
            start_step=start_step,
            notes=notes,
        )

    return make


@pytest.fixture
def write_metrics(tmp_path):
    """Write the metrics.jsonl of a run with one evaluation before the first step and one at the end."""

    def write(rewards=(0.1, 0.2, 0.4), evals=(0.0, 0.5), name="eval/test/T0/pass@1"):
        lines = [{"step": 0, "time_s": 0.0, "eval": {name: evals[0]}}]
        for step, reward in enumerate(rewards, start=1):
            metrics = {"reward/mean": reward, "policy/entropy": 1.0}
            lines.append(
                {"step": step, "time_s": 2.0 * step, "metrics": metrics, "timing": {"step_s": 2.0}}
            )
        last = {name: evals[1], f"{name.rpartition('/')[0]}/reward": 0.9}
        lines.append({"step": len(rewards), "time_s": 2.0 * len(rewards), "eval": last})
        output = tmp_path / "run"
        output.mkdir(exist_ok=True)
        (output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return output

    return write


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path_factory):
    """No key, no way out, and folders of the tests' own. That of trackio is chosen before all tests."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    # huggingface_hub, which trackio asks for the owner of HF_TOKEN, reads HF_HUB_OFFLINE once, when it is imported.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for name in UNSET:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(scope="module", autouse=True)
def no_wandb_process():
    """End wandb-core after the last test of a file."""
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Refuse connections that leave this machine; a test that tries fails, also where a logger swallows the error."""
    tried = []
    # Transformers asks its hub on a thread of its own, which may outlive the test of another file.
    others = set(threading.enumerate()) - {threading.main_thread()}
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def is_here(host):
        return host in (None, "", "localhost", "::1") or str(host).startswith("127.")

    def note(place):
        if threading.current_thread() not in others:
            tried.append(place)

    def guarded_connect(self, address):
        if self.family != socket.AF_UNIX and not is_here(address[0]):
            note(address)
            raise OSError(f"tests use no network: {address}")
        return connect(self, address)

    def guarded_look_up(host, *arguments, **keywords):
        if not is_here(host.decode() if isinstance(host, bytes) else host):
            note(host)
            raise socket.gaierror(f"tests use no network: {host}")
        return look_up(host, *arguments, **keywords)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    yield
    assert tried == []


@pytest.fixture(scope="session")
def small_run_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small_run")
    write_small_run(folder)
    return folder


@pytest.fixture
def small_run(small_run_files, tmp_path, monkeypatch):
    """Runs without a model, in a folder of their own, which is the current directory."""
    shutil.copytree(small_run_files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return SmallRun(tmp_path)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A database of MLflow without runs, which takes seconds to make."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow import MlflowClient

        file = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
        MlflowClient(f"sqlite:///{file}").search_experiments()
    return file


@pytest.fixture
def place_of(request, tmp_path, monkeypatch):
    """Make the place of a logger in this test's own folder, which is the current directory."""
    monkeypatch.chdir(tmp_path)

    def make(name):
        if name == "mlflow":
            shutil.copy(request.getfixturevalue("empty_database"), tmp_path / "mlflow.db")
        return Place(name, tmp_path)

    return make


@pytest.fixture(params=NAMES)
def place(request, place_of):
    """Each of the loggers."""
    return place_of(request.param)
