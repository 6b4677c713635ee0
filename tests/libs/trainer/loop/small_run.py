"""A whole run without a model: the loop's own code around a runtime, roles, an engine and a learner that write down
what is asked of them, and that raise or signal where a test wants it."""

import asyncio
import itertools
import json
import os
import signal
import sys
import types
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from unittest.mock import patch

from rlhf_config import Layer, resolve
from rlhf_core import Component, Config, hookimpl
from rlhf_core.capabilities import IN_PROCESS
from rlhf_core.contracts import Placement, RewardResult
from rlhf_core.contracts.learner import LearnOutcome
from rlhf_core.plugins import GROUP, Candidate, find, load, register
from rlhf_core.storage.run_folder import RunFolder, complete
from rlhf_testing.fakes import FakeEngine
from rlhf_testing.tiny import tiny_config, tiny_tokenizer
from rlhf_trainer.durable import checkpoint
from rlhf_trainer.loop.rl_trainer import RLTrainer
from rlhf_trainer.loop.run import run as run_training
from rlhf_trainer.loop.session import open_session
from rlhf_trainer.loop.state import initial_state

NUM_ROWS = 12

OPTIONS = {
    "seed": 3,
    "model": {"path": "model"},
    "data": {"train": ["rows.jsonl"], "max_prompt_tokens": 16},
    "rollout": {
        "executor": "single_turn",
        "batch_size": 2,
        "n_samples_per_prompt": 2,
        "max_new_tokens": 8,
    },
    "reward": {"use": ["letters"], "letters": {"isolate": False}, "shapers": ["counting"]},
    "algo": {
        "advantage": {"estimator": "reinforce_baseline"},
        "loss": {"policy": "ppo"},
        "kl": {"estimator": "k1"},
    },
    "actor": {"optim": "adam"},
    "critic": {"optim": "adam"},
    "train": {"steps": 3},
    "log": {"progress": "off", "tensorboard": False, "curve": False, "samples": 1},
    "runtime": {"name": "written_down"},
    "engine": {"name": "embedded"},
    "backend": {"name": "torch"},
}


class Diary:
    """Events in their order. An event that was given an action does it when it happens for the n-th time."""

    def __init__(self):
        self.events = []
        self._counts = Counter()
        self._actions = {}

    def on(self, event, action, *, time=1):
        self._actions[event, time] = action

    def fail(self, event, error, *, time=1):
        def raise_it():
            raise error

        self.on(event, raise_it, time=time)

    def interrupt(self, event, *, time=1, number=signal.SIGTERM):
        self.on(event, lambda: os.kill(os.getpid(), number), time=time)

    def note(self, event):
        self.events.append(event)
        self._counts[event] += 1
        action = self._actions.get((event, self._counts[event]))
        if action is not None:
            action()

    def between(self, first, last):
        """The events from the last ``first`` on, up to the next ``last``."""
        start = len(self.events) - 1 - self.events[::-1].index(first)
        return self.events[start : self.events.index(last, start) + 1]


class WrittenRole:
    """A policy whose whole state is the number of its updates."""

    def __init__(self, diary):
        self.updates = 0
        self.is_here = True
        """False: state and weights are elsewhere, or the state alone."""
        self._has_weights = True
        self._diary = diary

    async def offload(self, *, weights=True, state=True):
        self._diary.note("offload" if weights else "offload the state")
        self.is_here = False
        self._has_weights = self._has_weights and not weights

    async def reload(self):
        self._diary.note("reload")
        self.is_here = self._has_weights = True

    def _require_here(self, what):
        assert self.is_here, f"{what} while the role is elsewhere"

    def weights(self):
        assert self._has_weights, "weights while they are elsewhere"
        return f"weights after {self.updates}"

    async def checksum(self):
        assert self._has_weights, "checksum while the weights are elsewhere"
        return f"fake-{self.updates}"

    async def save(self, folder):
        self._require_here("save")
        self._diary.note("save")
        folder.mkdir()
        (folder / "updates.json").write_text(json.dumps(self.updates))

    async def load(self, folder):
        self._require_here("load")
        self._diary.note("load")
        self.updates = json.loads((folder / "updates.json").read_text())

    async def export(self, folder, *, ema=False):
        self._require_here("export")
        self._diary.note("export")
        folder.mkdir()
        (folder / "updates.json").write_text(json.dumps(self.updates))


