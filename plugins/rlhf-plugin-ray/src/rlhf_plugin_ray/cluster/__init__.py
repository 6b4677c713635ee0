"""The Ray cluster: starting or joining it, looking at its machines before a model is loaded, leaving nothing behind.

Nothing here talks to a role, an engine or a rollout worker.
"""
