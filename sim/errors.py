"""The only exception tree."""


class SimError(Exception):
    """Root of every error that bucketsim raises on purpose."""


class InputError(SimError, ValueError):
    """A file, field or argument is not legal; the message names it, its value and what is legal."""


class AssignmentError(InputError):
    """A bucket assignment does not fit the workload it is meant for (A8.3)."""


class NotModelledError(SimError, ValueError):
    """A system, switch or combination that is not modelled is refused, never ignored."""


class MachineError(SimError, RuntimeError):
    """This machine lacks something that the command needs (root, gloo, a browser)."""


class ReplayError(SimError, RuntimeError):
    """Real ranks failed, disagreed, or did not run the assignment they were asked to run."""
