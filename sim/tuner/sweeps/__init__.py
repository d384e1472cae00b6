"""Sweeps over caps and what-ifs, as tidy rows."""
