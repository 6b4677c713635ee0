"""The command ``rlhf chat``: a conversation with a model on the terminal or through a pipe.

``conversation`` is what was said, ``speaker`` the model's part of it, ``slash_commands`` what a line with a slash does,
``terminal`` the lines in and out, and ``talk`` the loop over them.
"""
