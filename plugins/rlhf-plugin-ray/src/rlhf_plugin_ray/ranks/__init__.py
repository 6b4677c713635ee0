"""The processes in which roles compute and train, and the driver's handle to all ranks of a role.

The learner's process is here too. Engines and rollout workers have rooms of their own.
"""
