"""Steps that may happen, and what of an answer holds in all of them."""
