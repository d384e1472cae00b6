"""How steps may vary, and which parts of an answer hold all the same."""
