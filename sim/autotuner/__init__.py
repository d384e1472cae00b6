"""``sim.autotune``: a job that tunes its own buckets while it trains.

``loop`` is what the user holds. It records some steps, measures the link, predicts, and lets a trial say, all
by way of ``switch``, which gives a live DDP other buckets; ``unison`` lets all ranks act alike. ``sim.tuned``
is the same for a script that nobody edits.
"""
