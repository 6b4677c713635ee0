"""Rows of a data set as token ids and a mask of the tokens that are learned: conversations, pairs, labels, steps."""
