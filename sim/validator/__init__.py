"""Real ranks: launched, calibrated, and made to replay assignments.

``worker`` and what it imports (``pacing``, ``probes``, ``replaying``) run on the measured ranks and need
torch and the standard library only. ``launch``, ``box``, ``calibrate`` and ``replay`` stay in the parent.
"""
