"""Listings of directory trees that go on from page to page, beside one another."""

import threading
from datetime import datetime, timezone

import pytest

from transcript_backends.drivers import walks
from transcript_backends.drivers.driver import ObjectInfo
from transcript_backends.drivers.walks import Walks, walk

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Directory:
    """The names in one directory, and what happens right after they were read."""

    def __init__(self, count):
        self.names = [f"{number:03d}" for number in range(count)]
        self.read = 0

    def look_into(self, prefix):
        self.read += 1
        return list(self.names), lambda name: ObjectInfo(prefix + name, 1, NOW)

    def begin(self, prefix, after):
        return walk(self.look_into, prefix, after)


def names_on(page):
    return [each.key.removeprefix("d/") for each in page.objects]


@pytest.fixture(autouse=True)
def _short_pages(monkeypatch):
    monkeypatch.setattr(walks, "PAGE_SIZE", 3)


def test_a_listing_never_goes_on_in_the_older_walk_of_another():
    directory = Directory(8)
    listing = Walks(directory.begin)
    older = listing.page("d/", "", None, NOW)
    directory.names.append("late")
    younger = listing.page("d/", "d/002", None, NOW)
    listing.page("d/", "", older.token, NOW)
    assert names_on(younger) == ["003", "004", "005"]
    assert names_on(listing.page("d/", "d/002", younger.token, NOW)) == ["006", "007", "late"]


def test_a_thread_that_is_slow_with_its_page_hands_its_walk_to_nobody():
    directory = Directory(5)
    has_read, goes_on = threading.Event(), threading.Event()

    def slowly(prefix, after):
        for info in walk(directory.look_into, prefix, after):
            if threading.current_thread() is not threading.main_thread():
                has_read.set()
                assert goes_on.wait(10)
            yield info

    listing = Walks(slowly)
    thread = threading.Thread(target=listing.page, args=("d/", "", None, NOW))
    thread.start()
    assert has_read.wait(10)
    directory.names.append("late")
    page = listing.page("d/", "", None, NOW)
    goes_on.set()
    thread.join()
    assert names_on(listing.page("d/", "", page.token, NOW)) == ["003", "004", "late"]


def test_a_page_can_be_had_again_and_goes_on_after_its_key():
    directory = Directory(8)
    listing = Walks(directory.begin)
    token = listing.page("d/", "", None, NOW).token
    for _ in range(2):
        again = listing.page("d/", "", token, NOW)
        assert names_on(again) == ["003", "004", "005"]
        assert names_on(listing.page("d/", "", again.token, NOW)) == ["006", "007"]
    assert directory.read == 2


def test_listings_that_nobody_goes_on_with_do_not_pile_up():
    open_walks = set()

    def begin(prefix, after):
        open_walks.add(mine := object())
        try:
            yield from walk(Directory(8).look_into, prefix, after)
        finally:
            open_walks.discard(mine)

    listing = Walks(begin)
    tokens = [listing.page("d/", "", None, NOW).token for _ in range(50)]
    assert len(open_walks) <= 8
    assert {tuple(names_on(listing.page("d/", "", token, NOW))) for token in tokens} == {("003", "004", "005")}
    assert len(open_walks) <= 8
