"""Measured against predicted: how well they agree, by which rule, and what sets them apart."""
