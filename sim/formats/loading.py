"""Our nouns from files and texts, and what tells two of them apart."""

import hashlib
import os
from typing import Any

from sim.formats import documents
from sim.formats.documents import to_text
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload


def load_workload(path: str | os.PathLike[str]) -> Workload:
    """A Workload from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Workload)


def load_hardware(path: str | os.PathLike[str]) -> Hardware:
    """A Hardware from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Hardware)


def load_assignment(path: str | os.PathLike[str]) -> Assignment:
    """An Assignment from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Assignment)


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """A Cluster from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Cluster)


def parse_workload(text: str | bytes, source: str) -> Workload:
    """A Workload from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Workload, source)


def parse_hardware(text: str | bytes, source: str) -> Hardware:
    """A Hardware from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Hardware, source)


def parse_cluster(text: str | bytes, source: str) -> Cluster:
    """A Cluster from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Cluster, source)


def digest(noun: Any) -> str:
    """SHA-256 of a noun's JSON text, in hex."""
    return hashlib.sha256(to_text(noun).encode()).hexdigest()
