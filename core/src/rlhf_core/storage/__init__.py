"""Files that are written whole or not at all, and the folder of a run with the names of its files."""

from .writing import made_whole, write_text_atomically, writing, written_whole

__all__ = ["made_whole", "write_text_atomically", "writing", "written_whole"]
