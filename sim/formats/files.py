"""Files: read whole, written whole or not at all; what is neither a file nor, to read, a pipe is refused."""

import codecs
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from sim.errors import InputError, MachineError

MAX_FILE_BYTES = 512 << 20


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """All that is in a file, or comes through a pipe that somebody writes to, without a byte order mark.

    Raises:
        InputError: it is neither, cannot be read, or holds more than 512 MiB.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"path: {path!r:.60} is not legal; give the path of a file")
    file = Path(path)
    if "\0" in str(file):
        raise InputError(f"{str(file)!r}: cannot be read: no file has such a name")
    with _told(file, "cannot be read"):
        if not (file.is_file() or file.is_fifo()) and file.stat():
            raise InputError(f"{file}: cannot be read: it is no file; give a file or a pipe")
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # waits for no writer of a pipe
        with os.fdopen(handle, "rb") as stream:
            os.set_blocking(handle, True)  # but for what a writer has yet to say
            content = stream.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{file}: holds more than {MAX_FILE_BYTES} bytes, the most that are read")
    return content.removeprefix(codecs.BOM_UTF8)


def write_atomically(path: str | os.PathLike[str], text: str, option: str = "") -> None:
    """Write ``text`` to ``path`` as UTF-8; ``option`` is what errors call it, such as ``--output``.

    A file is replaced whole or not at all (temporary file beside it, fsync, rename), where its links lead.

    Raises:
        InputError: it cannot be written, or is no file.
    """
    write_files({Path(path): text}, option)


def write_files(texts: Mapping[Path, str], option: str = "") -> None:
    """Write several files: each is on the disk, beside its place, before the first takes its place.

    Raises:
        InputError: as ``write_atomically``; none of them is written.
    """
    staged: dict[Path, Path] = {}
    written: list[Path] = []
    try:
        for path, text in texts.items():
            real = check_writable(path, option)
            fresh = real.with_name(f".{real.name[:40]}.{secrets.token_hex(6)}")
            staged[fresh] = real
            with _told(path, "cannot be written", option), open(fresh, "x", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
                if real.exists():
                    shutil.copymode(real, fresh)
        for fresh, real in staged.items():
            with _told(real, "cannot be written", option):
                os.replace(fresh, real)
            written.append(real)
    except BaseException:  # an interrupt too
        for path in (*staged, *written):
            with suppress(OSError):
                path.unlink()
        raise


def write_measured(texts: Mapping[Path, str], option: str = "") -> None:
    """``write_files`` of what cannot be had again: where it fails, a temporary directory keeps the texts.

    Raises:
        InputError: as ``write_files``; it says where they are kept.
    """
    try:
        write_files(texts, option)
    except InputError as error:
        try:
            folder = Path(tempfile.mkdtemp(prefix="bucketsim-kept-"))
            write_files({folder / path.name: text for path, text in texts.items()})
        except (OSError, InputError) as lost:
            raise InputError(f"{error}; what was measured is lost ({lost})") from None
        raise InputError(f"{error}; what was measured is kept in {folder}") from None


def check_writable(path: str | os.PathLike[str], option: str = "") -> Path:
    """The file that ``path`` leads to, there or not.

    Raises:
        InputError: it cannot be written: asked before a long measurement, not after.
    """
    with _told(Path(path), "cannot be written", option):
        real = Path(os.path.realpath(path, strict=os.path.exists(path)))
        if _is_there(path) and not real.is_file():
            raise InputError(f"{_words(path, option)}: cannot be written: it is no file; give a file")
        for each in (real, real.parent) if real.exists() else (real.parent,):
            _check_access(each)
    return real


def check_directory(path: str | os.PathLike[str], option: str = "") -> Path:
    """The directory that ``path`` leads to, there or not.

    Raises:
        InputError: something else is there, it cannot be made, or it takes no files.
    """
    with _told(Path(path), "cannot be made", option):
        if _is_there(path) and not os.path.isdir(path):
            raise InputError(f"{_words(path, option)}: cannot be made: it is no directory; give a directory")
        real = there = Path(os.path.realpath(path))
        while not there.exists():
            there = there.parent
        _check_access(there / ".")
    return real


def make_directory(path: str | os.PathLike[str], option: str = "") -> Path:
    """Make a directory where it is not there yet, where its links lead; returns ``path``.

    Raises:
        InputError: as ``check_directory``.
    """
    real = check_directory(path, option)
    with _told(Path(path), "cannot be made", option):
        real.mkdir(parents=True, exist_ok=True)
    return Path(path)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A temporary directory, gone with the context.

    Raises:
        MachineError: there is no room for one, or no right to make it.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="bucketsim-")
    except OSError as error:
        raise MachineError(
            f"no temporary directory can be made: {error.strerror or error}; make room, or name another "
            f"place in TMPDIR"
        ) from None
    with folder as name:
        yield Path(name)


def _is_there(path: str | os.PathLike[str]) -> bool:
    """Whether something is where ``path`` leads. Raises ``OSError`` where its links lead in a circle."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def _check_access(path: Path) -> None:
    os.stat(path)
    if not os.access(path, os.W_OK):
        raise PermissionError("Permission denied")


@contextmanager
def _told(path: Path, what: str, option: str = "") -> Iterator[None]:
    """Faults of the machine as one line with the option, the path and, of a folder, what is legal."""
    try:
        yield
    except OSError as error:
        is_folder = isinstance(error, FileNotFoundError | NotADirectoryError) and what != "cannot be read"
        legal = "; give one in a directory that exists" if is_folder else ""
        raise InputError(f"{_words(path, option)}: {what}: {error.strerror or error}{legal}") from None


def _words(path: str | os.PathLike[str], option: str) -> str:
    return f"{option}: {path}" if option else str(path)
