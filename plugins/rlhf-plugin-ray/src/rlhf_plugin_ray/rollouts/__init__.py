"""The processes that play episodes, and the driver's line to each.

A rollout worker asks engines itself; tokens of finished groups stay where they were made until a rank pulls them.
"""
