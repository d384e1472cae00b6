"""What is trained, taken from the user's own code: factories, the recorder, ready-made models.

Doors: ``load_factory`` and ``parse_arguments`` turn ``MODULE:FACTORY --arg k=v`` into an object;
``record`` runs it and returns a ``Workload``. ``models`` holds models to try it on. This wing
imports torch.
"""

from sim.recorder.factory import load_factory, parse_arguments
from sim.recorder.profile import record

__all__ = ["load_factory", "parse_arguments", "record"]
