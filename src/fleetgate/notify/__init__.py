"""Notifications (rule T1): a reader of the log, with its own position in it, that holds up no other process.

messages.py      which events become messages, and which of them are one incident
senders.py       webhook, Apprise and command
targets.py       one target: its position in the log, its limit per hour, its retries
delivery.py      all targets, one process at a time
config_watch.py  the targets that the config file names now
"""
