"""The one place that writes outputs: whole or not at all, and nothing that is there becomes something else.

A file is made or replaced where all symbolic links lead, atomically. Whatever else is there is refused: a
directory, a device, a pipe, a socket, and the file that stdout or stderr goes to, which would be cut off.
"""

import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sim.errors import InputError

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFREG: "a file",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What is at ``real``, where the links of ``given`` lead."""

    given: Path
    real: Path
    found: os.stat_result | None


def write_atomically(path: str | os.PathLike[str], text: str, option: str = "") -> None:
    """Write ``text`` to ``path`` as UTF-8; ``option`` is what errors call it, such as ``--output``.

    A file is replaced whole or not at all (temporary file beside it, fsync, rename), keeping its rights.

    Raises:
        InputError: it cannot be written, or is no file.
    """
    write_files({Path(path): text}, option)


def write_measured(texts: Mapping[Path, str], option: str = "") -> None:
    """``write_files`` of what cannot be had again: where it fails, a temporary directory keeps the texts.

    Raises:
        InputError: as ``write_files``; it says where they are kept.
    """
    try:
        write_files(texts, option)
    except InputError as error:
        raise InputError(f"{error}; {_keep_elsewhere(texts)}") from None


def write_files(texts: Mapping[Path, str], option: str = "") -> None:
    """Write several files, the last of ``texts`` last: all, or where one fails none of them.

    Raises:
        InputError: as ``write_atomically``.
    """
    contents = {path: text.encode() for path, text in texts.items()}  # before anything is touched
    staged: list[tuple[_Target, Path]] = []
    written: list[Path] = []
    try:
        for path, content in contents.items():
            with _told(path, "cannot be written", option):
                target = _target(path, option)
                fresh = target.real.with_name(f".{target.real.name[:40]}.{secrets.token_hex(6)}")
                staged.append((target, fresh))
                _stage(target, fresh, content)
        for target, fresh in staged:
            with _told(target.given, "cannot be written", option):
                os.replace(fresh, target.real)
            written.append(target.real)
    except BaseException:  # an interrupt too
        for path in (*(fresh for _, fresh in staged), *written):
            with suppress(OSError):  # not there, or its folder is none
                path.unlink()
        raise


def check_writable(path: str | os.PathLike[str], option: str = "") -> None:
    """Raise ``InputError`` where ``path`` cannot be written: before a long measurement, not after."""
    with _told(Path(path), "cannot be written", option):
        target = _target(Path(path), option)
        if not target.real.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        _check_access(target.real.parent)


def make_directory(path: str | os.PathLike[str], option: str = "") -> Path:
    """Make a directory where it is not there yet, where its links lead; returns ``path``.

    Raises:
        InputError: something else is there, or it cannot be made.
    """
    with _told(Path(path), "cannot be made", option):
        directory_behind(path, option).mkdir(parents=True, exist_ok=True)
    return Path(path)


def directory_behind(path: str | os.PathLike[str], option: str = "") -> Path:
    """Where the links of a directory lead, whether it is there or not.

    Raises:
        InputError: something else is there. OSError: its links lead in a circle, or it cannot be reached.
    """
    found = _look(Path(path))
    if found is not None and not stat.S_ISDIR(found.st_mode):
        raise InputError(
            f"{_words(Path(path), option)}: cannot be made: it is {kind_of(found)}; give a directory"
        )
    return Path(os.path.realpath(path))


def check_directory(path: str | os.PathLike[str], option: str = "") -> None:
    """Raise ``InputError`` where ``path`` is no directory and cannot become one, or takes no files."""
    with _told(Path(path), "cannot be made", option):
        there = directory_behind(path, option)
        while not there.exists():
            there = there.parent
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        _check_access(there)


def remove(path: Path) -> None:
    """Take away a file that was written here, or the link to one; anything else that is there stays."""
    with _told(path, "cannot be removed", ""):
        if path.is_symlink() or path.is_file():
            path.unlink(missing_ok=True)


def _keep_elsewhere(texts: Mapping[Path, str]) -> str:
    """Where the texts are now, in words."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="bucketsim-kept-"))
    except OSError as error:
        return f"what was measured is lost, as there is no temporary directory either ({error})"
    try:
        write_files({folder / path.name: text for path, text in texts.items()})
    except InputError as error:
        folder.rmdir()
        return f"what was measured is lost ({error})"
    return f"what was measured is kept in {folder}"


def _look(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _target(path: Path, option: str) -> _Target:
    found = _look(path)
    real = Path(os.path.realpath(path))
    if found is None:
        return _Target(given=path, real=real, found=None)
    kind = "where stdout or stderr goes" if _is_standard(found) else kind_of(found)
    if kind != "a file":
        raise InputError(f"{_words(path, option)}: cannot be written: it is {kind}; give a file")
    _check_access(real)  # a rename asks the directory only
    return _Target(given=path, real=real, found=found)


def _check_access(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _is_standard(found: os.stat_result) -> bool:
    """Whether stdout or stderr goes to this file: to replace it would cut off what is said there."""
    for descriptor in (1, 2):
        with suppress(OSError):  # a closed one is no file
            if os.path.samestat(os.fstat(descriptor), found):
                return True
    return False


def _stage(target: _Target, fresh: Path, content: bytes) -> None:
    """The content beside its target, on the disk, with the rights of what it will replace."""
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content)
        stream.flush()
        if target.found is not None:
            os.fchmod(stream.fileno(), stat.S_IMODE(target.found.st_mode))
            with suppress(PermissionError):  # only root gives files away; otherwise it is the writer's
                os.fchown(stream.fileno(), target.found.st_uid, target.found.st_gid)
        os.fsync(stream.fileno())


@contextmanager
def _told(path: Path, what: str, option: str) -> Iterator[None]:
    """Faults of the machine as one line with the option, the path and, of a folder, what is legal."""
    try:
        yield
    except OSError as error:
        legal = (
            "; give one in a directory that exists" if error.errno in (errno.ENOENT, errno.ENOTDIR) else ""
        )
        raise InputError(f"{_words(path, option)}: {what}: {error.strerror or error}{legal}") from None


def _words(path: Path, option: str) -> str:
    return f"{option}: {path}" if option else str(path)


def kind_of(found: os.stat_result) -> str:
    """What is there, in words."""
    return _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