class WrittenEngine(FakeEngine):
    def __init__(self, diary):
        super().__init__()
        self.delays_s = itertools.repeat(0.0)
        """Of the requests, in their order."""
        self.under_way = 0
        self.sources = []
        self.playing = []
        """Requests under way at each change of weights."""
        self._diary = diary

    async def generate(self, request):
        self._diary.note("generate")
        self.under_way += 1
        try:
            await asyncio.sleep(next(self.delays_s))
            return await super().generate(request)
        finally:
            self.under_way -= 1

    async def update_weights(self, version, source):
        self._diary.note(f"serve version {version}")
        self.sources.append(source)
        self.playing.append(self.under_way)
        await super().update_weights(version, source)

    async def checksum(self):
        self._diary.note("checksum")
        return await super().checksum()

    async def sleep(self):
        self._diary.note("sleep")
        assert not self.under_way, "sleep while requests run"
        await super().sleep()

    async def wake(self):
        self._diary.note("wake")
        await super().wake()


class WrittenLearner:
    """Counts an update of the policy, and keeps the requests."""

    def __init__(self, diary, role):
        self.requests = []
        self.metrics = {}
        self.changes_policy = True
        self.columns = None
        self._diary = diary
        self._role = role

    async def learn(self, request):
        assert self._role.is_here, "learn while the role is elsewhere"
        self._diary.note("learn")
        await asyncio.sleep(0.001)  # groups of later steps begin meanwhile
        self.requests.append(request)
        self._role.updates += self.changes_policy
        return LearnOutcome(
            metrics=dict(self.metrics),
            score_s=0.25,
            train_s=0.5,
            policy_changed=self.changes_policy,
            supervised_taken=request.supervised_taken + 3,
            skipped_updates={"policy": request.skipped_updates.get("policy", 0) + 1},
            columns=self.columns and self.columns(request.batch),
        )


class WrittenRuntime:
    def __init__(self, diary):
        self.diary = diary
        self.role = WrittenRole(diary)
        self.engine = WrittenEngine(diary)
        self.learner = WrittenLearner(diary, self.role)
        self.specs = []

    async def start(self, spec, plugins):
        self.specs.append(spec)
        self.diary.note("runtime starts")
        return Placement(roles={"policy": self.role}, engine=self.engine, learner=self.learner)

    async def close(self):
        self.diary.note("runtime closes")


class Counting:
    """A reward shaper that counts its steps: state that has to come back."""

    def __init__(self, diary):
        self.steps = 0
        self.infos = []
        self._diary = diary

    def shape(self, batch, info):
        self._diary.note("shape")
        self.infos.append(info)
        self.steps += 1
        return batch, {}

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self._diary.note(f"shaper continues from {state['steps']}")
        self.steps = state["steps"]


class DropUntil:
    """Drops every group of the first steps."""

    def __init__(self, config):
        self._until = config.until

    def keep(self, group, info):
        return "early" if info.step <= self._until else None


class DropUntilConfig(Config):
    until: int = 0


class Letters:
    """A reward: the number of actions."""

    def __init__(self, diary):
        self._diary = diary

    async def score(self, requests):
        self._diary.note("reward")
        return [RewardResult(reward=float(sum(request.action_mask))) for request in requests]


@asynccontextmanager
async def opened(resolved, plugins, folder):
    """A trainer at its first step, with all that a run has around it but the run itself."""
    async with AsyncExitStack() as stack:
        session = await open_session(resolved, plugins, stack)
        trainer = RLTrainer(session, initial_state(resolved.run), RunFolder(folder))
        await trainer.begin(None, {}, stack)
        yield trainer


INSTALLED = cache(find)
"""What is installed is read once: each run loads all plugins, and their metadata are half of the time of that."""


def all_installed():
    with patch("rlhf_core.plugins.find", INSTALLED):
        return load("")


