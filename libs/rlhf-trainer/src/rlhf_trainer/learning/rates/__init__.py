"""Learning rates of roles, from their options."""
