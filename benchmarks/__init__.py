"""Timings, apart from the tests: `make bench`."""
