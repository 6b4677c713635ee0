"""Commands that end at once, and checks of machines, folders and packages, as commands call them."""

import contextlib
import io
import json
import sys
from pathlib import Path

from tests.core.sample_plugin import component
from tests.core.test_plugins import GOOD

from rlhf_cli.gpus import gpu_layers
from rlhf_cli.main import main
from rlhf_cli.quickstart.files import write
from rlhf_cli.train import DEFAULTS
from rlhf_config import Layer, read_toml, resolve_options
from rlhf_config.train import TRAIN
from rlhf_core.component import Registered
from rlhf_core.contracts import Accelerator
from rlhf_core.plugins import FORMER, GROUP, load
from rlhf_plugin_inference.chat.options import CHAT
from rlhf_plugin_inference.comparing.pairing import paired
from rlhf_plugin_inference.comparing.results import EMPTY, read_results
from rlhf_plugin_inference.evaluate.records import EpisodeRecord

from .advised_case import Advised

PLAYED = """
from rlhf_core.contracts import Observation, StepResult


class Played:
    def __init__(self, config=None):
        pass

    def tasks(self, split):
        return [{"key": str(n), "prompt": "1"} for n in range(4)]

    async def reset(self, task, seed):
        return Observation()

    async def step(self, action):
        return StepResult(reward=1.0, done=True)

    async def close(self):
        pass
"""
ORACLE = """
    async def oracle(self):
        return "1"
"""
ROW = 'return [{"key": str(n), "prompt": "1"'


class CommandFailed(Exception):
    """What a command says when it fails."""


def command(words):
    """Run ``rlhf WORDS``; its input is empty.

    Raises:
        CommandFailed: it ended with another code than 0.
    """
    out, given = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO("1\n")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(words.split())
    finally:
        sys.stdin = given
    if code:
        raise CommandFailed(out.getvalue())


def tried(policy, environment):
    Path("played.py").write_text(environment)
    command(f"env try played.py:Played{policy}")


def gpus(sizes):
    gpu_layers("2", [Accelerator(name="card", memory_gib=size) for size in sizes])


def shown(evaluated):
    line = {
        "step": 1,
        "uid": "0.0.0.0",
        "prompt": "1",
        "response": "2",
        "reward": 1.0,
        "rewards": {},
        "truncated": False,
    }
    for name in ("samples.jsonl", *(["eval_samples.jsonl"] if evaluated else [])):
        Path(name).write_text(f"{json.dumps(line)}\n")
    command("show . --eval")


def routes(replays, **chosen):
    plugins = load()
    for hook, name in (("rlhf_engines", "plain_engine"), ("rlhf_train_backends", "plain_backend")):
        plain = component(name, provides={"rollout_logprobs"})
        plugins.registries[hook].add(Registered(plain, "sample"))
    values = {
        "model.path": "model",
        "data.train": ("rows.jsonl",),
        "reward.use": ("exact_match",),
        "algo.correction.replay_routes": replays,
        **{f"{slot}.name": name for slot, name in chosen.items()},
    }
    resolve_options(
        [read_toml(DEFAULTS, defaults=True), Layer.of_paths(values, "words")], plugins, TRAIN
    )


def adapted(runtime, engine="embedded", serve="adapter"):
    values = {
        "model.path": "model",
        "data.train": ("rows.jsonl",),
        "reward.use": ("exact_match",),
        "runtime.name": runtime,
        "engine.name": engine,
        "actor.adapter": "lora",
        "actor.lora.serve": serve,
    }
    layers = [read_toml(DEFAULTS, defaults=True), Layer.of_paths(values, "words")]
    resolve_options(layers, load(), TRAIN)


def installed(old):
    """Load plugins where a package is installed, and maybe the one that has become a part of it."""
    for name, former in (("acme", ()), ("whole", ("acme",))):
        if name == "whole" or old:
            module = Path(f"rlhf_plugin_{name}.py")
            module.write_text(GOOD.format(name="whole"))
            info = Path(f"rlhf_plugin_{name}-1.2.dist-info")
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: rlhf-plugin-{name}\nVersion: 1.2\n"
            )
            parts = "".join(f"{one} = rlhf_plugin_{one}\n" for one in former)
            points = f"[{GROUP}]\n{name} = rlhf_plugin_{name}\n" + (
                f"[{FORMER}]\n{parts}" if parts else ""
            )
            (info / "entry_points.txt").write_text(points)
    sys.path.insert(0, str(Path.cwd()))
    try:
        for failed in load().failed:
            raise failed.error
    finally:
        sys.path.pop(0)
        for name in ("rlhf_plugin_acme", "rlhf_plugin_whole"):
            sys.modules.pop(name, None)


