"""Estimates of what calls and runs will use, learned from what others like them used (rule V2).

A call's input is estimated from the size of its body, by the tokens per byte that the model's calls had so far. Its
output is a high quantile of what calls of this model and project produced, and never more than the request allows. The
most that a call can use is one token for each byte of its body, and all of the output that it allows. A run is
estimated by the median of the last runs of its project and model.
"""

from __future__ import annotations

from typing import Final

from fleetgate.core.usage import ESTIMATE, Size, Usage

FIRST_OUTPUT: Final = 1_024  # tokens of a call, before anything is known
MOST_OUTPUT: Final = 32_768  # tokens that a call is taken to allow that does not say
_LARGEST: Final = 1 << 40  # a size above this is not believed
_OUTPUTS: Final = 20  # calls that are remembered for each project and model
_RUNS: Final = 15
_MOST_KEYS: Final = 512  # projects and models that are remembered
_HALF_BYTES: Final = 4 << 20  # once this many bytes were counted, old calls weigh half
_PRICE_PARTS: Final = 1_000_000  # of a price in a millionth of a dollar


Ratio = tuple[int, int, int]  # bytes of a model's calls, and the tokens they became: fresh, and read from a cache
FIRST_RATIO: Final = (4_096, 1_024, 0)  # four bytes for a token


class Estimates:
    """What was learned so far."""

    __slots__ = ("outputs", "ratios", "runs")

    def __init__(self) -> None:
        self.ratios: dict[str, Ratio] = {}  # by model
        self.outputs: dict[str, list[int]] = {}  # by project and model: tokens of the last calls
        self.runs: dict[str, list[Usage]] = {}  # by project and model: the last runs

    def of_call(self, size: Size, model: str, project: str) -> Usage:
        """What a call is expected to use."""
        bytes_seen, fresh_seen, cached_seen = self.ratios.get(model, FIRST_RATIO)
        body_bytes = min(max(size.body_bytes, 0), _LARGEST)
        fresh = -(-body_bytes * fresh_seen // bytes_seen)
        cached = body_bytes * cached_seen // bytes_seen
        output = _high(self.outputs.get(f"{project} {model}", [FIRST_OUTPUT]))
        if size.max_tokens > 0:
            output = min(output, size.max_tokens)
        cost = fresh * size.input_price + cached * size.cache_read_price + output * size.output_price
        return Usage(1, fresh, cached, 0, output, _money(cost, size), ESTIMATE)

    def most_of_call(self, size: Size) -> Usage:
        """The most that a call can use, if all that it sends is in its body."""
        body_bytes = min(max(size.body_bytes, 0), _LARGEST)
        output = min(size.max_tokens, _LARGEST) if size.max_tokens > 0 else MOST_OUTPUT
        cost = body_bytes * max(size.input_price, size.cache_write_price) + output * size.output_price
        return Usage(1, body_bytes, 0, 0, output, _money(cost, size), ESTIMATE)

    def of_run(self, model: str, project: str) -> Usage | None:
        """What a run is expected to use; None: no run like it was seen."""
        runs = self.runs.get(f"{project} {model}")
        if not runs:
            return None
        costs = [run.cost for run in runs if run.cost is not None]
        return Usage(
            _median([run.calls for run in runs]),
            _median([run.input for run in runs]),
            _median([run.cache_read for run in runs]),
            _median([run.cache_write for run in runs]),
            _median([run.output for run in runs]),
            _median(costs) if costs else None,
            ESTIMATE,
        )

    def learn_call(self, model: str, project: str, body_bytes: int, usage: Usage) -> None:
        bytes_seen, fresh, cached = self.ratios.pop(model, FIRST_RATIO)
        bytes_seen += body_bytes
        fresh += usage.input + usage.cache_write
        cached += usage.cache_read
        if bytes_seen > _HALF_BYTES:
            bytes_seen, fresh, cached = bytes_seen // 2, fresh // 2, cached // 2
        self.ratios[model] = (bytes_seen, fresh, cached)
        if len(self.ratios) > _MOST_KEYS:
            del self.ratios[next(iter(self.ratios))]
        key = f"{project} {model}"
        outputs = self.outputs.pop(key, [])
        outputs.append(usage.output)
        self.outputs[key] = outputs[-_OUTPUTS:]
        if len(self.outputs) > _MOST_KEYS:
            del self.outputs[next(iter(self.outputs))]

    def learn_run(self, model: str, project: str, usage: Usage) -> None:
        key = f"{project} {model}"
        runs = self.runs.pop(key, [])
        runs.append(usage)
        self.runs[key] = runs[-_RUNS:]
        if len(self.runs) > _MOST_KEYS:
            del self.runs[next(iter(self.runs))]


def _high(values: list[int]) -> int:
    """A value that nine of ten do not exceed."""
    return sorted(values)[(len(values) - 1) * 9 // 10]


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def _money(cost: int, size: Size) -> int | None:
    """Parts of a price as millionths of a dollar, rounded up; None where no price is known."""
    if not (size.input_price or size.output_price):
        return None
    return -(-cost // _PRICE_PARTS)
