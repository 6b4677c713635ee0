"""Rules and keys that verl's trainers share."""
