"""Files that are written whole or not at all, and the folder of a run with the names of its files."""

from .writing import write_text_atomically, writing, written_whole

__all__ = ["write_text_atomically", "writing", "written_whole"]
