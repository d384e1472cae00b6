"""Where ``bucketsim autotune`` points PYTHONPATH: Python runs what is here when it starts."""
