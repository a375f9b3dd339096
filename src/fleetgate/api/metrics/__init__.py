"""Prometheus metrics, and the time series of the dashboard's charts."""
