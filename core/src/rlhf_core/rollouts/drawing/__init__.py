"""Which prompts a run draws next: the prompts as samplers see them, the order without one, results, mistakes."""
