"""Files of TRL: a table of keys for each script, and the rules by which several keys act together."""
