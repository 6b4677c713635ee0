"""Environments of verifiers that prime-rl's files name, as sections of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import cast

from ..table.kinds import Value
from ..table.outcome import Outcome
from ..table.source import SourceOptions

_TRAIN, _EVAL = "orchestrator.train.source", "orchestrator.eval.source"
Table = Mapping[str, object]


def set_environments(source: SourceOptions, out: Outcome) -> None:
    """Set the environments, their options and how they are evaluated."""
    names: list[str] = []
    labels: dict[str, str] = {}
    for table in _tables(source.value(_TRAIN)):
        label = _label(table)
        kind = _set_environment(out, label, table)
        labels[_id(table)] = label
        share = table.get("ratio")
        names.append(f"{label}={kind}" + (f"={share}" if share else ""))
    if not names:
        out.warnings.append("no environment is named: the configuration needs env.use")
        return
    out.set("env.use", cast(Value, names), _TRAIN)
    out.set("rollout.executor", "multi_turn", _TRAIN)
    out.set(
        "rollout.multi_turn.max_turns", 100, _TRAIN, comment="the environment says when it ends"
    )
    out.differs(
        _TRAIN,
        "contrib/rlhf-bridge-verifiers plays them: give each an interpreter with its packages by env.LABEL.isolation "
        "and env.LABEL.python",
    )
    _set_evaluation(source, out, labels)


def _set_environment(out: Outcome, label: str, table: Table) -> str:
    """Set the options of one environment, and return the component that plays it."""
    env = table.get("env")
    if not isinstance(env, Mapping):
        kind, kwargs, settings = "verifiers_v0", table.get("args"), {}
    else:
        taskset = cast(Table, env.get("taskset") or {})
        kwargs = {key: value for key, value in taskset.items() if key != "id"}
        kind, settings = (
            "verifiers",
            {key: _agent(one) for key, one in env.items() if key != "taskset"},
        )
    out.set(f"env.{label}.id", _id(table), _TRAIN)
    for part, found in (("kwargs", kwargs), ("settings", settings)):
        for path, value in _leaves(found):
            if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
                out.missing(_TRAIN, f"{label}: {path} is a list of tables: write it by hand")
            else:
                out.set(f"env.{label}.{part}.{path}", cast(Value, value), _TRAIN)
    if left := sorted(set(table) & {"algo", "group_size", "sampling", "curriculum"}):
        out.missing(
            _TRAIN, f"{label}: {', '.join(left)} of one environment; all have those of the run"
        )
    return kind


def _agent(table: object) -> object:
    """Return the table of an agent without what is the bridge's default: a chat, whose programs run on this machine."""
    if not isinstance(table, Mapping):
        return table
    defaults = ({"id": "null"}, {"type": "subprocess"})
    return {key: value for key, value in table.items() if value not in defaults}


def _set_evaluation(source: SourceOptions, out: Outcome, labels: Mapping[str, str]) -> None:
    tables = list(_tables(source.value(_EVAL)))
    if not tables:
        return
    every, number, group, heat, skips = (
        f"orchestrator.eval.{name}"
        for name in (
            "interval",
            "num_examples",
            "group_size",
            "sampling.temperature",
            "skip_first_step",
        )
    )
    out.copy("eval.every", every)
    out.set("eval.at_start", not source.flag(skips), skips)
    out.copy("eval.n_samples", group)
    if source.value(heat) is not None:
        out.set("eval.temperatures", [source.number(heat)], heat)
    _set_held_out_answers(source, out)
    for table in tables:
        count = cast(int, table.get("num_examples", source.whole(number)))
        if (label := labels.get(_id(table))) is not None and count > 0:
            out.set(f"env.{label}.eval_tasks", count, _EVAL, number)
            out.differs(_EVAL, "the first tasks are held out, and not trained on")
        else:
            out.missing(
                _EVAL,
                f"{_id(table)}: a run evaluates on held-out tasks of its environments; rlhf eval --env on others",
            )


def _set_held_out_answers(source: SourceOptions, out: Outcome) -> None:
    sampling = "orchestrator.eval.sampling"
    for name in ("top_p", "top_k", "min_p"):
        if source.value(f"{sampling}.{name}") is not None:
            number = max(source.number(f"{sampling}.{name}"), 0)
            out.set(f"eval.{name}", number, f"{sampling}.{name}")
    training, held_out = "orchestrator.train.sampling", f"{sampling}.max_completion_tokens"
    answer, limit = source.value(f"{training}.max_completion_tokens"), source.value(held_out)
    if limit is None or limit == answer:
        return
    out.copy("eval.max_new_tokens", held_out)
    given = source.given("orchestrator.seq_len") or source.value("seq_len") is None
    length = "orchestrator.seq_len" if given else "seq_len"
    if source.whole(held_out) > (
        0 if answer is None else source.whole(f"{training}.max_completion_tokens")
    ):
        longest = source.whole(length) + source.whole(held_out)
        comment = "a sequence of training and an answer; prime-rl's server has a limit of its own"
        out.set("eval.max_length", longest, length, held_out, comment=comment)


def _tables(value: object) -> Iterator[Table]:
    yield from (one for one in value if isinstance(one, Mapping)) if isinstance(value, list) else ()


def _id(table: Table) -> str:
    env = cast(Table, table.get("env") or {})
    taskset = cast(Table, env.get("taskset") or {})
    return str(taskset.get("id") or table.get("id") or "")


def _label(table: Table) -> str:
    return re.sub(r"\W+", "_", str(table.get("name") or _id(table))).strip("_").lower() or "env"


def _leaves(table: object, beginning: str = "") -> Iterator[tuple[str, object]]:
    for key, value in (table if isinstance(table, Mapping) else {}).items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{beginning}{key}.")
        else:
            yield f"{beginning}{key}", value
