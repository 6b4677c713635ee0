"""DeepCompile: the layers of a role as one graph, and what stands beside it."""
