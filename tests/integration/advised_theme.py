"""The calls of all themes, by the place that raises."""

from .advised_commands import COMMANDS_RUN
from .advised_frames import FRAMES
from .advised_images import IMAGES_TAKEN
from .advised_packages import PACKAGES_AT_WORK
from .advised_quantized import QUANTIZED_FOLDERS
from .advised_requests import REQUESTS_REFUSED
from .advised_rows import ROWS_READ
from .advised_runs import RUNS_GOING_ON
from .advised_servers import SERVERS_ASKED
from .advised_weights import WEIGHTS_CHOSEN

THEMES = (
    ROWS_READ,
    COMMANDS_RUN,
    REQUESTS_REFUSED,
    RUNS_GOING_ON,
    WEIGHTS_CHOSEN,
    QUANTIZED_FOLDERS,
    IMAGES_TAKEN,
    FRAMES,
    PACKAGES_AT_WORK,
    SERVERS_ASKED,
)
