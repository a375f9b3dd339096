"""Fuzz the HTTP front with atheris, which is not part of any extra: `pip install atheris`.

    PYTHONPATH=src:. python tools/fuzz_front.py tests/front/corpus -max_total_time=3600

Inputs that find new paths are written into the first folder. An input that breaks a rule of
`tests/front/split_requests.py` ends the run and is written to a file named `crash-…`.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["fleetgate.front"]):
    from tests.front.split_requests import check


def main() -> None:
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
