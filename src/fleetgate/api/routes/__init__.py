"""Routes that read and change the gate, health checks, and the dashboard's files."""
