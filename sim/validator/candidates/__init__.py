"""What is replayed: candidates, whether they can be, what carries their buckets, and the job of the ranks."""
