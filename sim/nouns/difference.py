"""What sets two steps apart: parts of the one against the same parts of the other, in ns."""

from dataclasses import dataclass
from typing import Literal

PartName = Literal[
    "compute",
    "copy_in",
    "launch",
    "find_unused",
    "accumulate",
    "latency",
    "bytes",
    "copy_out",
    "interference",
    "straggler",
]
Cause = Literal["assignment", "machine", "assignment and machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One mechanism's part of two steps: what each step takes longer because of it, behind those before it.

    ``sim.truth.differences`` says in which order mechanisms come. ``sentence`` tells the part in words.
    """

    name: PartName
    before_ns: int
    after_ns: int
    sentence: str

    @property
    def change_ns(self) -> int:
        """By how much the part became longer; negative: shorter."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One turn from a step to another, and what it changed: ``parts`` add up to ``change_ns`` exactly.

    The part that changed most comes first; parts that both steps have not are left out.
    """

    cause: Cause
    before_step_ns: int
    after_step_ns: int
    parts: tuple[Part, ...]

    @property
    def change_ns(self) -> int:
        """By how much the step became longer; negative: shorter."""
        return self.after_step_ns - self.before_step_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Why one step is not as long as another.

    ``changes`` lead from the one to the other in turns, none where both are the same; ``order`` says which
    turn came first and why it matters, empty where there was but one. ``facts`` are what can be seen on
    both timelines.
    """

    before_step_ns: int
    after_step_ns: int
    changes: tuple[Change, ...]
    order: str
    facts: tuple[str, ...]

    @property
    def change_ns(self) -> int:
        """By how much the step became longer; negative: shorter."""
        return self.after_step_ns - self.before_step_ns
