"""One suite per port. A subclass says how to make an implementation; pytest runs every sentence of the port against it.

::

    class TestMyStore(StoreContract):
        def store(self, tmp_path):
            return MyStore(tmp_path)
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..errors import AlreadyExists, NotFound
from ..spec.ports import Buffer, Store

_Error = TypeVar("_Error", bound=BaseException)

_DEADLINE_S = 60.0
"""How long a test waits for its threads before it fails."""

_MALFORMED = ("", "/", "/a", "a/", "a//b", ".", "..", "./a", "../a", "a/./b", "a/../b", "a/..", "a\0b")


class StoreContract:
    """The `Store` port, sentence by sentence. The store handed out must be empty, and a new one at each call."""

    def store(self, tmp_path: Path) -> Store:
        """Make an empty store, below `tmp_path` if it needs files."""
        raise NotImplementedError("a subclass says which store is tested")

    def test_an_object_reads_back_as_the_chunks_in_order(self, tmp_path: Path) -> None:
        """The chunks are joined in their order; bytes, bytearrays and memoryviews may be mixed."""
        store = self.store(tmp_path)
        store.create("a", [b"one ", bytearray(b"two "), memoryview(b"__three__")[2:7], b"", b" four"])
        assert store.read("a") == b"one two three four"
        assert store.size("a") == 18

    def test_chunks_are_consumed_once_in_order(self, tmp_path: Path) -> None:
        """A generator does as chunks: each is asked for once, one after the other."""
        store, given = self.store(tmp_path), []

        def chunks() -> Iterator[Buffer]:
            for number in range(5):
                given.append(number)
                yield bytes([number])

        store.create("a", chunks())
        assert given == [0, 1, 2, 3, 4]
        assert store.read("a") == bytes([0, 1, 2, 3, 4])

    def test_views_of_wider_elements_are_stored_as_bytes(self, tmp_path: Path) -> None:
        """A contiguous memoryview counts by its bytes, whatever its element format; it may be empty."""
        store, numbers = self.store(tmp_path), memoryview(bytes(range(16))).cast("I")
        store.create("a", [numbers, numbers[:0], numbers[1:2]])
        assert store.read("a") == bytes(range(16)) + bytes(range(4, 8))

    def test_an_object_may_be_empty(self, tmp_path: Path) -> None:
        """No chunks, or empty ones, make an object of no bytes, which exists."""
        store = self.store(tmp_path)
        store.create("none", [])
        store.create("empty", [b""])
        assert [store.read("none"), store.read("empty")] == [b"", b""]
        assert [store.size("none"), store.size("empty")] == [0, 0]
        assert store.read_into("none", 0, memoryview(bytearray(4))) == 0
        assert store.list("") == ["empty", "none"]

    def test_a_large_object_survives_whole(self, tmp_path: Path) -> None:
        """Five megabytes in uneven chunks come back unchanged."""
        store = self.store(tmp_path)
        content = bytes(range(256)) * (5 * 4096)
        view = memoryview(content)
        store.create("big", (view[at : at + 777_777] for at in range(0, len(content), 777_777)))
        assert store.size("big") == len(content)
        into = bytearray(len(content))
        assert store.read_into("big", 0, memoryview(into)) == len(content)
        assert into == content
        assert store.read("big") == content

    def test_names_may_be_deep(self, tmp_path: Path) -> None:
        """Folders in a name need no preparation."""
        store, name = self.store(tmp_path), "/".join("abcdefghijkl") + "/leaf.json"
        store.create(name, [b"deep"])
        assert store.read(name) == b"deep"
        assert store.list("") == [name]

    def test_create_refuses_a_taken_name_and_changes_nothing(self, tmp_path: Path) -> None:
        """Objects are written once: the second create raises AlreadyExists, and the first object stays as it is."""
        store = self.store(tmp_path)
        store.create("folder/a", [b"first"])
        error = _raised(AlreadyExists, lambda: store.create("folder/a", [b"second, longer"]))
        assert error.name == "folder/a"
        assert store.read("folder/a") == b"first"
        assert store.list("") == ["folder/a"]

    def test_of_many_racing_creates_exactly_one_wins(self, tmp_path: Path) -> None:
        """Eight threads create one name at once: one returns, seven raise AlreadyExists; the winner's bytes stay."""
        store, start = self.store(tmp_path), threading.Barrier(8)
        contents = [bytes([number]) * (1000 + number) for number in range(8)]
        winners: list[int] = []

        def chunks(number: int) -> Iterator[Buffer]:
            yield contents[number][:500]
            start.wait(_DEADLINE_S)  # all have begun to write before any can finish
            yield contents[number][500:]

        def race(number: int) -> None:
            try:
                store.create("new/folder/a", chunks(number))
            except AlreadyExists:
                return
            winners.append(number)

        _side_by_side(race, 8)
        assert len(winners) == 1
        assert store.read("new/folder/a") == contents[winners[0]]
        assert store.list("") == ["new/folder/a"]

    def test_threads_create_and_delete_side_by_side(self, tmp_path: Path) -> None:
        """Creating and deleting neighbours from several threads disturbs nobody."""
        store = self.store(tmp_path)

        def work(number: int) -> None:
            for turn in range(5):
                name = f"shared/folder/{number}-{turn}"
                store.create(name, [name.encode()])
                assert store.read(name) == name.encode()
                assert name in store.list("shared/")
                store.delete(name)

        _side_by_side(work, 4)
        assert store.list("") == []

    def test_an_object_is_invisible_until_complete(self, tmp_path: Path) -> None:
        """While the chunks are still coming, no method knows the name."""
        store, checks = self.store(tmp_path), []

        def chunks() -> Iterator[Buffer]:
            yield b"x" * 100_000
            assert "folder/a" not in store.list("")
            _raised(NotFound, lambda: store.read("folder/a"))
            _raised(NotFound, lambda: store.size("folder/a"))
            _raised(NotFound, lambda: _first_byte(store, "folder/a"))
            checks.append("all made")
            yield b"y"

        store.create("folder/a", chunks())
        assert checks == ["all made"]
        assert store.list("") == ["folder/a"]

    def test_failing_chunks_leave_nothing_under_the_name(self, tmp_path: Path) -> None:
        """An exception out of the chunks comes out of create unchanged, and the name stays free."""
        store = self.store(tmp_path)
        for failure in (OSError(5, "the source is broken"), KeyboardInterrupt(), NotFound("source", "is gone")):

            def chunks(failure: BaseException = failure) -> Iterator[Buffer]:
                yield b"half"
                raise failure

            assert _raised(type(failure), partial(store.create, "a", chunks())) is failure
            assert "a" not in store.list("")
            _raised(NotFound, lambda: store.read("a"))
        store.create("a", [b"whole"])
        assert store.read("a") == b"whole"

    def test_read_into_fills_from_any_offset(self, tmp_path: Path) -> None:
        """Any range is read, into a part of any memory; nothing beside that memory changes."""
        store = self.store(tmp_path)
        store.create("a", [bytes(range(100))])
        memory = bytearray(b"." * 12)
        assert store.read_into("a", 40, memoryview(memory)[1:11]) == 10
        assert memory == b"." + bytes(range(40, 50)) + b"."
        assert store.read_into("a", 0, memoryview(bytearray())) == 0

    def test_read_into_stops_at_the_end(self, tmp_path: Path) -> None:
        """At the object's end fewer bytes are read, past it none; memory that was not filled stays as it was."""
        store = self.store(tmp_path)
        store.create("a", [bytes(range(10))])
        memory = bytearray(b"." * 8)
        assert store.read_into("a", 7, memoryview(memory)) == 3
        assert memory == bytes([7, 8, 9]) + b"....."
        assert store.read_into("a", 10, memoryview(memory)) == 0
        assert store.read_into("a", 1000, memoryview(memory)) == 0
        assert memory == bytes([7, 8, 9]) + b"....."

    def test_read_into_fills_wider_elements(self, tmp_path: Path) -> None:
        """Memory counts by its bytes, whatever its element format."""
        store, memory = self.store(tmp_path), bytearray(16)
        store.create("a", [bytes(range(32))])
        assert store.read_into("a", 8, memoryview(memory).cast("Q")) == 16
        assert memory == bytes(range(8, 24))

    def test_reading_a_missing_object_says_which(self, tmp_path: Path) -> None:
        """read, read_into and size raise NotFound, which carries the name; so do names below or above an object."""
        store = self.store(tmp_path)
        store.create("folder/a", [b"here"])
        for name in ("missing", "missing/folder/b", "folder/b", "folder", "folder/a/b"):
            for read in (partial(store.read, name), partial(store.size, name), partial(_first_byte, store, name)):
                assert _raised(NotFound, read).name == name

    def test_list_is_sorted_and_takes_any_prefix(self, tmp_path: Path) -> None:
        """A prefix is plain text: it may end inside a name, at a slash, or be a whole name."""
        store = self.store(tmp_path)
        names = ["b", "ab/1", "a/2/deep", "a/1", "abc", "a/10", "c.json"]
        for name in names:
            store.create(name, [b""])
        everything = ["a/1", "a/10", "a/2/deep", "ab/1", "abc", "b", "c.json"]
        assert store.list("") == everything
        assert store.list("", shallow=True) == ["a/", "ab/", "abc", "b", "c.json"]
        assert store.list("a/", shallow=True) == ["a/1", "a/10", "a/2/"]
        for prefix in ("a", "a/", "a/1", "ab", "a/2", "a/2/", "a/2/d", "b", "c.", "a/2/deep", "z", "b/", "z/z", "a//"):
            assert store.list(prefix) == [name for name in everything if name.startswith(prefix)], prefix

    def test_list_never_leaves_the_store(self, tmp_path: Path) -> None:
        """A prefix that no name can have finds nothing, and is no error."""
        store = self.store(tmp_path)
        store.create("a/b", [b""])
        for prefix in ("/", "../", "a/../", "./", "a/./", "..", "/etc/"):
            assert store.list(prefix) == [], prefix

    def test_an_empty_store_lists_nothing(self, tmp_path: Path) -> None:
        """Before the first create there is nothing, which is no error."""
        store = self.store(tmp_path)
        assert store.list("") == []
        assert store.list("a/") == []

    def test_delete_removes_and_frees_the_name(self, tmp_path: Path) -> None:
        """A deleted object is gone for every method, its neighbour stays, and the name can be used again."""
        store = self.store(tmp_path)
        store.create("folder/a", [b"old"])
        store.create("folder/b", [b"neighbour"])
        store.delete("folder/a")
        assert store.list("") == ["folder/b"]
        _raised(NotFound, lambda: store.read("folder/a"))
        assert store.read("folder/b") == b"neighbour"
        store.create("folder/a", [b"new"])
        assert store.read("folder/a") == b"new"

    def test_deleting_a_missing_object_is_no_error(self, tmp_path: Path) -> None:
        """Delete twice, delete in an empty store, delete a folder's name, delete below an object: all are quiet."""
        store = self.store(tmp_path)
        store.delete("a")
        store.delete("folder/a")
        store.create("folder/a", [b"kept"])
        for name in ("folder/b", "folder", "folder/a/b", "other/a"):
            store.delete(name)
        assert store.read("folder/a") == b"kept"
        store.delete("folder/a")
        store.delete("folder/a")
        assert store.list("") == []

    def test_malformed_names_are_refused(self, tmp_path: Path) -> None:
        """No method takes a name that is empty, absolute, or has an empty, `.`, `..` component or a NUL."""
        store = self.store(tmp_path)
        for name in _MALFORMED:
            _raised(ValueError, partial(store.create, name, [b"x"]))
            _raised(ValueError, partial(store.read, name))
            _raised(ValueError, partial(_first_byte, store, name))
            _raised(ValueError, partial(store.size, name))
            _raised(ValueError, partial(store.delete, name))
        assert store.list("") == []

    def test_names_that_look_odd_are_fine(self, tmp_path: Path) -> None:
        """Dots, spaces, and letters beyond ASCII are ordinary."""
        store = self.store(tmp_path)
        names = sorted([".hidden", "a b", "a..b", "a.b-c_d+e=f", "été/ß.json"])
        for name in names:
            store.create(name, [name.encode()])
        assert store.list("") == names
        assert [store.read(name) for name in names] == [name.encode() for name in names]

    def test_the_url_is_text_for_people(self, tmp_path: Path) -> None:
        """`url` says where this is."""
        url = self.store(tmp_path).url
        assert isinstance(url, str)
        assert url


def _first_byte(store: Store, name: str) -> int:
    return store.read_into(name, 0, memoryview(bytearray(1)))


def _raised(kind: type[_Error], call: Callable[[], object]) -> _Error:
    """Call, and hand back the error of that kind that it raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"nothing was raised, where {kind.__name__} should have been")


def _side_by_side(work: Callable[[int], None], threads: int) -> None:
    """Run `work(0)`, `work(1)` … at once, and raise the first error that any of them raised."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - carried over to the test's own thread
            errors.append(error)

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(_DEADLINE_S)
    assert not any(thread.is_alive() for thread in running), f"some thread is not done after {_DEADLINE_S} s"
    if errors:
        raise errors[0]
