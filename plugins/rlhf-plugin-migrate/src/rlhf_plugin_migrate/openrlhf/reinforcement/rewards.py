"""Rules of the reward: where it comes from, what is done to it, and which groups are filtered by it."""

from __future__ import annotations

from ...adapters import OPENRLHF_NAME, openrlhf_reward
from ...table.outcome import Outcome
from ...table.source import SourceOptions
from .lengths import longest

_WITHOUT_BASELINE = ("gae", "reinforce")
_REMOTE, _MODEL, _AGENT = "reward.remote_url", "reward.model_name_or_path", "train.agent_func_path"
_REFILLS = 100


def set_reward(source: SourceOptions, out: Outcome, adapter: str) -> None:
    """Set the reward. OpenRLHF takes an agent before a URL or a function, and these before a model.

    Args:
        adapter: path of the file that calls the user's reward function, if it is needed.
    """
    name = ""
    if source.given(_AGENT):
        _set_agent(source, out)
    elif source.given(_REMOTE):
        urls = source.text(_REMOTE).split(",")
        name = OPENRLHF_NAME if urls[0].endswith(".py") else "http"
        if urls[0].endswith(".py"):
            _set_function(source, out, urls[0], adapter)
        else:
            _set_servers(source, out, [url.strip() for url in urls])
    elif source.given(_MODEL):
        name = "reward_model"
        _set_model(source, out)
    else:
        out.warnings.append(
            "no reward is given (--reward.remote_url, --reward.model_name_or_path or --train.agent_func_path): the "
            "configuration needs reward.use"
        )
        out.nothing("data.label_key", "no reward reads a label")
    _note_unread(source, out, name)
    _set_shapers(source, out)
    _set_filter(source, out, name)


def _set_agent(source: SourceOptions, out: Outcome) -> None:
    path = source.text(_AGENT)
    out.set("rollout.executor", "multi_turn", _AGENT)
    comment = "write this class: docs/writing-an-environment.md"
    out.set("env.use", [f"{path}:AgentEnvironment"], _AGENT, comment=comment)
    out.missing(
        _AGENT,
        "an AgentExecutor cannot be used as it is. Its AgentInstance becomes a class AgentEnvironment with reset and "
        "step, in which each turn keeps its own reward",
    )
    out.nothing("data.label_key", "an environment gets the whole row of its task")
    out.nothing((_REMOTE, _MODEL), "OpenRLHF does not use it with --train.agent_func_path")


def _set_function(source: SourceOptions, out: Outcome, path: str, adapter: str) -> None:
    label_key = source.text("data.label_key") or None
    out.files[adapter] = openrlhf_reward(path, label_key)
    out.set("reward.use", [f"{adapter}:{OPENRLHF_NAME}"], _REMOTE)
    out.differs(
        _REMOTE,
        f"{adapter} calls reward_func of {path} as OpenRLHF does, but its query has no special tokens; an exception "
        "ends the run (on_error), which OpenRLHF only logs",
    )
    out.nothing("data.label_key", f"it is in {adapter}")


def _set_servers(source: SourceOptions, out: Outcome, urls: list[str]) -> None:
    out.set("reward.use", ["http"], _REMOTE)
    out.set("reward.http.urls", list(urls), _REMOTE)
    comment = "as OpenRLHF; more are quicker if the server takes several"
    out.set("reward.http.batch_size", 1, _REMOTE, comment=comment)
    if len(urls) > 1:
        out.set("reward.http.choose", "round_robin", _REMOTE)
    for option, value in (
        ("request_timeout_s", 180.0), ("max_tries", 5), ("deadline_s", 900.0), ("timeout_s", 1260.0),
    ):  # fmt: skip
        out.set(f"reward.http.{option}", value, _REMOTE)
    if source.given("data.label_key"):
        out.set("reward.http.label_key", source.text("data.label_key"), "data.label_key")


