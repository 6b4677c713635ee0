"""A plugin with a few components of most kinds, so that configuration is tested without any real one."""

import types

from pydantic import Field, model_validator

from rlhf_core import Component, Config, hookimpl
from rlhf_core.capabilities import (
    BACKEND_SEES,
    ENDS_AT_FLOOR,
    ENGINE_SEES,
    EXECUTOR_SEES,
    EXPERT_ROUTES,
    KEEPS_REFERENCE,
    NO_PULL,
    READS_TEXT,
    RUNTIME_SEES,
    SERVES_ADAPTERS,
)


class Discount(Config):
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount")
    lambda_: float = Field(0.95, ge=0.0, le=1.0, description="bias against variance")
    mode: str = Field("full", description="a word")

    def without_effect(self):
        return {"lambda_": "gamma is 0. Set it above 0."} if self.gamma == 0 else {}


class Inner(Config):
    lr: float = Field(1e-3, gt=0.0, description="for vectors")


class Momentum(Config):
    lr: float = Field(0.02, gt=0.0, description="learning rate")
    betas: tuple[float, float] = Field((0.9, 0.95), description="decay rates")
    limits: dict[str, float] = Field({}, description="by layer")
    inner: Inner = Field(Inner(), description="options of the inner optimizer")
    outer: Inner | None = Field(Inner(), description="a section that may be unset")
    cap: float | None = Field(2.0, gt=0.0, description="none: no cap")


class Bounds(Config):
    low: float = Field(0.0, description="lower end")
    high: float = Field(1.0, description="upper end")

    @model_validator(mode="after")
    def ordered(self):
        if self.low >= self.high:
            raise ValueError(f"low is {self.low}; expected less than high = {self.high}")
        return self


class Pattern(Config):
    pattern: str = Field("x", min_length=1, description="what to look for")


class Wrapped(Config):
    path: str = Field(description="FILE.py:NAME")
    batch: bool = Field(False, description="score many at once")


class Clashing(Config):
    weight: float = Field(1.0, description="clashes with the core's option")


class Sight(Config):
    sees: bool = Field(False, description="look at the images")

    def needed_by_options(self):
        return frozenset({"images"} if self.sees else ())


class Following(Config):
    wide: bool = Field(False, description="look at several tokens of the teacher")

    def needed_by_options(self):
        return frozenset({"teacher_top_k" if self.wide else "teacher_logprobs"})


class Beside(Config):
    """Options of an adapter that engines serve beside the base's weights."""

    rank: int | None = Field(8, description="None: engines get merged weights")
    begun: str | None = Field(None, description="folder to continue from")

    def continued_from(self):
        return self.begun

    def needed_by_options(self):
        return frozenset({SERVES_ADAPTERS} if self.rank else ())


class Waiting(Config):
    metric: str = Field("reward/mean", description="what ends the run")

    def metrics_named(self):
        return {self.metric: "metric"}


class Exploding(Config):
    depth: int = Field(1, description="too deep raises")

    @model_validator(mode="after")
    def explode(self):
        if self.depth > 1:
            raise RuntimeError("boom")
        return self


def component(name, **keywords):
    return Component(name=name, factory=keywords.pop("factory", lambda config: config), **keywords)


def adapter(config):
    rank = getattr(config, "rank", None)
    return types.SimpleNamespace(served_rank=rank, load_options=dict, wrap=None)


COMPONENTS = {
    "rlhf_runtimes": [component("here", provides={RUNTIME_SEES})],
    "rlhf_engines": [
        component("fake_engine", provides={"rollout_logprobs"}),
        component("takes_factors", provides={"rollout_logprobs", SERVES_ADAPTERS, EXPERT_ROUTES}),
        component("takes_images", provides={"rollout_logprobs", ENGINE_SEES}),
    ],
    "rlhf_train_backends": [
        component("table", provides={BACKEND_SEES, KEEPS_REFERENCE}),
        component("small_table"),
    ],
    "rlhf_vision_models": [component("eyes")],
    "rlhf_rollout_executors": [
        component("one_turn", provides={EXECUTOR_SEES}),
        component("turns", needs={"environment"}, provides={"several_turns"}),
    ],
    "rlhf_observers": [component("waits", config=Waiting)],
    "rlhf_environments": [component("maze", config=Discount)],
    "rlhf_sample_filters": [
        component("spread"),
        component("length"),
        component("by_reward", provides={"judges_rewards"}),
    ],
    "rlhf_rewards": [
        component("pattern", config=Pattern),
        component("code", config=Wrapped, provides={"wraps_code"}),
        component("clashing", config=Clashing),
        component("reads_texts", config=Sight, provides={READS_TEXT}),
        component("reads_tokens", conflicts={"images"}),
    ],
    "rlhf_reward_shapers": [
        component("bounds", config=Bounds),
        component("exploding", config=Exploding),
    ],
    "rlhf_advantage_estimators": [
        component("discounted", config=Discount, needs={"values"}, summary="uses a critic"),
        component("mean_baseline", needs={"group>=2"}, aliases=("baseline",), config=Discount),
        component("temperature", config=Discount),
    ],
    "rlhf_policy_losses": [
        component("clip", provides={"off_policy"}),
        component("plain_gradient"),
        component("reads_sampler", needs={"rollout_logprobs"}),
        component("needs_is", needs={"is_correction"}),
        component("by_sequence", provides={"aggregation:seq-mean-token-mean"}),
        component("looks_first", provides={"prepares_step"}),
        component("imitate", needs={"supervised_data"}),
        component("follow", config=Following),
        component("repeats", provides={"no_advantages"}),
    ],
    "rlhf_is_corrections": [
        component(
            "cut", config=Bounds, conflicts={"renormalized_sampling"}, needs={"rollout_logprobs"}
        )
    ],
    "rlhf_kl_estimators": [
        component("k1", factory=lambda config: lambda log_ratio: log_ratio, provides={NO_PULL}),
        component("k2", factory=lambda config: lambda log_ratio: log_ratio.square() / 2),
        component("k3", factory=lambda config: lambda log_ratio: log_ratio.abs()),
    ],
    "rlhf_optimizers": [
        component("momentum", config=Momentum),
        component("plain", config=Inner, aliases=("simple",)),
        component("picky", needs={"kl_in_loss"}),
    ],
    "rlhf_lr_schedules": [
        component("flat", factory=lambda config: lambda point: 1.0),
        component(
            "falling",
            factory=lambda config: lambda point: 1 - point.progress,
            provides={ENDS_AT_FLOOR},
        ),
    ],
    "rlhf_model_adapters": [
        component("thin", factory=adapter),
        component("beside", config=Beside, factory=adapter),
    ],
    "rlhf_loggers": [component("notebook", config=Pattern)],
}

DEFAULTS = {
    "runtime": {"name": "here"},
    "engine": {"name": "fake_engine"},
    "backend": {"name": "table"},
    "rollout": {"executor": "one_turn"},
    "algo": {
        "advantage": {"estimator": "mean_baseline"},
        "loss": {"policy": "clip"},
        "kl": {"estimator": "k1"},
    },
    "actor": {"optim": "plain"},
    "critic": {"optim": "plain"},
}
ENOUGH = ["--model", "some/model", "--data", "org/set", "--reward", "pattern"]
"""Flags that make the defaults a complete run."""


def module() -> types.ModuleType:
    """The components above as a plugin's module."""
    made = types.ModuleType("sample_plugin")
    for hook, found in COMPONENTS.items():
        setattr(made, hook, hookimpl(_returning(found)))
    return made


def _returning(found):
    def implementation():
        return found

    return implementation
