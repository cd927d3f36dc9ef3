from __future__ import annotations

import pytest

from transcript_backends.prices import PRICES, dollars, price_list


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("s3://bucket/a/b", "s3"),
        ("s3://bucket", "s3"),
        ("s3://data--use1-az4--x-s3/prefix", "s3-express"),
        ("s3://bucket/data--x-s3", "s3"),
        ("gs://bucket/prefix", "gcs"),
        ("az://container@account/prefix", "azure"),
        ("file:///var/lib/transcripts", None),
        ("memory://m", None),
        ("fsspec+s3://bucket", None),
    ],
)
def test_a_stores_location_tells_whose_prices_count(location, name):
    assert price_list(location) == name


def test_requests_are_priced_by_the_million_and_bytes_by_the_binary_gigabyte():
    s3, express = PRICES["s3"], PRICES["s3-express"]
    assert s3.requests(puts=1_000_000) == s3.requests(lists=1_000_000) == 5
    assert s3.requests(gets=1_000_000, bytes_up=2**40, bytes_down=2**40) == pytest.approx(0.4)
    assert s3.storage(2**30) == 0.023
    # The worked example of the S3 FAQ: 10 KB requests, a million PUTs and nine million GETs, 10 GB for a month.
    up, down = 1_000_000 * 10 * 1024, 9_000_000 * 10 * 1024
    assert express.requests(puts=1_000_000) == pytest.approx(1.13)
    assert express.requests(gets=9_000_000) == pytest.approx(0.27)
    assert express.requests(bytes_up=up) == pytest.approx(0.03, abs=0.005)
    assert express.requests(bytes_down=down) == pytest.approx(0.05, abs=0.005)
    assert express.storage(10 * 2**30) == pytest.approx(1.10)


@pytest.mark.parametrize("name", PRICES)
def test_a_write_costs_about_what_a_listing_does_and_ten_times_a_read_or_more(name):
    prices = PRICES[name]
    assert prices.put == prices.list
    assert prices.put > 10 * prices.get > 0
    assert prices.title
    assert len(prices.as_of) == len("2026-07")


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0"),
        (0.00014, "$0.00014"),
        (0.0000058, "$0.0000058"),
        (0.5, "$0.50"),
        (1, "$1.00"),
        (1234.567, "$1,234.57"),
        (9.999, "$10.00"),
    ],
)
def test_dollars_have_cents_and_at_least_two_digits(amount, text):
    assert dollars(amount) == text