def compared(seed):
    """Compare two evaluations whose tasks come from the seed."""
    for name, own in (("a", 1), ("b", seed)):
        record = EpisodeRecord(
            set="s",
            temperature=1.0,
            uid="-1.0.0.0",
            task="0",
            digest=EMPTY,
            prompt="",
            messages=None,
            response="",
            segments=None,
            reward=1.0,
            end="finished",
            turns=1,
            tokens_in=1,
            tokens_out=1,
            truncated=False,
        )
        Path(name).mkdir()
        Path(name, "episodes.jsonl").write_text(f"{record.to_line()}\n")
        summary = {"model": name, "seed": own, "pass_threshold": 1.0, "sets": []}
        Path(name, "summary.json").write_text(json.dumps(summary))
    tuple(paired(read_results(Path("a")), read_results(Path("b"))))


def served_with(engine, serve):
    """Resolve ``rlhf chat`` with an adapter."""
    plugins = load()
    plain = component("plain_engine", provides={"rollout_logprobs"})
    plugins.registries["rlhf_engines"].add(Registered(plain, "sample"))
    adapted = {"path": "model", "adapter": "adapter", "serve": serve}
    resolve_options([Layer.of({"model": adapted, "engine": {"name": engine}})], plugins, CHAT)


PIP = "pip uninstall rlhf-plugin-acme; pip install --force-reinstall rlhf-plugin-whole"

COMMANDS_RUN = {
    "rlhf_cli/env/trying.py:oracle": [
        Advised(
            call=tried,
            wrong={"policy": " --policy oracle", "environment": PLAYED},
            told={
                "expected an environment with a method oracle": {"environment": PLAYED + ORACLE},
                "a row with a column oracle": {
                    "environment": PLAYED.replace(ROW, f'{ROW}, "oracle": "1"')
                },
                "Answer yourself, without --policy": {"policy": ""},
            },
        )
    ],
    "rlhf_cli/gpus.py:_require_alike": [
        Advised(
            call=gpus,
            wrong={"sizes": (80.0, 24.0)},
            told={"Name equal ones with CUDA_VISIBLE_DEVICES": {"sizes": (80.0, 80.0)}},
            given=("--gpus",),
        )
    ],
    "rlhf_cli/quickstart/files.py:write": [
        Advised(
            call=write,
            wrong={"folder": Path("a:b")},
            told={
                "--folder is 'a:b'; expected a path without quotes, backslashes, ':' and '='": {
                    "folder": Path("ab")
                }
            },
        )
    ],
    "rlhf_cli/show.py:_eval_samples_file": [
        Advised(
            call=shown,
            wrong={"evaluated": False},
            told={
                "a run does with --eval.data FILE, --eval.fraction 0.05 or an environment's own tasks": {
                    "evaluated": True
                }
            },
        )
    ],
    "rlhf_config/checks/features.py:check_shared": [
        Advised(
            call=adapted,
            wrong={"runtime": "ray"},
            told={
                "Choose another --engine": {"engine": "vllm"},
                "or a --runtime that has both in one process": {"runtime": "local"},
                "have the adapter merged into the weights": {"serve": "merged"},
            },
        )
    ],
    "rlhf_config/checks/features.py:check_routes": [
        Advised(
            call=routes,
            wrong={"replays": True, "engine": "plain_engine"},
            told={
                "choose --engine embedded": {"engine": "embedded"},
                "or vllm": {"engine": "vllm"},
                "leave algo.correction.replay_routes out": {"replays": False},
            },
            given=("--algo.correction.replay_routes",),
        ),
        Advised(
            call=routes,
            wrong={"replays": True, "engine": "embedded", "backend": "plain_backend"},
            told={
                "choose --backend torch": {"backend": "torch"},
                "deepspeed": {"backend": "deepspeed"},
                "or fsdp": {"backend": "fsdp"},
                "leave algo.correction.replay_routes out": {"replays": False},
            },
            given=("--algo.correction.replay_routes",),
        ),
    ],
    "rlhf_core/plugins.py:load": [
        Advised(call=installed, wrong={"old": True}, told={PIP: {"old": False}})
    ],
    "rlhf_plugin_inference/comparing/pairing.py:_check_same": [
        Advised(
            call=compared,
            wrong={"seed": 2},
            told={"Evaluate both with the same --seed": {"seed": 1}},
        )
    ],
    "rlhf_plugin_inference/serving/options.py:check_adapter": [
        Advised(
            call=served_with,
            wrong={"engine": "plain_engine", "serve": "adapter"},
            told={
                "Set --model.serve merged": {"serve": "merged"},
                "choose an engine that provides": {"engine": "embedded"},
            },
            given=("--engine.name", "--engine"),
        )
    ],
}
"""Place -> calls, one for each message."""
