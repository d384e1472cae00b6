"""Who goes with whom, and what happens then.

``bucketing`` cuts gradients into buckets as torch does; ``plan`` turns workload, hardware and
assignment into integers; ``lanes`` plays a plan in SimPy; ``recurrence`` computes the same without.
"""
