"""``sim.autotune`` in training loops that others wrote."""
