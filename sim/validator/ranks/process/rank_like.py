"""The interface through which a task uses the rank that it runs on."""

from typing import Any, Protocol


class RankLike(Protocol):
    """This rank's place and job, and how it tells what happened."""

    job: dict[str, Any]
    rank: int
    world_size: int

    def tell(self, event: str, **content: Any) -> None:
        """Append one event to the job's event file (rank 0 only)."""

    def must_agree(self, what: str, content: Any) -> None:
        """Raise unless every rank holds the same content."""
