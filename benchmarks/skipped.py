"""A benchmark that cannot run here says so, and how it could."""


class BenchmarkSkipped(Exception):
    """Its message names what is missing and how to install it."""
