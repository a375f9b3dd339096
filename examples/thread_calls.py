"""Twenty model calls in threads, at most four at a time. A refusal is reported, so that every program slows down."""

from concurrent.futures import ThreadPoolExecutor

import fleetgate

with fleetgate.sync.open_gate() as gate:
    gate.set_cap("umans", 4, cooldown_s=0)

    def call(number: int) -> str:
        with gate.lease("umans/coder", project="web") as lease:
            if number == 7:  # pretend that the provider refused this one
                lease.report(fleetgate.RateLimited(retry_after_s=0.1))
                return "refused"
            return "answered"

    with ThreadPoolExecutor(20) as threads:
        outcomes = list(threads.map(call, range(20)))
    print(outcomes.count("answered"), "answered,", outcomes.count("refused"), "refused")
