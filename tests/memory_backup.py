"""A store in memory that can be backed up and restored under running processes, as a database can."""

from __future__ import annotations

from fleetgate.log.memory import MemoryStore


class RestorableStore(MemoryStore):
    def backup(self) -> RestorableStore:
        """A copy of the contents as they are now."""
        copy = RestorableStore(self.clock)
        copy.restore(self)
        return copy

    def restore(self, other: MemoryStore) -> None:
        with other.mutex:
            contents = other.first, list(other.rows), other.bytes, list(other.snapshots)
            tables = {name: dict(table) for name, table in other.tables.items()}
        with self.mutex:
            self.first, self.rows, self.bytes, self.snapshots = contents
            self.tables = tables
