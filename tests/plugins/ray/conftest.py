"""A small Ray cluster for all tests, and runs on it from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.deadlines import HANG_S

from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import (
    ComponentRef,
    EngineSpec,
    GenerationRequest,
    Normalizers,
    PolicyObjective,
    RoleSpec,
    RuntimeSpec,
    SamplingParams,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.plugins import Plugins
from rlhf_plugin_ray.config import RayRuntimeConfig
from rlhf_testing.tiny import write_tiny_model

COMPONENTS = Path(__file__).parent / "components"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two CPUs and 200 MB of shared memory; the processes of actors find the tests' own plugin.

    One for each file: what a file does to its cluster is nothing to the next.
    """
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(COMPONENTS), os.environ.get("PYTHONPATH", "")])
        )
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=200_000_000,
            include_dashboard=False,
            log_to_driver=False,
        )
        yield
        with warnings.catch_warnings():
            # Ray forgets the processes that it ended, and not waiting for them is warned of where they are collected.
            warnings.simplefilter("ignore", ResourceWarning)
            ray.shutdown()
            gc.collect()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """What is installed, and the tests' own plugin."""
    monkeypatch.syspath_prepend(COMPONENTS)
    monkeypatch.setenv("RLHF_PLUGINS", "ranked_components")
    return plugin_loader.load()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("ray") / "model", num_layers=1)


@pytest.fixture
def spec(model: Path) -> Callable[..., RuntimeSpec]:
    """A policy and an engine; further roles by keyword."""

    def make(*, backend: str = "torch", folder: Path = model, **roles: RoleSpec) -> RuntimeSpec:
        policy = RoleSpec(
            role="policy",
            model_path=str(folder),
            objective=PolicyObjective(
                loss=ComponentRef(kind="rlhf_policy_losses", name="gradient"),
                aggregation="token-mean",
            ),
            optimizer=ComponentRef(kind="rlhf_optimizers", name="plain_adamw"),
        )
        return RuntimeSpec(
            roles={"policy": policy, **roles},
            backend=ComponentRef(
                kind="rlhf_train_backends", name=backend, options={"device": "cpu"}
            ),
            engine=ComponentRef(kind="rlhf_engines", name="embedded"),
            engine_spec=EngineSpec(
                model_path=str(folder),
                dtype="float32",
                max_length=256,
                max_concurrency=64,
                eos_token_ids=(2,),
            ),
        )

    return make


@pytest.fixture
def placed(cluster: None, plugins: Plugins) -> Callable[..., Any]:
    """``async with placed(spec, **options) as run``: ``run.roles``, ``run.engine``, ``run.runtime``."""
    from rlhf_plugin_ray.runtime import RayRuntime

    @asynccontextmanager
    async def start(spec: RuntimeSpec, **options: Any) -> AsyncIterator[SimpleNamespace]:
        runtime = RayRuntime(RayRuntimeConfig(**{"close_timeout_s": 3.0, **options}))
        try:
            async with asyncio.timeout(300):
                placement = await runtime.start(spec, plugins)
                yield SimpleNamespace(
                    roles=placement.roles,
                    engine=placement.engine,
                    groups=placement.groups,
                    runtime=runtime,
                )
        finally:
            await runtime.close()

    return start


def pid_of(process: Any) -> int:
    """Of a rank or an engine, from the name that messages call it by."""
    found = re.search(r"pid (\d+)", process.who)
    assert found is not None, process.who
    return int(found[1])


def engine_pids(engine: Any) -> list[int]:
    return [pid_of(server.process) for server in engine.crew.members]


def request(
    prompt: int = 0, *, seeds: tuple[int, ...] = (1, 2, 3), tokens: int = 12
) -> GenerationRequest:
    return GenerationRequest(
        uid=Uid(0, prompt),
        prompt_ids=(5, 6, 7 + prompt),
        seeds=seeds,
        sampling=SamplingParams(max_new_tokens=tokens, min_new_tokens=min(4, tokens)),
    )


async def sample(engine: Any, num_prompts: int = 3) -> TrajectoryColumns:
    """Trajectories of unequal lengths."""
    rows = []
    for prompt in range(num_prompts):
        asked = request(prompt, tokens=4 + 5 * prompt)
        for index, completion in enumerate(await engine.generate(asked)):
            length = len(asked.prompt_ids)
            tokens = np.concatenate([np.array(asked.prompt_ids), completion.token_ids])
            rows.append(
                Trajectory(
                    uid=Uid(0, prompt, index),
                    token_ids=tokens.astype(np.int32),
                    action_mask=np.arange(len(tokens)) >= length,
                    rollout_logprobs=completion.logprobs,
                    weight_version=completion.weight_version,
                    turns=(Turn(start=length, end=len(tokens)),),
                )
            )
    return TrajectoryColumns.from_trajectories(rows)


def update_of(batch: TrajectoryColumns) -> tuple[TrainBatch, StepPlan]:
    """An optimizer step whose advantages differ by action."""
    size = int(batch.num_actions.sum())
    totals = Normalizers(num_actions=size, num_sequences=len(batch), max_actions=24)
    advantages = np.linspace(-1.0, 2.0, size, dtype=np.float32)
    plan = StepPlan(
        normalizers=totals,
        on_policy=True,
        return_logprobs=True,
        return_entropies=True,
        return_losses=True,
    )
    return TrainBatch(trajectories=batch, columns={"advantages": advantages}), plan


