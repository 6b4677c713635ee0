"""SkyRL: launches of its training programs, whose overrides are read as hydra's are."""
