"""Real ranks: launched, calibrated, and made to replay assignments.

What stays with the user is here: places (``launch``, ``box``), what to replay (``candidates``, ``jobs``),
what came back (``collecting``, ``gathering``). What runs on a measured rank is ``worker`` and ``ranks/``.
"""
