"""``rlhf serve-rm``: a reward model behind OpenRLHF's JSON protocol."""
