"""Reward shapers, which change the rewards of a whole batch. One file each."""
