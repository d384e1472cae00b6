"""A rank among its peers: its seat, its clock, its signs of life, and who is at fault when one is missing."""
