"""JSON of any size, one member at a time: memory is bounded by the largest member, not by the file."""

import codecs
import json
import os
import re
from collections.abc import Iterator
from typing import IO, Any

from sim.errors import InputError
from sim.importer.imported import Progress, no_progress
from sim.importer.opening import MAX_INFLATED_BYTES, open_bytes

_CHUNK_BYTES = 4 << 20
MAX_MEMBER_CHARS = 8 << 20
_NUMBER_TAIL = len("e+")  # json leaves over at most this of a number that is cut off
_SPACE = re.compile(r"[ \t\n\r]*")


def stream_members(
    path: str | os.PathLike[str], array: str, progress: Progress = no_progress
) -> Iterator[tuple[str, Any]]:
    """``(key, value)`` of a JSON object's members; those of its ``array`` one by one, ``(array, element)``.

    A file that is a JSON list as a whole is read as that array. Numbers that are not whole stay text, exactly
    as written (a time of 16 digits and 3 decimals does not fit a float); NaN and infinities become None.

    Args:
        path: plain or gzip.
        array: the key whose list is streamed.
        progress: told the bytes of the file read so far.

    Raises:
        InputError: not JSON, cut off, nested too deeply, or one member larger than ``MAX_MEMBER_CHARS``.
    """
    with open_bytes(path) as stream:
        text = _Text(stream, os.fspath(path), progress)
        opening = text.next_token()
        if opening == "[":
            for _ in text.items("]"):
                yield array, text.value()
        elif opening == "{":
            for _ in text.items("}"):
                key = text.value()
                if not isinstance(key, str):
                    raise text.fault(f"a key was expected, not {key!r:.40}")
                if text.next_token() != ":":
                    raise text.fault("':' was expected")
                if key != array:
                    yield key, text.value()
                    continue
                if text.next_token() != "[":
                    raise text.fault(f"{array} must be a list")
                for _ in text.items("]"):
                    yield array, text.value()
        else:
            raise text.fault("an object or a list was expected" if opening else "the file is empty")
        if text.next_token():
            raise text.fault("something follows the end of the document")
        total = os.path.getsize(path)
        progress(total, total, "read")


class _Text:
    """What was read of a file and is not used yet, and the stream that it comes from."""

    def __init__(self, stream: IO[bytes], source: str, progress: Progress) -> None:
        self._stream = stream
        self._source = source
        self._progress = progress
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("strict").decode
        self._total = os.path.getsize(source)
        self._read = 0
        self._buffer = ""
        self._at = 0
        self._behind = 0
        self._ended = False
        self._json = json.JSONDecoder(
            parse_float=str, parse_constant=lambda word: None, strict=False
        ).raw_decode

    def fault(self, why: str) -> InputError:
        """An error that names the file and how far it was read."""
        return InputError(f"{self._source}: not JSON at character {self._behind + self._at}: {why}")

    def next_token(self) -> str:
        """The next character that is no space, used up; empty at the end of the file."""
        while True:
            self._skip_space()
            if self._at < len(self._buffer):
                self._at += 1
                return self._buffer[self._at - 1]
            if not self._fill():
                return ""

    def items(self, closing: str) -> Iterator[None]:
        """Stops before each item of a list or an object; ``closing`` stands behind the last."""
        first = True
        while True:
            token = self.next_token()
            if not first and token == ",":
                token = self.next_token()
                if token == closing:
                    raise self.fault(f"{closing!r} follows a comma")
            elif not first and token not in (closing, ""):
                raise self.fault("',' was expected")
            if not token:
                raise self.fault("the file ends early (truncated?)")
            if token == closing:
                return
            self._at -= 1
            first = False
            yield

    def value(self) -> Any:
        """The next value, as JSON has it."""
        while True:
            self._skip_space()
            try:
                value, end = self._json(self._buffer, self._at)
            except json.JSONDecodeError as error:
                # What is wrong may only be cut off: at the end of what was read so far, read on.
                if self._fill():
                    continue
                at_end = error.pos >= len(self._buffer.rstrip())
                self._at = min(error.pos, len(self._buffer))
                raise self.fault("the file ends early (truncated?)" if at_end else error.msg) from None
            except RecursionError:
                raise self.fault("nested too deeply") from None
            except ValueError as error:
                raise self.fault(str(error)) from None
            if end + _NUMBER_TAIL >= len(self._buffer) and self._fill():
                continue  # a number may go on
            self._at = end
            return value

    def _skip_space(self) -> None:
        match = _SPACE.match(self._buffer, self._at)
        assert match is not None
        self._at = match.end()

    def _fill(self) -> bool:
        """Read on and drop what was used; False, and nothing is moved, at the end of the file."""
        if self._ended:
            return False
        if len(self._buffer) - self._at > MAX_MEMBER_CHARS:
            raise self.fault(f"one member is longer than {MAX_MEMBER_CHARS >> 20} Mi characters")
        chunk = self._stream.read(max(_CHUNK_BYTES, len(self._buffer) - self._at))
        self._read += len(chunk)
        if self._read > MAX_INFLATED_BYTES:
            raise self.fault(f"it holds more than {MAX_INFLATED_BYTES >> 30} GiB")
        self._ended = not chunk
        try:
            more = self._decode(chunk, not chunk)
        except UnicodeDecodeError as error:
            raise InputError(f"{self._source}: not UTF-8 text ({error.reason})") from None
        if not chunk:
            return False
        self._behind += self._at
        self._buffer = self._buffer[self._at :] + more
        self._at = 0
        self._progress(min(_position(self._stream, self._read), self._total), self._total, "reading")
        return True


def _position(stream: IO[bytes], otherwise: int) -> int:
    """How many bytes of the file itself were read, where the stream inflates them."""
    inner = getattr(getattr(stream, "raw", None), "fileobj", None)
    return int(inner.tell()) if inner is not None else otherwise
