"""A workload on many machines: what scaling costs, which caps are best there, and why they change."""
