"""What a calibration runs: the link's curve, copies and launches, and when a figure has settled."""
