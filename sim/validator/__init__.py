"""Real ranks: launched, calibrated, and made to replay assignments.

The files of this directory are what a command asks for: a calibration, a replay, an A/B test, a record out of
what ranks left, ``sim.apply``. ``candidates`` says what is replayed, ``hosts`` starts ranks and watches them,
``worker`` and ``ranks`` run on each rank.
"""
