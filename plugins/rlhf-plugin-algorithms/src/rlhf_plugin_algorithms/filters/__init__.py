"""Sample filters, which keep the groups of a batch that are worth learning from. One file each."""
