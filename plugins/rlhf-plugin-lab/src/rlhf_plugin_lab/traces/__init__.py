"""Recorded episodes in the form of OpenEnv's ``TrainingTrace``, for other people's tools."""
