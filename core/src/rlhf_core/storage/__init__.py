"""Files that are written whole or not at all, the folder of a run with the names of its files, and
that of temporary ones."""

from .temporary import TEMPORARY_VARIABLE as TEMPORARY_VARIABLE
from .temporary import temporary_folder as temporary_folder
from .writing import FailedWrite as FailedWrite
from .writing import failed_writes_named as failed_writes_named
from .writing import is_full as is_full
from .writing import made_whole as made_whole
from .writing import reason_of as reason_of
from .writing import write_text_atomically as write_text_atomically
from .writing import writing as writing
from .writing import written_whole as written_whole
