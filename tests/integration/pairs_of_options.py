"""Groups of options that people combine, for runs in which any two of them meet: what each does alone has tests of its
own. Beside ``random_options``, which draws single options, these are choices that take several: what is played, what is
learned beside it, whose rows it has."""

from __future__ import annotations

import random

from rlhf_cli.train import DEFAULTS
from rlhf_config import Resolved, parse_flags, read_toml, resolve
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader

BASE = (
    "--model model --data mine.jsonl --reward vary.py:vary --reward.vary.isolate false --steps 3 --checkpoint.every 1 "
    "--rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 4 --data.max_prompt_tokens 8 "
    "--log.progress off --log.tensorboard false --log.curve false --runtime.local.threads 1"
)
TURNS = "--executor multi_turn --rollout.max_length 48 --env"
LORA = "--actor.adapter lora --actor.lora.rank 2"
KL = "--algo.kl.coef 0.1"
TEACHER = "--algo.teacher.path teacher"
GROUPS: dict[str, dict[str, str]] = {
    "preset": {
        name: f"--preset {name}"
        for name in ["cispo", "dapo", "dr_grpo", "grpo", "gspo", "ppo", "rloo"]
    },
    "estimator": {
        name: f"--estimator {name}"
        for name in [
            "gae",
            "gdpo",
            "gigpo",
            "grpo",
            "opo",
            "optimal_token_baseline",
            "raft",
            "reinforce",
            "remax",
        ]
    },
    "loss": {
        name: f"--loss {name}"
        for name in ["cispo", "decoupled_ppo", "dppo", "gpg", "gspo", "kl_cov", "topr"]
    }
    | {"distill": f"--loss distill {TEACHER}"},
    "correction": {name: f"--algo.correction.kind {name}" for name in ["tis", "icepop", "mis"]},
    "kl": {
        "reward": f"{KL} --algo.kl.estimator k3",
        "loss": f"{KL} --algo.kl.mode loss --algo.kl.estimator k2",
        "adaptive": f"{KL} --algo.kl.target 0.05 --algo.kl.horizon 60",
    },
    "adapter": {
        "lora": LORA,
        "pissa": f"{LORA} --actor.lora.init pissa",
        "merged": f"{LORA} --actor.lora.serve merged --actor.lora.use_rslora true",
        "saved": f"{LORA} --actor.lora.modules_to_save norm",
        "dora": "--actor.adapter dora --actor.dora.rank 2",
    },
    "optimizer": {
        "muon": "--optim muon --actor.muon.lr 1e-2",
        "sgd": "--optim sgd --actor.sgd.momentum 0.9",
        "adam": "--actor.adam.lr 1e-2 --actor.ema 0.5 --actor.lr_schedule cosine",
    },
    "backend": {
        "checkpointing": "--backend.torch.gradient_checkpointing true --backend.torch.logits_chunk 3",
        "apart": "--backend.torch.share_prompts false --train.max_tokens_per_micro_batch 64",
    },
    "dtype": {"bfloat16": "--model.dtype bfloat16"},
    "updates": {
        "several": "--train.batch_size 8 --train.inner_epochs 2",
        "halved": "--train.batch_size 4",
    },
    "filter": {
        "dynamic": "--rollout.filters dynamic_sampling --rollout.dynamic_sampling.high 3 --train.max_empty_steps 9",
        "variance": "--rollout.filters zero_variance drop_errors",
    },
    "rows": {
        "mix": "--data mine.jsonl more.jsonl --data.probabilities 0.3 0.7",
        "chat": "--data.chat true --data.system_prompt hi --data.max_prompt_tokens 40",
        "template": "--data.template Q:{answer}= --data.max_prompt_tokens 16",
    },
    "sampler": {"curriculum": "--data.sampler curriculum --data.curriculum.pass_threshold 3"},
    "shaper": {
        "overlong": "--reward.shapers overlong --reward.overlong.buffer 2",
        "normalize": "--reward.shapers normalize stop_properly",
    },
    "rewards": {
        "two": "--reward vary.py:vary my_reward.py:score --reward.score.isolate false --reward.score.weight 0.5"
    },
    "play": {
        "hint": f"{TURNS} echo_after_hint --env.echo_after_hint.isolation none",
        "digits": f"{TURNS} echo_digits --env.echo_digits.isolation none",
    },
    "lengths": {"stop": "--rollout.stop 5 a", "one": "--rollout.max_new_tokens 1"},
    "evaluation": {
        "fraction": "--eval.fraction 0.2 --eval.every 1",
        "sampled": "--eval.fraction 0.2 --eval.every 2 --eval.temperatures 1.0 --eval.n_samples 2",
    },
    "term": {
        "sft": "--algo.terms.use sft --supervised.data good.jsonl --supervised.batch_size 3",
        "distill": f"--algo.terms.use distill {TEACHER} --algo.terms.distill.divergence top_k",
    },
    "entropy": {
        "target": "--algo.loss.entropy_target 3.0",
        "bonus": "--algo.loss.entropy_coef 0.1",
    },
}
"""Kind of choice -> its values, each as words of ``rlhf train``."""
INSTALLED = plugin_loader.load()

Choices = dict[str, str]


def words_of(choices: Choices) -> list[str]:
    """Return the words of a run with these values of ``GROUPS``; an option that two give has the later one's value."""
    options: dict[str, list[str]] = {}
    for text in (BASE, *(GROUPS[kind][value] for kind, value in choices.items())):
        for word in text.split():
            if word.startswith("--"):
                options[word] = values = []
            else:
                values.append(word)
    return [word for name, values in options.items() for word in (name, *values)]


def resolved(words: list[str]) -> Resolved:
    """Return the configuration of ``rlhf train WORDS``."""
    return resolve([read_toml(DEFAULTS, defaults=True), parse_flags(words)], INSTALLED)


def drawn(seed: int, size: int = 8) -> Choices:
    """Return ``size`` values that a run takes together; those that are refused beside the others are left out."""
    draw = random.Random(seed)
    choices: Choices = {}
    for kind in draw.sample(sorted(GROUPS), len(GROUPS)):
        longer = choices | {kind: draw.choice(sorted(GROUPS[kind]))}
        try:
            resolved(words_of(longer))
        except ConfigError:
            continue
        choices = longer
        if len(choices) == size:
            break
    return choices
