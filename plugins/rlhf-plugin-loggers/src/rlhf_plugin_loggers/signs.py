"""Signs that a run learns nothing, seen in the metrics of its steps: each is said once, with its likely cause and the
option behind.

A symptom counts only while the mean reward does not rise: a run that has solved its task has no signal and little
entropy either. ``Collapse`` tells that from a run that rose and then stopped before. ``ZeroGradients`` watches for
gradients of exactly 0, and it alone speaks of those.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf_core.contracts import RunInfo

log = logging.getLogger(__name__)

PATIENCE = 10
"""Steps in a row with a symptom, or whose updates all had a gradient of norm 0, before the warning. A gradient that is
merely small does not count: float32 rounding alone keeps its norm above 0."""
WINDOW = 20
"""Steps over which means are taken, and compared with those of as many steps before."""
NO_SIGNAL = 0.9
"""Share of prompts whose samples have equal rewards, from which on nearly nothing is learned."""
SPREAD_LEFT = 0.5
"""Standard deviation of the samples' rewards, as a share of the largest one of the run, from which on there is more to
learn: with rewards of 0 and 1 a batch of which 93 % are right is below."""
RISE = 0.1
"""Rise of the mean reward from window to window that counts as learning, in largest standard deviations."""


class Collapse:
    """Takes the metrics of each step, and says when they show a run that stands still before its task is solved."""

    def __init__(self) -> None:
        self._shares: deque[float] = deque(maxlen=WINDOW)
        self._spreads: deque[float] = deque(maxlen=WINDOW)
        self._means: deque[float] = deque(maxlen=2 * WINDOW)
        self._largest = 0.0

    def note(self, values: Mapping[str, float]) -> str | None:
        """Return the warning, with the likely cause and the options to look at; None: there is no sign of collapse.

        Steps without groups of samples, or without rewards, do not count.
        """
        names = ("group/no_signal", "reward/std", "reward/mean")
        if not all(name in values for name in names):
            return None
        share, spread, mean = (values[name] for name in names)
        self._shares.append(share)
        self._spreads.append(spread)
        self._means.append(mean)
        self._largest = max(self._largest, spread)
        return self._text(values) if self._is_shown() else None

    def _is_shown(self) -> bool:
        if len(self._means) < 2 * WINDOW or self._largest <= 0.0:
            return False
        before, now = self._windows()
        stands_still = now - before <= RISE * self._largest
        unsolved = _mean(self._spreads) >= SPREAD_LEFT * self._largest
        return stands_still and unsolved and _mean(self._shares) >= NO_SIGNAL

    def _windows(self) -> tuple[float, float]:
        """Return the mean reward of the window before, and that of the last one."""
        means = list(self._means)
        return _mean(means[:WINDOW]), _mean(means[WINDOW:])

    def _text(self, values: Mapping[str, float]) -> str:
        before, now = self._windows()
        entropy = values.get("policy/entropy")
        seen = "" if entropy is None else f" (the entropy is {entropy:.2g} nats per token)"
        return (
            f"of {100 * _mean(self._shares):.0f} % of the prompts all samples had the same reward, and the mean reward "
            f"stands still ({before:.3g}, then {now:.3g}), although some prompts get more than others (reward/std "
            f"{_mean(self._spreads):.3g}). The policy has likely stopped trying other answers{seen}; hold the entropy "
            "with --algo.loss.entropy_target or --algo.loss.entropy_coef, lower the optimizer's lr, or draw prompts "
            "whose samples still differ with --data.sampler curriculum"
        )


def _mean(values: deque[float] | list[float]) -> float:
    return sum(values) / len(values)


KL_PATIENCE = 3
"""Steps in a row with a KL above ``KL_EXPLODED``: a policy that far away does not come back by itself."""
START = 3
"""First steps of the run, whose mean reward is where it started."""
RISEN = 0.1
"""Rise of the mean reward that counts as learning, in standard deviations of the samples' rewards."""
ENTROPY_GONE = 0.01
"""Entropy in nats per token below which practically every sample of a prompt is the same: at 0.01 the most probable of
two tokens has a probability of 0.998."""
KL_EXPLODED = 10.0
"""KL to the reference in nats per token: the policy's tokens have a probability of 5e-5 under the reference."""

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A sign that a run learns nothing, seen in the metrics of single steps."""

    shows: Callable[[Values], bool | None]
    """True or False for a step; None: the step's metrics do not tell."""
    text: str
    """Sentences of the warning: what is so, the likely cause, and the options to look at."""
    patience: int = PATIENCE
    """Steps in a row before the warning."""
    also_while_rising: bool = False
    """True: a rising reward does not make it harmless."""


