"""Pairs of options that people combine: a run with them is refused with a reason, or it ends with finite numbers, goes
on to the bit when it was killed, and exports what it trained. None of them is ignored in silence."""

import json
import math
import os
import signal
from collections.abc import Sized
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlhf_core import ConfigError, plugins
from rlhf_core.capabilities import ENDLESS_TASKS
from rlhf_core.contracts import Stop, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.errors import has_code
from rlhf_testing.tiny import write_tiny_model

from .conftest import REWARD, VARY
from .forked_runs import metrics_without_times, run_in_a_fork, weights_digest
from .pairs_of_options import BASE, drawn, resolved, words_of

TELLING = [
    "preset=grpo kl=loss adapter=lora rows=chat updates=several",
    "preset=dapo optimizer=muon evaluation=fraction rows=template",
    "preset=ppo adapter=dora rewards=two entropy=target lengths=stop",
    "preset=gspo dtype=bfloat16 updates=several filter=variance",
    "estimator=gae kl=adaptive play=digits optimizer=adam sampler=curriculum",
    "estimator=gae kl=loss term=sft dtype=bfloat16 evaluation=sampled",
    "estimator=gigpo play=hint adapter=merged correction=icepop",
    "estimator=gdpo rewards=two rows=mix kl=reward updates=several",
    "estimator=remax play=digits entropy=bonus backend=apart",
    "estimator=optimal_token_baseline updates=several adapter=pissa lengths=stop",
    "estimator=raft loss=gpg shaper=normalize optimizer=sgd rows=mix sampler=curriculum",
    "loss=distill kl=loss play=hint adapter=lora evaluation=fraction",
    "loss=decoupled_ppo term=distill updates=several shaper=overlong",
    "loss=topr term=sft adapter=lora lengths=one rows=chat",
    "loss=kl_cov correction=tis kl=reward backend=checkpointing filter=dynamic",
    "loss=dppo adapter=saved optimizer=muon updates=several correction=mis",
]
"""Values of ``GROUPS`` that meet in a run, with state of many kinds."""
REFUSED = {
    "a critic's options without a critic": ("--critic.adam.lr 1e-3", "config/no-effect"),
    "an estimator that no loss reads": (
        "--loss distill --algo.teacher.path teacher --estimator rloo",
        "config/no-effect",
    ),
    "a KL in rewards that no loss reads": (
        "--loss distill --algo.teacher.path teacher --algo.kl.coef 0.1",
        "config/kl-in-unused-rewards",
    ),
    "shapers of a sum that is not read": (
        "--estimator gdpo --reward.shapers overlong",
        "config/conflicting-component",
    ),
    "a filter of old samples in a run of new ones": (
        "--rollout.filters drop_stale --rollout.drop_stale.limit 0",
        "config/no-samples-so-old",
    ),
    "a filter of samples older than any": (
        "--rollout.filters drop_stale --rollout.max_staleness 4 --rollout.in_flight_updates",
        "config/no-samples-so-old",
    ),
    "an order of rows that the sampler does not follow": (
        "--data.shuffle false --data.sampler curriculum",
        "config/no-effect",
    ),
    "pass rates of a sampler that reads none": (
        "--data.sampler curriculum --data.curriculum.uniform 1 --data.curriculum.low 0.2",
        "config/no-effect",
    ),
    "workers of an environment in the run's process": (
        "--executor multi_turn --rollout.max_length 48 --env echo_digits --env.echo_digits.workers 2",
        "config/no-effect",
    ),
    "the share of the only environment": (
        "--executor multi_turn --rollout.max_length 48 --env echo_digits --env.echo_digits.share 0.5",
        "config/no-effect",
    ),
    "the start of a process that a reward has not": (
        "--reward.vary.start_timeout_s 9",
        "config/no-effect",
    ),
    "prompts to choose from, played one at a time": (
        "--rollout.oversampling 2 --rollout.concurrency 1",
        "config/no-effect",
    ),
    "sets of a margin": (
        "--estimator grpo_passk --algo.advantage.grpo_passk.k 2",
        "config/no-effect",
    ),
    "a bound of the best": (
        "--estimator raft --algo.advantage.raft.keep best --algo.advantage.raft.threshold 1",
        "config/no-effect",
    ),
    "the weight of a bonus by token": (
        "--reward.shapers length_bonus --reward.length_bonus.mode token --reward.length_bonus.weight 2",
        "config/no-effect",
    ),
    "a cache of decoding that keeps none": (
        "--engine.embedded.decode stepwise --engine.embedded.kv_cache_gib 1",
        "config/no-effect",
    ),
    "state in blocks of 8 bits with FSDP": (
        "--backend fsdp --optim adam8bit",
        "config/conflicting-component",
    ),
    "state in blocks of 8 bits with ZeRO 3": (
        "--backend deepspeed --backend.deepspeed.zero_stage 3 --optim adam8bit",
        "config/conflicting-component",
    ),
    "whole matrices where ranks have parts of them": (
        "--backend deepspeed --backend.deepspeed.tensor_parallel 2 --optim muon",
        "config/conflicting-component",
    ),
    "factors beside a copy of the weights": (
        "--engine embedded --actor.adapter lora --engine.embedded.weights copy",
        "config/missing-capability",
    ),
    "a base in 4 bits beside a copy of the weights": (
        "--engine embedded --actor.adapter qlora --engine.embedded.weights copy",
        "config/missing-capability",
    ),
    "a critic that warms up for the whole run": (
        "--estimator gae --critic.warmup_steps 3",
        "config/policy-never-trained",
    ),
}
TAKEN = (
    "--rollout.filters drop_stale --rollout.drop_stale.limit 0 --rollout.max_staleness 1",
    "--data.shuffle false --data.sampler curriculum --data more.jsonl --data.probabilities 0.5 0.5",
    "--data.shuffle false --data.sampler by_column --data.by_column.key answer",
    "--env echo_digits --executor multi_turn --rollout.max_length 48 --data.sampler curriculum",
    "--env echo_digits --executor multi_turn --rollout.max_length 48 --env.echo_digits.isolation process "
    "--env.echo_digits.workers 2",
    "--rollout.oversampling 2 --rollout.concurrency 2",
    "--estimator grpo_passk --algo.advantage.grpo_passk.advantage analytic --algo.advantage.grpo_passk.k 2",
    "--estimator raft --algo.advantage.raft.threshold 1",
    "--reward.shapers length_bonus --reward.length_bonus.weight 2",
    "--engine.embedded.decode resident --engine.embedded.kv_cache_gib 1",
    "--estimator gae --critic.warmup_steps 2",
    "--backend deepspeed --backend.deepspeed.zero_stage 0 --optim adam8bit",
    "--backend fsdp --optim muon",
    "--engine embedded --actor.adapter lora --actor.lora.serve merged --engine.embedded.weights copy",
)
"""What looks like ``REFUSED`` and acts."""


