"""Launches of verl: hydra overrides and the files that hydra writes, as configurations."""
