"""What tests of the core have, too: trajectories written as text, and configurations of components that are none."""

from tests.core.conftest import batch_of, plugins, resolved

__all__ = ["batch_of", "plugins", "resolved"]
