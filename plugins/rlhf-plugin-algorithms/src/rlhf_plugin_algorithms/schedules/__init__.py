"""Learning-rate schedules after the warm-up, each a function of the share of updates that are done. One file each."""
