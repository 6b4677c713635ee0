"""KL estimators, each a function of the log-ratio between policy and reference at a sampled token. One file each."""
