"""A job that is still running, held to its prediction."""
