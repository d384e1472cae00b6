"""The machine as a graph: ready-made clusters, best rings, and what each ring gets of its links."""
