"""Several jobs on one cluster, and what they make of each other's collectives."""
