"""What a reader gathers for the summary while it reads."""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Notes:
    """Sentences, as ``Imported`` has them."""

    found: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
