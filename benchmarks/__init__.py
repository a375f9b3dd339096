"""Measurements: `make bench`, or `make bench engine wake` for some of them. Never part of the tests.

Every figure stands beside a baseline taken in the same run, since these machines are noisy: compare the ratios.
docs/benchmarks.md keeps the figures with the command that gives them.
"""
