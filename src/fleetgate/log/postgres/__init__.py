"""The log in a PostgreSQL database: for fleets on many machines, with no server of ours to keep alive.

- `address.py`: what a store's URL says, and how it is shown (never with its password).
- `link.py`: one connection: a round trip, what may go wrong with it, connecting again.
- `schema.py`: the tables, their versions, the rule for changing them.
- `log.py`: the log itself.
- `listener.py`: being woken by those on other machines.
- `copying.py`: moving a gate into a database.
"""

from __future__ import annotations

from fleetgate.log.postgres.log import PostgresLog
from fleetgate.log.postgres.url import Address

__all__ = ["Address", "PostgresLog"]
