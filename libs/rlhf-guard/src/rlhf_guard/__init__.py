"""Processes that run the code of users: rewards and environments, with limits of time, memory and restarts."""
