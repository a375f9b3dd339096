"""The log in a PostgreSQL database: for fleets on many machines, with no server of ours to keep alive.

- `url.py`: what a store's URL says, and how it is shown (never with its password).
- `connection.py`: one connection: a round trip, what may go wrong with it, connecting again.
- `session.py`: the connection to a namespace, with the transaction that is open on it.
- `migrations.py`: the tables, their versions, the rule for changing them.
- `log.py`, `upkeep.py`: the log itself, and its snapshots and pruning.
- `listener.py`: notices from other machines.
- `copy_store.py`: the move of a gate into a database.
"""

from __future__ import annotations

from fleetgate.log.postgres.log import PostgresLog
from fleetgate.log.postgres.url import Address

__all__ = ["Address", "PostgresLog"]
