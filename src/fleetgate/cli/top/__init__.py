"""`fleetgate top`: what the gate does, live on the whole terminal.

`live.py` is the loop. It takes a `Snapshot` of the state now and then, hands keys to the `Ui` (what is selected,
filtered, asked), lets `actions.py` do what a key wishes, and draws the lines of `frame.py` with `display.py`.
Everything but the loop and the display works without a terminal.
"""
