"""The calls of all themes, by the place that raises."""

from .advised_commands import COMMANDS_RUN
from .advised_requests import REQUESTS_REFUSED
from .advised_rows import ROWS_READ
from .advised_runs import RUNS_GOING_ON

THEMES = (ROWS_READ, COMMANDS_RUN, REQUESTS_REFUSED, RUNS_GOING_ON)
