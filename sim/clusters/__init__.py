"""Clusters: machines as numbers, NCCL's cost model of them, many ranks that differ, and scaling."""
