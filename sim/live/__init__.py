"""A job that is still running, compared with its prediction."""
