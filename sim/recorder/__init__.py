"""What is trained, taken from the user's own code: factories, the recorder, ready-made models.

``watch`` hangs onto a model that trains. ``training_step`` (``bucketsim record``), ``live_recording``
(``sim.record``) and ``estimate`` are three ways to run what it watches; ``watched_workload`` makes a Workload
of it. All but that one import torch.
"""