REWARD = """
def score(response):
    return sum(map(ord, response)) % 7

def fail(response):
    raise ValueError("this reward always fails")
"""
SMALL_RUN = [
    *("--model", "model", "--data", "mine.jsonl", "--rollout.batch_size", "3"),
    *("--rollout.n_samples_per_prompt", "4", "--rollout.max_new_tokens", "6"),
    *("--data.max_prompt_tokens", "8", "--log.progress", "off"),
    *("--log.tensorboard", "false", "--log.curve", "false"),
]
ON_RAY = [
    *("--runtime", "ray", "--runtime.ray.object_store_mib", "100"),
    *("--runtime.ray.show_output", "false"),
]
PATIENCE_S = HANG_S
LOOK_EVERY_S = 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model, prompts and a reward for a small run."""
    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    rows = [{"prompt": f"{n:03d}="} for n in range(0, 999, 37)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "my_reward.py").write_text(REWARD)
    return tmp_path


class StartedRun:
    """A run with ``--runtime ray`` in a process group of its own, and what its processes have taken hold of."""

    def __init__(self, command: list[str], folder: Path, temporary: Path, **environment: str):
        self.folder = folder
        self.temporary = temporary
        self.sockets: set[str] = set()
        """Inodes of those that listen; a socket that is there once more has another."""
        self.shared_files: set[str] = set()
        """Of /dev/shm."""
        self._looked = 0.0
        self._output = folder / f"output-{time.monotonic_ns()}"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={
                    **os.environ,
                    "TMPDIR": str(temporary),
                    "OMP_NUM_THREADS": "1",
                    **environment,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it while the run lives."""
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < give_up, self.output
            self._look()
            time.sleep(0.1)

    def has_process(self, title: bytes) -> bool:
        """Return whether a process of the run has such a title, or begins its command so."""
        return any(line.startswith(title) for line in processes_of(self.folder).values())

    def end(self) -> int:
        """Wait for it to end, and return its exit code."""
        give_up = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < give_up, self.output
            self._look()
            time.sleep(0.1)
        return self.process.returncode

    def assert_no_folder(self) -> None:
        """No temporary folder is left of a run that was killed; one that failed keeps its logs."""
        give_up = time.monotonic() + HANG_S
        while list(self.temporary.glob("rlhf-*")) and time.monotonic() < give_up:
            time.sleep(0.1)
        assert not list(self.temporary.glob("rlhf-*"))

    def assert_gone(self) -> None:
        """No process, port or shared file is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        give_up = time.monotonic() + HANG_S
        while any(self._left()) and time.monotonic() < give_up:
            time.sleep(0.1)
        processes, sockets, files = self._left()
        for pid in processes:
            os.kill(pid, signal.SIGKILL)
        assert not processes, processes
        assert not sockets, sockets
        assert not files, files

    def _left(self) -> tuple[dict[int, bytes], set[str], list[str]]:
        files = [name for name in self.shared_files if os.path.exists(name)]
        return processes_of(self.folder), self.sockets & listening_sockets(), files

    def _look(self) -> None:
        if time.monotonic() < self._looked + LOOK_EVERY_S:
            return
        self._looked = time.monotonic()
        listening = listening_sockets()
        for pid in processes_of(self.folder):
            root = Path(f"/proc/{pid}")
            with contextlib.suppress(OSError):
                opened = {os.readlink(file) for file in (root / "fd").iterdir()}
                self.sockets |= {
                    text[8:-1] for text in opened if text[:8] == "socket:["
                } & listening
            with contextlib.suppress(OSError):
                maps = (root / "maps").read_text()
                self.shared_files |= set(re.findall(r"/dev/shm/\S+", maps))


def processes_of(folder: Path) -> dict[int, bytes]:
    """Processes that work in the run's folder, as all that it starts do -> their command."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        # Not by environment: Ray's processes write their titles over it.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if os.readlink(path / "cwd").startswith(str(folder)):
                found[int(path.name)] = (path / "cmdline").read_bytes()[:120]
    return found


def listening_sockets() -> set[str]:
    """Inodes."""
    lines = [
        line.split()
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ]
    return {words[9] for words in lines if words[3] == "0A"}


@pytest.fixture
def launch(folder: Path) -> Iterator[Callable[..., StartedRun]]:
    """Starts ``rlhf COMMAND WORDS`` on Ray; afterwards everything has to be gone."""
    # Short, because paths of sockets have to be.
    temporary = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    started = []

    def run(command: str, *words: str, shell: bool = False, **environment: str) -> StartedRun:
        program = [sys.executable, "-m", "rlhf_cli.main", command, *ON_RAY, *words]
        if shell:
            program = ["sh", "-c", f"{shlex.join(program)}; exit $?"]
        started.append(StartedRun(program, folder, temporary, **environment))
        return started[-1]

    yield run
    for each in started:
        each.assert_gone()
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture
def start(launch: Callable[..., StartedRun]) -> Callable[..., StartedRun]:
    """Starts ``rlhf train --runtime ray``."""

    def run(*flags: str, reward: str | None = "score", **options: Any) -> StartedRun:
        words = ["train", *SMALL_RUN, "--output", "run", *flags]
        if reward is not None:
            words += ["--reward", f"my_reward.py:{reward}"]
        return launch(*words, **options)

    return run
