import os
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headatlas.interp.errors import InputError
from headatlas.interp.files import atomic_write, read_text

FUZZ = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def test_the_file_appears_at_the_end(tmp_path):
    target = tmp_path / "out.json"
    with atomic_write(target) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".json"
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    target = tmp_path / "out.json"
    target.write_text("old")

    def interrupted():
        with atomic_write(target) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_permissions_are_those_of_an_ordinary_file(tmp_path):
    ordinary, target = tmp_path / "a", tmp_path / "b"
    ordinary.write_text("")
    with atomic_write(target):
        pass
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)
    target.chmod(0o640)
    with atomic_write(target):
        pass
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    with atomic_write(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize(
    ("name", "part"),
    [("", "is a folder"), ("missing/out.csv", "does not exist"), ("a\0b", "not a file name")],
)
def test_targets_that_cannot_be_written(tmp_path, name, part):
    with pytest.raises(InputError, match=part), atomic_write(f"{tmp_path}/{name}"):
        pytest.fail("the block must not run")
    assert list(tmp_path.iterdir()) == []


def test_a_name_too_long_for_the_file_system(tmp_path):
    with pytest.raises(InputError, match="cannot write"), atomic_write(tmp_path / ("x" * 300)):
        pytest.fail("the block must not run")


def test_read_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfcaf\xc3\xa9\r\nb\rc\n")
    assert read_text(path) == "café\nb\nc\n"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"ab\x00c", "byte 2 is zero"),
        (b"abc\xff", "byte 3 is 0xff"),
        ("text".encode("utf-16"), "UTF-16"),
    ],
)
def test_files_that_are_no_text(tmp_path, content, part):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=part):
        read_text(path)


def test_paths_that_are_no_text_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, part in [
        (tmp_path, "is a folder"),
        (tmp_path / "none", "no file"),
        (tmp_path / "pipe", "not a regular file"),
        ("a\0b", "cannot read|no file"),
        ("x" * 5000, "cannot read|no file"),
    ]:
        with pytest.raises(InputError, match=part):
            read_text(path)


@FUZZ
@given(
    content=st.binary(max_size=80) | st.text(max_size=40).map(lambda t: t.encode("utf-8", "ignore"))
)
def test_any_bytes_give_text_or_a_one_line_error(tmp_path, content):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    try:
        text, message = read_text(path), ""
    except InputError as error:
        text, message = "x", str(error)
    assert "\n" not in message
    assert text.strip()
    assert not set("\r\0") & set(text)
