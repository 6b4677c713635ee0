"""The command ``rlhf merge``: its flags, and the folder that it writes in one step."""
