"""Gradient averaging that is not DDP's, for real: the systems of A6 and A7 as modules that wrap a module.

``reduced`` is what they have in common, ``buckets`` how parameters are cut; then one file a family:
``per_parameter``, ``bucketed`` and ``last_hook``. ``catalogue`` finds a system by the name of its policy.
"""