@pytest.mark.parametrize(("more", "code"), REFUSED.values(), ids=REFUSED)
def test_a_choice_that_another_one_switches_off_is_refused(more, code):
    with pytest.raises(ConfigError, check=has_code(code)):
        resolved([*BASE.split(), *more.split()])


ENDLESS = (
    "--data.source jsonl_stream --data.jsonl_stream.path mine.jsonl --data.sampler curriculum",
    "--env echo_digits --executor multi_turn --rollout.max_length 48 --data.sampler by_column "
    "--data.by_column.key level",
)


@pytest.mark.parametrize("more", ENDLESS)
def test_a_sampler_of_prompts_that_do_not_come_again_is_refused(more):
    words = BASE.replace("--data mine.jsonl ", "").split()

    with pytest.raises(ConfigError, check=has_code("config/missing-capability")):
        resolved([*words, *more.split()])


@pytest.mark.parametrize("more", TAKEN)
def test_the_same_choice_is_taken_beside_what_it_acts_on(more):
    resolved([*BASE.split(), *more.split()])


def test_environments_say_whether_their_tasks_have_an_end():
    """So that a sampler that needs one is refused before any environment is imported."""
    toys = ("calculator", "countdown", "frozen_lake", "guess_number", "shapes", "sorting")
    for name in (*toys, "echo_after_hint", "echo_digits"):
        entry = plugins.load("").get("rlhf_environments", name)
        made = entry.build()
        has_end = hasattr(made, "tasks") and isinstance(made.tasks("train"), Sized)
        assert has_end != (ENDLESS_TASKS in entry.component.provides), entry.name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with models, rows and rewards for the words of ``GROUPS``."""
    folder = tmp_path_factory.mktemp("pairs")
    tiny = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
    write_tiny_model(folder / "model", **tiny, initializer_range=0.3)
    write_tiny_model(folder / "teacher", **tiny, initializer_range=0.5, seed=7)
    for name, step in (("mine", 37), ("more", 51), ("good", 53)):
        digits = [f"{n:03d}" for n in range(step % 2, 999, step)]
        rows = [{"prompt": f"{n}=", "answer": n, "response": n} for n in digits]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (folder / "my_reward.py").write_text(REWARD)
    (folder / "vary.py").write_text(VARY)
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


IDS = list(range(10, 30))


def one_row():
    actions = len(IDS) - 1
    return TrajectoryColumns.from_trajectories(
        [
            Trajectory(
                uid=Uid(0, 0, 0),
                token_ids=np.array(IDS, np.int32),
                action_mask=np.array([False] + [True] * actions),
                rollout_logprobs=np.zeros(actions, np.float32),
                weight_version=np.zeros(actions, np.int32),
                turns=(Turn(start=1, end=len(IDS), stop=Stop.EOS),),
                reward=0.0,
                rewards={"score": 0.0},
            )
        ]
    )


def note_what_is_exported():
    """Write the log-probs of a row by the trained policy beside the folder that it is exported to."""
    whole = TorchBackend.export

    def export(self, folder, *, ema=False):
        if not ema:
            np.save(Path("trained.npy"), np.concatenate([self.logprobs(one_row())]).ravel())
        return whole(self, folder, ema=ema)

    TorchBackend.export = export


def logprobs_of(folder):
    """Log-probs of the row by plain Transformers and PEFT."""
    if (folder / "adapter_config.json").exists():
        from peft import AutoPeftModelForCausalLM

        model = AutoPeftModelForCausalLM.from_pretrained(folder)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        scores = model(torch.tensor([IDS])).logits[0, :-1].float().log_softmax(-1)
    return scores.gather(1, torch.tensor(IDS[1:])[:, None])[:, 0].numpy()


def check_run(folder, choices):
    words = ["train", *words_of(choices), "--output"]
    name = "-".join(choices.values())
    whole, killed = folder / f"{name}-whole", folder / f"{name}-killed"

    status = run_in_a_fork(folder, name, [*words, whole.name], prepare=note_what_is_exported)
    log = (folder / f"{name}.log").read_text()
    assert status == 0, log
    lines = metrics_without_times(whole)
    numbers = [line.get("metrics", line.get("eval")) for line in lines]
    assert all(math.isfinite(value) for found in numbers for value in found.values()), numbers
    assert sum("metrics" in line for line in lines) == 3

    # Rounding of bfloat16 weights moves log-probs of these sizes by hundredths, that of float32 by millionths.
    atol = 0.1 if "dtype" in choices else 1e-4
    trained = np.load(folder / "trained.npy")
    np.testing.assert_allclose(logprobs_of(whole / "model"), trained, atol=atol, rtol=0)

    status = run_in_a_fork(folder, name, [*words, killed.name], fault="train:3")
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL
    again = [*words, killed.name, "--resume", "auto"]
    assert run_in_a_fork(folder, name, again) == 0, (folder / f"{name}.log").read_text()[-2000:]
    assert metrics_without_times(killed) == lines
    assert weights_digest(killed) == weights_digest(whole)


@pytest.mark.slow
@pytest.mark.parametrize("telling", TELLING)
def test_choices_that_meet_end_well(folder, telling):
    pairs = (pair.split("=") for pair in telling.split())

    check_run(folder, dict(pairs))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(120))
def test_drawn_choices_end_well(folder, seed):
    check_run(folder, drawn(seed))
