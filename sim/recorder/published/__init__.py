"""Models that others published, in plain torch; ``sim.recorder.published_models`` names them all."""
