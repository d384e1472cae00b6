"""Real ranks: launched, calibrated, and made to replay assignments.

``jobs`` says what ranks are told, ``candidates`` what is replayed, ``launch`` starts ranks and watches them;
``calibrate`` and ``replay`` make of what they tell a Hardware and a record; ``worker`` and ``ranks`` run on
each rank. ``applying`` is ``sim.apply``.
"""
