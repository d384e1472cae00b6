"""What each system that reduces gradients does: it cuts buckets, and writes a step as a program."""
