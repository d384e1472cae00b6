"""What each knob can reach: caps, families of systems, limits of memory."""
