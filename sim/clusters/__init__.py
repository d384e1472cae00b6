"""Clusters: machines as graphs, many ranks that differ, several jobs, and scaling."""
