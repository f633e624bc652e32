import contextlib
import errno
import os
import resource
import socket
import stat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headatlas.interp import files
from headatlas.interp.errors import InputError
from headatlas.interp.files import atomic_write, check_target, read_text
from tests.interp.interrupts import interrupt_at

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


def test_a_request_to_stop_at_any_line_leaves_no_temporary_file(tmp_path):
    target, event = tmp_path / "out.json", 0
    while True:
        event += 1
        target.write_text("old")
        stop = interrupt_at(event, files, "atomic_write")
        with (
            contextlib.suppress(KeyboardInterrupt),
            stop as seen,
            atomic_write(target) as temporary,
        ):
            temporary.write_text("new")
        assert [path.name for path in tmp_path.iterdir()] == ["out.json"], f"event {event}"
        assert target.read_text() in ("old", "new")
        if seen() < event:
            break
    assert event > 8
    assert target.read_text() == "new"


def test_what_is_half_written_is_private(tmp_path):
    with atomic_write(tmp_path / "out") as temporary:
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600


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


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link"])
def test_what_is_no_regular_file_is_refused_and_stays(tmp_path, kind):
    path = tmp_path / kind
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    elif kind == "device":
        path = "/dev/null"
    else:
        os.mkfifo(tmp_path / "pipe")
        if kind == "link":
            path.symlink_to("pipe")
    before = os.lstat(path)
    with pytest.raises(InputError, match="not a regular file"), atomic_write(path):
        pytest.fail("the block must not run")
    assert os.lstat(path).st_ino == before.st_ino
    assert os.lstat(path).st_mode == before.st_mode


@pytest.mark.parametrize("name", ["loop", "loop/out.json"])
def test_links_in_a_circle(tmp_path, name):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="cannot write"):
        check_target(tmp_path / name)


def test_a_link_to_nothing_yet_and_to_a_missing_folder(tmp_path):
    (tmp_path / "link").symlink_to("later")
    with atomic_write(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "later").read_text() == "new"
    (tmp_path / "lost").symlink_to("missing/later")
    with pytest.raises(InputError, match="missing' does not exist"):
        check_target(tmp_path / "lost")


def test_a_file_as_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="file' does not exist"):
        check_target(tmp_path / "file" / "out.json")


def test_a_disk_that_takes_no_more(tmp_path):
    target = tmp_path / "out.json"
    target.write_text("old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(InputError, match="File too large"), atomic_write(target) as temporary:
            temporary.write_bytes(b"x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("late", [False, True])
def test_a_disk_that_fails(tmp_path, monkeypatch, code, late):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    if late:  # only when the content must reach the disk
        monkeypatch.setattr(os, "fsync", fail)

    def write():
        with atomic_write(tmp_path / "out"):
            if not late:
                fail()

    with pytest.raises(InputError, match="cannot write"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_block_itself_passes(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "out"):
        (tmp_path / "input").read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_sync_is_let_off(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fail)
    with atomic_write(tmp_path / "out") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "out").read_text() == "new"


def test_a_text_too_large_to_read(tmp_path, monkeypatch):
    path = tmp_path / "large.txt"
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 2**20)
    path.write_bytes(b"a" * 2**20)
    assert len(read_text(path)) == 2**20
    path.write_bytes(b"a" * (2**20 + 1))
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_text(path)


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
