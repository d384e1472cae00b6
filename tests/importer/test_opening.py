"""Files of others are opened safely: plain or gzip, text that is text, nothing that could run code."""

import gzip
import io
import os
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.importer.opening import open_bytes, read_text
from tests.effort import tries

SETTINGS = settings(
    max_examples=tries(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def put(folder: Path, content: bytes, name: str = "a.json") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def one_line(error: pytest.ExceptionInfo[InputError], path: Path) -> None:
    assert str(path) in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@SETTINGS
@given(text=st.text(st.characters(exclude_categories=["Cs"])), zipped=st.booleans())
def test_text_comes_back_plain_or_zipped_whatever_the_file_is_called(
    text: str, zipped: bool, tmp_path: Path
) -> None:
    if text.startswith(("\ufeff", "PK\x03\x04")):
        return
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        content = text.encode(encoding)
        path = put(tmp_path, gzip.compress(content) if zipped else content, "a.txt")
        assert read_text(path) == text


@SETTINGS
@given(content=st.binary(min_size=1, max_size=200))
def test_any_bytes_are_text_or_an_error_of_one_line(content: bytes, tmp_path: Path) -> None:
    path = put(tmp_path, content)
    told = ""
    try:
        read_text(path)
    except InputError as error:
        told = str(error)
    assert told == "" or (str(path) in told and len(told.splitlines()) == 1)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_are_never_read(protocol: int, tmp_path: Path) -> None:
    path = put(tmp_path, pickle.dumps({"entries": []}, protocol))
    with pytest.raises(InputError, match="a pickle, which could run code") as error:
        read_text(path)
    one_line(error, path)


def test_zips_are_refused(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("data.pkl", b"")
    path = put(tmp_path, made.getvalue())
    with pytest.raises(InputError, match="a zip archive") as error:
        read_text(path)
    one_line(error, path)


def test_a_zipped_pickle_is_refused_too(tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(pickle.dumps({})))
    with pytest.raises(InputError, match="a pickle"):
        read_text(path)


@pytest.mark.parametrize("cut", [3, 9, 15, 40, -9, -1])
def test_a_damaged_gzip_is_an_error(cut: int, tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(os.urandom(100))[:cut], "a.gz")
    with pytest.raises(InputError, match="damaged gzip") as error:
        read_text(path)
    one_line(error, path)


def test_a_gzip_whose_content_was_changed_is_an_error(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b"x" * 1000 + os.urandom(50).hex().encode()))
    for place in range(12, len(content) - 8, 3):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path = put(tmp_path, bytes(changed), "a.gz")
        with pytest.raises(InputError):
            read_text(path)


def test_more_than_allowed_is_an_error_before_it_is_held(tmp_path: Path) -> None:
    bomb = put(tmp_path, gzip.compress(b"0" * 5_000_000), "a.gz")
    assert bomb.stat().st_size < 10_000
    with pytest.raises(InputError, match="holds more than 1 MiB"):
        read_text(bomb, 1 << 20)
    assert len(read_text(bomb, 5_000_000)) == 5_000_000


@pytest.mark.parametrize("content", [b"\xff\xfeabc", b"caf\xe9", b"\xef\xbb\xbf\xff", b"\xff\xfe\x00\xd8"])
def test_bytes_that_are_no_text_are_an_error(content: bytes, tmp_path: Path) -> None:
    path = put(tmp_path, content)
    with pytest.raises(InputError, match=r"not UTF-(8|16) text") as error:
        read_text(path)
    one_line(error, path)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    for path, why in ((tmp_path, "a directory"), (tmp_path / "none", "no such file")):
        with pytest.raises(InputError, match=why) as error, open_bytes(path):
            pass
        one_line(error, path)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="give a file"), open_bytes(pipe):
        pass


def test_errors_of_the_reader_itself_are_not_taken_for_the_files(tmp_path: Path) -> None:
    with pytest.raises(KeyError), open_bytes(put(tmp_path, b"{}")):
        raise KeyError("mine")