class SmallRun:
    """Starts runs in one folder, each with new parts that write into one diary."""

    runtime_type = WrittenRuntime

    def __init__(self, folder: Path):
        self.folder = folder
        self.diary = Diary()
        self.runtimes = []
        self.results = []
        self.trainer = None
        self._components = {}

    @property
    def runtime(self):
        """Of the newest run."""
        return self.runtimes[-1]

    @property
    def events(self):
        return self.diary.events

    def __call__(self, *changes, output="run", prepare=lambda runtime: None):
        """Run ``OPTIONS`` with further layers of options on top; return the result.

        Args:
            prepare: gets the runtime before anything is started.
        """
        with self.configured(*changes, output=output, prepare=prepare) as (resolved, plugins):
            return run_training(resolved, plugins)

    def with_component(self, hook, component):
        """Have one more component in the runs to come."""
        self._components.setdefault(hook, []).append(component)

    def steps(self, *changes, count=1, prepare=lambda runtime: None):
        """Do some steps without the run around them; return them, and ``trainer`` as they left it."""

        async def take(resolved, plugins):
            async with opened(resolved, plugins, self.folder) as self.trainer:
                return [await self.trainer.step() for _ in range(count)], self.trainer

        with self.configured(*changes, prepare=prepare) as (resolved, plugins):
            return asyncio.run(take(resolved, plugins))

    @contextmanager
    def configured(self, *changes, output="run", prepare=lambda runtime: None):
        name = "small_run_plugin"
        sys.modules[name] = self._plugin(name, prepare)
        try:
            plugins = all_installed()
            register(plugins, Candidate("small", EntryPoint("small", name, GROUP), None))
            here = {"output": str(self.folder / output)}
            layers = [Layer.of(values, "test") for values in (OPTIONS, here, *changes)]
            yield resolve(layers, plugins), plugins
        finally:
            del sys.modules[name]

    def lines(self, name="metrics.jsonl", output="run"):
        text = (self.folder / output / name).read_text()
        return [json.loads(line) for line in text.splitlines() if line]

    def checkpoints(self, output="run"):
        root = self.folder / output / "checkpoints"
        return [checkpoint.step_of(path) for path in complete(root)]

    def _plugin(self, name, prepare):
        diary = self.diary

        def runtime(config):
            self.runtimes.append(self.runtime_type(diary))
            prepare(self.runtime)
            return self.runtime

        found = {
            "rlhf_runtimes": [
                Component(name="written_down", factory=runtime, provides=frozenset({IN_PROCESS}))
            ],
            "rlhf_rewards": [Component(name="letters", factory=lambda config: Letters(diary))],
            "rlhf_reward_shapers": [
                Component(name="counting", factory=lambda config: Counting(diary))
            ],
            "rlhf_sample_filters": [
                Component(name="drop_until", factory=DropUntil, config=DropUntilConfig)
            ],
        }
        module = types.ModuleType(name)
        for hook in found.keys() | self._components.keys():
            components = [*found.get(hook, ()), *self._components.get(hook, ())]
            setattr(module, hook, hookimpl(_returning(components)))

        def rlhf_run_start(run):
            diary.note(f"run starts at {run.start_step} of {run.total_steps}")

        def rlhf_rollout_end(step, samples):
            diary.note(f"rollouts {step}")

        def rlhf_step_end(step, metrics):
            diary.note(f"step {step}")

        def rlhf_eval_end(step, metrics):
            diary.note(f"evaluated {step}")

        def rlhf_checkpoint_saved(step, path):
            diary.note(f"saved {step}")

        def rlhf_run_end(result):
            self.results.append(result)
            diary.note(f"run ends: {result.status}")

        for hook in (
            rlhf_run_start,
            rlhf_rollout_end,
            rlhf_step_end,
            rlhf_eval_end,
            rlhf_checkpoint_saved,
            rlhf_run_end,
        ):
            setattr(module, hook.__name__, hookimpl(hook))
        return module


def write_small_run(folder: Path) -> None:
    """Write the tokenizer of a model without weights, and rows of data."""
    tokenizer = tiny_tokenizer()
    config = tiny_config(
        "qwen3", vocab_size=len(tokenizer), hidden_size=8, num_layers=1, num_heads=1
    )
    tokenizer.save_pretrained(folder / "model")
    config.save_pretrained(folder / "model")
    rows = [{"prompt": f"{n:02d}="} for n in range(NUM_ROWS)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def _returning(found):
    def implementation():
        return found

    return implementation
