"""A file of JSON lines that survives a killed process and never stops the training that feeds it."""

import errno
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.formats.files import check_directory

_log = logging.getLogger(__name__)
_OUT_OF_SPACE = {errno.ENOSPC, errno.EDQUOT}


class Journal:
    """Appends one whole line with one write; after the first failure it warns once and stays closed."""

    def __init__(self, path: Path) -> None:
        """Make the file.

        Raises:
            InputError: it exists already, or cannot be made for another reason than a full disk.
        """
        self.path = path
        self._handle: int | None = None
        try:
            check_directory(path.parent).mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._handle = os.open(path, flags, 0o666)
        except OSError as error:
            if os.path.lexists(path):
                raise InputError(f"{path}: exists already; give a new or empty directory") from None
            if error.errno not in _OUT_OF_SPACE:
                raise InputError(f"{path}: cannot be made: {error.strerror or error}") from None
            self._give_up(error.strerror or str(error))

    @property
    def is_open(self) -> bool:
        """Whether lines are still taken."""
        return self._handle is not None

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; on a failure warn, keep what is there and take no more."""
        if self._handle is None:
            return
        text = (json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            written = os.write(self._handle, text)
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return
        if written < len(text):
            self._give_up("the disk took only part of a line")

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        try:
            os.close(handle)
        except OSError as error:
            _log.warning("%s: %s while closing; its last lines may be missing", self.path, error.strerror)

    def discard(self) -> None:
        """Close the file and take it away: nothing was recorded."""
        if self._handle is not None:
            self.close()
            self.path.unlink(missing_ok=True)

    def _give_up(self, reason: str) -> None:
        _log.warning(
            "%s: recording stops here (%s); what is there is kept and training goes on", self.path, reason
        )
        self.close()