def no_signal(values: Values) -> bool | None:
    """True when no prompt had samples of different rewards, although there is a gradient, as from a KL term."""
    if values.get("policy/grad_norm") == 0.0:
        return None
    share = values.get("group/no_signal")
    if share is not None:
        return share >= 1.0
    spread = values.get("reward/std")
    return None if spread is None else spread == 0.0


def _at_least(name: str, limit: float) -> Callable[[Values], bool | None]:
    return lambda values: None if name not in values else values[name] >= limit


def _at_most(name: str, limit: float) -> Callable[[Values], bool | None]:
    return lambda values: None if name not in values else values[name] <= limit


SYMPTOMS: Mapping[str, Symptom] = {
    "no_signal": Symptom(
        shows=no_signal,
        text="no prompt had samples of different rewards, so nothing says which are better. The reward is constant, or "
        "the prompts are too hard or too easy for this model; look at --reward, and at more or other samples "
        "(--rollout.n_samples_per_prompt, --rollout.temperature)",
    ),
    "entropy_gone": Symptom(
        shows=_at_most("policy/entropy", ENTROPY_GONE),
        text=f"the entropy is below {ENTROPY_GONE:g} nats per token, so all samples of a prompt are the same. The "
        "learning rate is likely too high; look at the optimizer's lr, and hold the entropy with "
        "--algo.loss.entropy_target or --algo.kl.coef",
    ),
    "truncated": Symptom(
        shows=_at_least("response/truncated", 1.0),
        text="every answer was cut off at its limit, so the reward judges unfinished ones. Raise "
        "--rollout.max_new_tokens, or look at what ends an answer (--rollout.stop, the model's end-of-sequence token)",
    ),
    "empty": Symptom(
        shows=_at_most("response/length_mean", 1.0),
        text="every answer ended with its first token. The prompt's format likely tells the model to say nothing; look "
        "at --data.template and --data.chat, or set --rollout.min_new_tokens",
    ),
    "kl_exploded": Symptom(
        shows=_at_least("kl/ref", KL_EXPLODED),
        text=f"the KL to the reference is above {KL_EXPLODED:g} nats per token: the policy writes what the reference "
        "would never write. The learning rate is likely too high or --algo.kl.coef too low; look at both",
        patience=KL_PATIENCE,
        also_while_rising=True,
    ),
}
"""Symptom by name."""


COLLAPSED = "collapsed"
"""Name of what ``collapse`` sees; it is the same trouble as ``SAME_SAMPLES``, later in a run."""
SAME_SAMPLES = frozenset({"no_signal", "entropy_gone"})
OF_LENGTH = frozenset({"truncated", "empty"})
"""Symptoms that say nothing where an answer has one token."""


def symptoms_of(max_new_tokens: int) -> Mapping[str, Symptom]:
    """Return the symptoms to watch for in a run whose answers have at most so many tokens."""
    if max_new_tokens > 1:
        return SYMPTOMS
    return {name: symptom for name, symptom in SYMPTOMS.items() if name not in OF_LENGTH}


class Symptoms:
    """Counts, for each symptom, the steps in a row that show it.

    Args:
        output: the run folder, for the message.
        symptoms: the symptoms to watch for.
    """

    def __init__(self, output: str, symptoms: Mapping[str, Symptom] = SYMPTOMS) -> None:
        self._output = output
        self._symptoms = symptoms
        self._in_a_row = dict.fromkeys(symptoms, 0)
        self._said: set[str] = set()
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=PATIENCE)
        self._spread = 0.0
        self._collapse = Collapse()

    def note(self, step: int, values: Values) -> None:
        """Take the metrics of a step, and warn of the symptoms that have lasted long enough."""
        self._note_reward(values)
        for name, symptom in self._symptoms.items():
            shown = symptom.shows(values)
            if shown is None:
                continue
            self._in_a_row[name] = self._in_a_row[name] + 1 if shown else 0
            lasts = self._in_a_row[name] >= symptom.patience
            harmless = self._rises() and not symptom.also_while_rising
            if lasts and not harmless and name not in self._said:
                self._warn(
                    name, f"nothing: in each of the last {self._in_a_row[name]}", step, symptom.text
                )
        text = self._collapse.note(values)
        if text is not None and not self._said & {COLLAPSED, *SAME_SAMPLES}:
            self._warn(COLLAPSED, f"nothing more: over the last {WINDOW}", step, text)

    def _warn(self, name: str, when: str, step: int, text: str) -> None:
        self._said.add(name)
        log.warning(
            "this run likely learns %s steps, up to step %d, %s. See the samples with: rlhf show %s --step %d",
            when,
            step,
            text,
            self._output,
            step,
        )

    def _note_reward(self, values: Values) -> None:
        mean = values.get("reward/mean", math.nan)
        if not math.isfinite(mean):
            return
        if len(self._first) < START:
            self._first.append(mean)
        self._recent.append(mean)
        self._spread = max(self._spread, values.get("reward/std", 0.0))

    def _rises(self) -> bool:
        if not self._first:
            return False
        rise = sum(self._recent) / len(self._recent) - sum(self._first) / len(self._first)
        return rise > RISEN * self._spread and rise > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroGradientCauses:
    """Causes of a gradient of 0 in one role, in sentences without the last period."""

    wrong: str
    """The cause where the gradient should not be 0."""
    error: str | None = None
    """Metric that is 0 exactly where a gradient of 0 is right; None: it never is."""
    right: str = ""
    """The cause where ``error`` was 0 in all of the steps."""


