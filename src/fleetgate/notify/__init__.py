"""Telling people (SPEC T1): a reader of the log, with its own place in it, that is in nobody's way.

messages.py  which events are told, as what, and which of them are one incident
senders.py   by webhook, Apprise or a command
targets.py   one target: its place in the log, its limit per hour, its retries
telling.py   all of them, one process at a time
"""
