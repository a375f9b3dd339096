"""Counters, histograms and gauges, and how they are written: Prometheus' text format, version 0.0.4.

Prometheus' own library does the same. It takes 4 MB of memory, because it brings an HTTP server and a client along, and
counting with it costs more: its counters can be used by several threads.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from math import inf


class Count:
    """A counter, for one combination of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        self.value += amount


class Distribution:
    """A histogram, for one combination of labels."""

    __slots__ = ("_bounds", "_numbers", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._numbers = [0] * (len(bounds) + 1)  # those in each bucket that are in no smaller one
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._numbers[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self, name: str, labels: dict[str, str]) -> Iterator[str]:
        total = 0
        for bound, number in zip((*self._bounds, inf), self._numbers, strict=True):
            total += number
            yield _sample(f"{name}_bucket", {**labels, "le": "+Inf" if bound == inf else repr(bound)}, total)
        yield _sample(f"{name}_count", labels, total)
        yield _sample(f"{name}_sum", labels, self._sum)


class CounterFamily:
    """A counter with all its combinations of labels. One without labels begins at zero."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self._text = text
        self._labels = labels
        self._counts: dict[tuple[str, ...], Count] = {} if labels else {(): Count()}

    def labels(self, *values: str) -> Count:
        found = self._counts.get(values)
        if found is None:
            found = self._counts[values] = Count()
        return found

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, "counter", self._text)
        for values, count in self._counts.items():
            yield _sample(self.name, dict(zip(self._labels, values, strict=True)), count.value)


class HistogramFamily:
    """A histogram with all its combinations of labels. One without labels begins at zero."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        self.name = name
        self._text = text
        self._bounds = bounds
        self._labels = labels
        self._distributions: dict[tuple[str, ...], Distribution] = {} if labels else {(): Distribution(bounds)}

    def labels(self, *values: str) -> Distribution:
        found = self._distributions.get(values)
        if found is None:
            found = self._distributions[values] = Distribution(self._bounds)
        return found

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, "histogram", self._text)
        for values, each in self._distributions.items():
            yield from each.samples(self.name, dict(zip(self._labels, values, strict=True)))


def gauge_lines(
    name: str, text: str, labels: Sequence[str], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Iterator[str]:
    """A gauge, with its values by their labels."""
    yield from _head(name, "gauge", text)
    for values, number in samples:
        yield _sample(name, dict(zip(labels, values, strict=True)), number)


def process_lines() -> Iterator[str]:
    """The metrics of this process that Prometheus' own libraries have as well; none where there is no /proc."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/stat", encoding="ascii") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        files = len(os.listdir("/proc/self/fd"))
    except (OSError, ValueError, StopIteration):
        return
    import resource

    ticks = os.sysconf("SC_CLK_TCK")
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for name, kind, text, value in (
        ("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", int(fields[20])),
        (
            "process_resident_memory_bytes",
            "gauge",
            "Resident memory size in bytes.",
            int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        ),
        (
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
            booted + int(fields[19]) / ticks,
        ),
        (
            "process_cpu_seconds_total",
            "counter",
            "Total user and system CPU time spent in seconds.",
            (int(fields[11]) + int(fields[12])) / ticks,
        ),
        ("process_open_fds", "gauge", "Number of open file descriptors.", files),
        ("process_max_fds", "gauge", "Maximum number of open file descriptors.", most_files),
    ):
        yield from _head(name, kind, text)
        yield _sample(name, {}, value)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {_escaped(text)}\n"
    yield f"# TYPE {name} {kind}\n"


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    said = ",".join([f'{label}="{_quoted(text)}"' for label, text in sorted(labels.items())])
    return f"{name}{{{said}}} {float(value)!r}\n" if said else f"{name} {float(value)!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')
