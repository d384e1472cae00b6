"""What a step means: its figures, what holds it up."""
