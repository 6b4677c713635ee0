"""The command ``rlhf generate``: prompts in, completions with their scores out, and data sets selected from them.

``run`` is the command's course, ``answering`` one prompt, ``records`` the file of completions, and ``selecting`` what
becomes a data set. A prompt's completions depend on the options and on its place in the data alone.
"""
