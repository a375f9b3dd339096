"""The benchmarks: `make bench` runs all of them, `make bench engine wake` some. They are not part of the tests.

Every figure comes with a baseline of the same run, because machines are noisy: compare the ratios. docs/benchmarks.md
keeps the figures, each with the command that measures it.
"""
