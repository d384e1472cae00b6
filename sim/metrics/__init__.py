"""What a step means: its figures, what holds it up, what its buckets cost in memory."""
