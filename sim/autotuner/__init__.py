"""``sim.autotune``: a job that tunes its own buckets while it trains.

``loop`` is what the user holds; it goes through ``phases``: a recording, ``link`` and ``prediction``, a
``trial`` judged by ``verdict``. ``switch`` changes the buckets of a live DDP, ``boundary`` says when that may
be done, ``modes`` which ones are refused, ``ranks`` lets all ranks act alike, ``cache`` keeps the answer.
"""
