"""The best assignment, its proof, and what each knob can reach."""
