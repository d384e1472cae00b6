"""Many ranks that differ: what their steps take, and what the slowest of them costs."""
