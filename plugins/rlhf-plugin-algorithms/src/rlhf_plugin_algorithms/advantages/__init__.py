"""Advantage estimators: from the rewards of a batch to an advantage of each token. One file each."""
