"""What a reader gathers for the summary while it reads."""

from dataclasses import dataclass, field
from typing import Any

from sim.nouns.imported import SENTENCES


@dataclass(slots=True, kw_only=True)
class Notes:
    """Sentences, as ``Imported`` has them."""

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)

    def each(self) -> dict[str, Any]:
        """The sentences by the names of ``Imported``'s fields; of equal ones the first."""
        return {kind: tuple(dict.fromkeys(getattr(self, kind))) for kind in SENTENCES}
