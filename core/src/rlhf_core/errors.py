"""Every error that a user can cause.

    RLHFError
    ├── ConfigError              an option is unknown, mistyped, out of range, contradictory      (exit code 2)
    │   ├── UnknownComponent     no installed plugin provides the name
    │   ├── AmbiguousComponent   several plugins provide the name
    │   └── CapabilityError      a component needs what the run does not supply, or conflicts with it
    ├── PluginError              a plugin could not be loaded, or broke its contract
    │   ├── MissingDependency    a component's extra is not installed
    │   └── FingerprintMismatch  two processes of one run see different plugins
    ├── DataError                a data file or a row cannot be used
    ├── RolloutError             an executor, environment or engine failed
    │   └── RequestError         a request that no engine could serve: whoever sent it is to blame, not the engine
    │       └── UnknownTokenError    it has a token id that is none of the model's
    ├── RewardError              a reward raised, timed out, or returned an unusable result
    ├── NonFiniteError           NaN or infinity where it would have reached the weights
    ├── EmptyStepsError          too many steps in a row had nothing to train on
    ├── StorageError             a file could not be written, for example because the disk is full
    └── CheckpointError          a checkpoint could not be written, is missing or damaged, or belongs to another run
        └── ResumeError          a run cannot go on from where it was left                       (exit code 2)

Messages say what was expected, what came, and the fix in the words that the user typed; ``code`` names the mistake for
programs. All of them pickle (they cross process boundaries), so each takes its message as the only positional argument.
"""


def first_error(errors: BaseExceptionGroup[Exception]) -> Exception:
    """Return the first error of a group of errors that may be nested, as a task group raises them."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, Exception)
    return error


class RLHFError(Exception):
    """Base of the tree. ``exit_code`` is the exit code of the command line.

    Args:
        code: area and mistake, such as ``data/missing-column``, by which a program tells errors apart: texts may change
            from one version to the next, codes do not. None: the code of the class, ``default_code``.
    """

    exit_code = 1
    default_code = "run/failed"

    def __init__(self, message: object = "", *, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code


class _UserMistake:
    """Part of errors that whoever called can mend by another option or another row; the message says how."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: the message, without the lines of this package through which it came."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class ConfigError(_UserMistake, RLHFError, ValueError):
    """The configuration cannot be run as written."""

    exit_code = 2
    default_code = "config/invalid"


class UnknownComponent(ConfigError):
    """No installed plugin provides a component of this name and kind."""

    default_code = "plugin/unknown-component"


class AmbiguousComponent(ConfigError):
    """Several plugins provide the name; the qualified one has to be written."""

    default_code = "plugin/ambiguous-component"


class CapabilityError(ConfigError):
    """The run lacks a capability that a component ``needs``, or has one that it ``conflicts`` with."""

    default_code = "config/missing-capability"


class PluginError(RLHFError):
    """A plugin cannot be loaded, or what it returned breaks the contract of its hook."""

    default_code = "plugin/contract"


class MissingDependency(PluginError):
    """A component needs distributions that are not installed."""

    default_code = "plugin/missing-dependency"


class FingerprintMismatch(PluginError):
    """Two processes of one run see different plugins or library versions."""

    default_code = "plugin/versions-differ"


class DataError(_UserMistake, RLHFError, ValueError):
    """A data file, or a row in it, cannot be used."""

    exit_code = 2
    default_code = "data/invalid"


class RolloutError(RLHFError, RuntimeError):
    """An executor, environment or engine failed while producing a trajectory."""

    default_code = "rollout/failed"


class RequestError(RolloutError):
    """A request that no engine could serve. Whoever sent it is to blame; the engine goes on with all others."""

    default_code = "engine/refused-request"


class UnknownTokenError(RequestError):
    """A request to an engine has a token id that is none of the model's."""

    default_code = "rollout/unknown-token"


class EnvironmentFailure(RolloutError):
    """Failure of an environment, or of an agent that asks the policy: it raised, answered with something that it must
    not, or not in time. Its episode is lost, and no other."""

    default_code = "environment/failed"

    reason = "environment_failed"
    """Word by which episodes are counted that are left out because of it."""


class RewardError(RLHFError, RuntimeError):
    """A reward raised, timed out, or returned something that is not one finite number per sample."""

    default_code = "reward/failed"


class NonFiniteError(RLHFError, ArithmeticError):
    """NaN or infinity appeared where it would have reached the weights."""

    default_code = "training/not-finite"


class EmptyStepsError(RLHFError, RuntimeError):
    """Too many steps in a row had nothing to train on."""

    default_code = "training/empty-steps"


class StorageError(RLHFError, RuntimeError):
    """A file could not be written, for example because the disk is full; nothing of it is left."""

    default_code = "output/not-written"


class CheckpointError(RLHFError, RuntimeError):
    """A checkpoint could not be written, is missing or damaged, or does not belong to this run."""

    default_code = "checkpoint/invalid"


class ResumeError(_UserMistake, CheckpointError):
    """A run cannot go on: no checkpoint, record or component's state can be taken up as it was left."""

    exit_code = 2
    default_code = "resume/refused"
