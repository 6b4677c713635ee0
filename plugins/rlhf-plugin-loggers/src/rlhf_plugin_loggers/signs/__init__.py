"""Signs of a run that learns nothing, seen in the metrics of its steps. One file a kind of sign."""
