"""What ``sim.record`` wrote beside a real training run: ``rank-<r>.jsonl`` of each rank."""
