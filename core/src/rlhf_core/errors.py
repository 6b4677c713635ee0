"""Every error that a user can cause.

Messages say what was expected, what came, and the fix in the words that the user typed; ``code`` names the mistake for
programs. All of them pickle (they cross process boundaries), so each takes its message as the only positional argument.
"""

from inspect import iscoroutine
from typing import Self


def first_error(errors: Exception | BaseExceptionGroup[Exception]) -> Exception:
    """Return the first error of a group of errors that may be nested, as a task group raises them; or an error that is
    no group."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


class RLHFError(Exception):
    """Base of the tree. ``exit_code`` is the exit code of the command line.

    Args:
        code: area and mistake, such as ``data/missing-column``, by which a program tells errors apart: texts may change
            from one version to the next, codes do not. None: the code of the class, which a subclass gives itself by
            ``class MyError(RewardError, code="reward/mine")`` or has from its base.
    """

    exit_code = 1
    default_code = "run/failed"

    def __init_subclass__(cls, code: str | None = None) -> None:
        super().__init_subclass__()
        cls.default_code = code or cls.default_code

    def __init__(self, message: object = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code

    @property
    def own_code(self) -> str | None:
        """``code``, unless it is that of a class of this file, which says less than the place that raised it."""
        is_general = self.code == self.default_code and type(self).__module__ == __name__
        return None if is_general else self.code

    def with_text(self, text: str) -> Self:
        """Return an error of the same class and code with another text, such as one that names whose error it is."""
        other = type(self)(text)  # A class of its own may take no code.
        other.code = self.code
        return other


class _UserMistake:
    """Part of errors that whoever called can mend by another option or another row; the message says how."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the message, without the lines of this package through which it came."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class ConfigError(_UserMistake, RLHFError, ValueError, code="config/invalid"):
    """The configuration cannot be run as written."""

    exit_code = 2


class UnknownComponent(ConfigError, code="plugin/unknown-component"):
    """No installed plugin provides a component of this name and kind."""


class AmbiguousComponent(ConfigError, code="plugin/ambiguous-component"):
    """Several plugins provide the name; the qualified one has to be written."""


class CapabilityError(ConfigError, code="config/missing-capability"):
    """The run lacks a capability that a component ``needs``, or has one that it ``conflicts`` with."""


class PluginError(RLHFError, code="plugin/contract"):
    """A plugin cannot be loaded, or what it returned breaks the contract of its hook."""


class MissingDependency(PluginError, code="plugin/missing-dependency"):
    """A component needs distributions that are not installed."""


class FingerprintMismatch(PluginError, code="plugin/versions-differ"):
    """Two processes of one run see different plugins or library versions."""


class DataError(_UserMistake, RLHFError, ValueError, code="data/invalid"):
    """A data file, or a row in it, cannot be used."""

    exit_code = 2


class RolloutError(RLHFError, RuntimeError, code="rollout/failed"):
    """An executor, environment or engine failed while producing a trajectory."""


class RequestError(RolloutError, code="engine/refused-request"):
    """A request that no engine could serve. The mistake is the sender's; the engine continues with all others."""


class UnknownTokenError(RequestError, code="rollout/unknown-token"):
    """A request to an engine has a token id that the model does not have."""


class EnvironmentFailure(RolloutError, code="environment/failed"):
    """Failure of an environment, or of an agent that asks the policy: it raised, answered with something that it must
    not, or not in time. It costs its episode, or ends the run, as ``on_error`` says."""

    reason = "environment_failed"
    """Word by which episodes are counted that are left out because of it."""


class RewardError(RLHFError, RuntimeError, code="reward/failed"):
    """A reward raised, timed out, or returned something that is not one finite number per sample."""


class NonFiniteError(RLHFError, ArithmeticError, code="training/not-finite"):
    """NaN or infinity appeared where it would have reached the weights."""


class EmptyStepsError(RLHFError, RuntimeError, code="training/empty-steps"):
    """Too many steps in a row had nothing to train on."""


class StorageError(RLHFError, RuntimeError, code="output/not-written"):
    """A file could not be written, for example because the disk is full; nothing of it is left."""


class CheckpointError(RLHFError, RuntimeError, code="checkpoint/invalid"):
    """A checkpoint could not be written, is missing or damaged, or does not belong to this run."""


class ResumeError(_UserMistake, CheckpointError, code="resume/refused"):
    """A run cannot go on: no checkpoint, record or component's state can be taken up as it was left."""

    exit_code = 2


def wrong_answer(
    who: str, answer: object, wanted: object, *, field: str = "", shown: str = ""
) -> PluginError:
    """Return the error for an answer, or one of its fields, that is not what the kind promises; ``shown`` says what is
    wrong with it, if not all is."""
    shown = shown or f"{' '.join(repr(answer).split()):.60} ({type(answer).__name__})"
    fix = ". Write it without async." if iscoroutine(answer) else ""
    what = f"{field} of {shown}" if field else shown
    return PluginError(f"{who} returned {what}; expected {wanted}{fix}", code="plugin/wrong-answer")
