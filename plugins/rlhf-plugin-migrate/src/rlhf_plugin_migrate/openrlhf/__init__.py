"""Programs of OpenRLHF: a table of flags for each, and the rules by which several flags act together."""