def _set_model(source: SourceOptions, out: Outcome) -> None:
    paths = source.text(_MODEL).split(",")
    out.set("reward.use", ["reward_model"], _MODEL)
    out.set("reward.reward_model.path", paths[0], _MODEL)
    if len(paths) > 1:
        out.missing(
            _MODEL, "only the first model is used, as in OpenRLHF; more are rewards of a plugin's"
        )
    if source.given("ds.value_head_prefix"):
        out.set(
            "reward.reward_model.head", source.text("ds.value_head_prefix"), "ds.value_head_prefix"
        )
    if source.flag("reward.normalize_enable"):
        out.set("reward.reward_model.normalize", "model", "reward.normalize_enable")
    out.nothing("data.label_key", "a reward model reads no label")


def _note_unread(source: SourceOptions, out: Outcome, name: str) -> None:
    if name != "reward_model":
        out.nothing("reward.normalize_enable", "only scores of a local reward model are normalized")
        out.nothing("ds.value_head_prefix", "there is no local reward model")
        out.nothing(_MODEL, "OpenRLHF loads no reward model with --reward.remote_url")
    if source.text("algo.advantage.estimator") == "gae" and source.flag("reward.normalize_enable"):
        out.differs(
            "reward.normalize_enable",
            "the critic's values are not normalized with the reward model's mean and std",
        )


def _set_shapers(source: SourceOptions, out: Outcome) -> None:
    shapers: dict[str, str] = {}
    buffer = source.value("reward.overlong_buffer_len")
    if buffer is not None:
        shapers["overlong"] = "reward.overlong_buffer_len"
        out.set(
            "reward.overlong.buffer", int(source.number(shapers["overlong"])), shapers["overlong"]
        )
        out.set(
            "reward.overlong.factor",
            source.number("reward.overlong_penalty_factor"),
            "reward.overlong_penalty_factor",
        )
        limit = source.value("rollout.max_new_tokens") or longest(source)
        if source.given(_AGENT) or not source.given("rollout.max_new_tokens"):
            out.set("reward.overlong.max_tokens", limit, shapers["overlong"])
        if source.given(_AGENT):
            out.differs(
                shapers["overlong"],
                "only action tokens count; OpenRLHF counts the environment's, too",
            )
    else:
        out.nothing("reward.overlong_penalty_factor", "there is no --reward.overlong_buffer_len")
    coef = source.value("reward.stop_properly_penalty_coef")
    if coef is not None:
        shapers["stop_properly"] = "reward.stop_properly_penalty_coef"
        out.set("reward.stop_properly.coef", coef, shapers["stop_properly"])
    if _clips(source, out):
        shapers["clip"] = "reward.clip_range"
    if shapers:
        out.set("reward.shapers", list(shapers), *shapers.values())


def _clips(source: SourceOptions, out: Outcome) -> bool:
    """Set the clip of rewards. OpenRLHF clips after the baseline, so the two agree where the estimator has none."""
    flag = "reward.clip_range"
    low, high = source.numbers(flag)
    has_baseline = source.text("algo.advantage.estimator") not in _WITHOUT_BASELINE
    if has_baseline:
        out.differs(
            flag,
            "OpenRLHF clips the reward minus its group's baseline; the shaper clip works before the baseline"
            + ("" if source.given(flag) else ", and is left out"),
        )
    if has_baseline and not source.given(flag):
        return False
    out.set("reward.clip.low", low, flag)
    out.set("reward.clip.high", high, flag)
    return True


def _set_filter(source: SourceOptions, out: Outcome, name: str) -> None:
    flag, bounds = "algo.dynamic_filtering_enable", "algo.dynamic_filtering_range"
    if not source.flag(flag):
        out.nothing(bounds, "the filter is off")
        return
    low, high = source.numbers(bounds)
    out.set("rollout.filters", ["dynamic_sampling"], flag)
    out.set("rollout.dynamic_sampling.low", low, bounds)
    out.set("rollout.dynamic_sampling.high", high, bounds)
    comment = "OpenRLHF draws until the batch is full"
    out.set("rollout.max_refills", _REFILLS, flag, comment=comment)
    if name:
        out.set("rollout.dynamic_sampling.reward", name, flag, comment="before the shapers")
        out.differs(
            flag,
            "it looks at the rewards; OpenRLHF at scores, if the function or server gives them, too",
        )
