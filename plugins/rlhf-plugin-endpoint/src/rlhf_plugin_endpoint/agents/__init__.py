"""Agents as they are: functions and coroutines of any library, and commands in processes of their own."""
