"""The state as other layers read it: pools, leases, reasons for waiting, and explanations of limits."""