CAUSES = {
    "policy": ZeroGradientCauses(
        error="advantage/abs_mean",
        right="Every advantage of these steps was 0, which is then the cause: no prompt had samples of different "
        "rewards. The reward is constant, or the prompts are too easy or too hard; look at reward/std and "
        "group/no_signal",
        wrong="Its advantages were not 0, so the gradient is lost on its way: the policy loss masks or clips every "
        "token (look at loss/policy and clip/...), an adapter trains what the loss does not depend on, or the backend "
        "drops it",
    ),
    "critic": ZeroGradientCauses(
        error="critic/abs_error",
        right="Its values were equal to the returns, which is then the cause; look at reward/std and "
        "critic/return_mean",
        wrong="Its values were not equal to the returns (critic/abs_error), so the gradient is lost on its way: "
        "critic.value_clip leaves no value free to move, or the backend drops it",
    ),
}
"""Causes in runs with rollouts, by role."""
OF_EXAMPLES = ZeroGradientCauses(
    wrong="An adapter trains what the loss does not depend on, or the backend drops the gradient"
)
"""Causes in a run that learns from examples, in any role."""
GRADIENT = "/grad_norm"
"""End of the name of the metric that has the norm of a role's gradient; the role is its beginning."""


class ZeroGradients:
    """Counts, for each role, the steps in a row whose updates all had a gradient of norm 0.

    Args:
        roles: causes for each role that is watched.
        backend: name of the training backend, for the message.
        output: the run folder, for the message; None: the run has no rollouts to look at.
        others: causes for every role that ``roles`` does not name; None: other roles are not watched.
    """

    def __init__(
        self,
        roles: Mapping[str, ZeroGradientCauses],
        backend: str,
        output: str | None = None,
        *,
        others: ZeroGradientCauses | None = None,
    ) -> None:
        self._roles, self._backend, self._output = dict(roles), backend, output
        self._others = others
        self._in_a_row: Counter[str] = Counter()
        self._errors: dict[str, float] = {}
        self._said: set[str] = set()

    def note(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step. A role that it did not update, or whose updates it skipped, keeps its count."""
        if self._others is not None:
            found = [name.removesuffix(GRADIENT) for name in values if name.endswith(GRADIENT)]
            self._roles = dict.fromkeys(found, self._others) | self._roles
        for role, causes in self._roles.items():
            norm = values.get(role + GRADIENT)
            if norm is None:
                continue
            if norm != 0.0:
                self._in_a_row[role], self._errors[role] = 0, 0.0
                continue
            self._in_a_row[role] += 1
            error = 1.0 if causes.error is None else values.get(causes.error, 0.0)
            self._errors[role] = max(self._errors.get(role, 0.0), error)
            if self._in_a_row[role] >= PATIENCE and role not in self._said:
                self._said.add(role)
                log.warning("%s", self._message(role, step))

    def _message(self, role: str, step: int) -> str:
        causes = self._roles[role]
        samples = ""
        if self._output is not None:
            samples = f" See the samples with: rlhf show {self._output} --step {step}."
        return (
            f"the {role} learns nothing: each of its last {self._in_a_row[role]} steps, up to step {step}, had a "
            f"gradient of norm 0. {causes.wrong if self._errors[role] else causes.right}.{samples} Ask the backend "
            f"whether it trains every parameter with: rlhf check {self._backend}"
        )


class LearningWatch:
    """Hears each step of a run. Symptoms are those of rollouts; gradients of 0 are watched in every run."""

    def __init__(self, run: RunInfo) -> None:
        backend, rollout = run.config["backend"]["name"], run.config.get("rollout")
        self._symptoms: Symptoms | None = None
        if rollout is None:
            self._gradients = ZeroGradients({}, backend, others=OF_EXAMPLES)
            return
        folder = str(run.config["output"])
        self._gradients = ZeroGradients(CAUSES, backend, folder)
        self._symptoms = Symptoms(folder, symptoms_of(rollout["max_new_tokens"]))

    def step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of a step, and warn of the signs that have lasted long enough."""
        self._gradients.note(step, metrics)
        if self._symptoms is not None:
            self._symptoms.note(step, metrics)
