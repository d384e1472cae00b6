"""What one collective puts on one link between hosts."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """``share`` bytes cross the link from ``a`` to ``b`` for each byte of the message.

    It carries ``bytes_per_s`` in that direction.
    """

    a: str
    b: str
    bytes_per_s: float
    share: float

    @property
    def s_per_byte(self) -> float:
        """How long the link is busy for each byte of the message: the greatest of all holds them up."""
        return self.share / self.bytes_per_s
