"""What a transfer costs: curves today; topology and ranks live here when they come."""
