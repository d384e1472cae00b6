"""``sim.autotune``: a job that tunes its own buckets while it trains.

``loop`` is what the user holds; it goes from ``own_recording`` to ``job_link``, ``prediction`` and a trial
that ``verdict`` judges. ``switch`` changes the buckets of a live DDP, ``boundary`` says when that may be
done, ``modes`` which ones are refused, ``reducer_room`` whether memory is enough, ``unison`` lets all ranks
act alike, ``cache`` keeps the answer. ``attached`` holds the
tuner of a script that nobody edits (``sim.tuned``).
"""
