"""``sim.autotune`` and ``sim.record`` in training loops that others wrote."""
