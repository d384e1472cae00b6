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
from sim.importer.opening import read_text
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


def test_a_gzip_whose_content_was_changed_is_an_error(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(b"x" * 1000 + os.urandom(50).hex().encode()))
    for place in range(12, len(content) - 8, 3):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path = put(tmp_path, bytes(changed), "a.gz")
        with pytest.raises(InputError):
            read_text(path)
