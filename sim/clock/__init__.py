"""How time runs: a step as a program, and the clocks that play it, of one rank or of many."""
