"""The core that plugins build on. Importing it imports no torch."""

from .component import Component as Component
from .component import Config as Config
from .component import Registered as Registered
from .errors import AmbiguousComponent as AmbiguousComponent
from .errors import CapabilityError as CapabilityError
from .errors import CheckpointError as CheckpointError
from .errors import ConfigError as ConfigError
from .errors import DataError as DataError
from .errors import EmptyStepsError as EmptyStepsError
from .errors import EnvironmentFailure as EnvironmentFailure
from .errors import FingerprintMismatch as FingerprintMismatch
from .errors import MissingDependency as MissingDependency
from .errors import NonFiniteError as NonFiniteError
from .errors import PluginError as PluginError
from .errors import RequestError as RequestError
from .errors import ResumeError as ResumeError
from .errors import RewardError as RewardError
from .errors import RLHFError as RLHFError
from .errors import RolloutError as RolloutError
from .errors import StorageError as StorageError
from .errors import UnknownComponent as UnknownComponent
from .errors import UnknownTokenError as UnknownTokenError
from .errors import first_error as first_error
from .errors import wrong_answer as wrong_answer
from .hookspecs import hookimpl as hookimpl
from .moved import install
from .problem import headline as headline
from .problem import log_switched_off as log_switched_off

install()
