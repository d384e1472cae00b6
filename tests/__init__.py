"""Tests. A package so that pytest puts the repository's root on the path, never ``tests/`` itself:
there, the folder ``tests/app`` would pass for the package ``app``."""
