"""The log of what reading finds out about sets of rows. Commands without a run's log show it, too."""

import logging

log = logging.getLogger(__name__)
