"""`fleetgate top`: what the gate does, live on the whole terminal.

`loop.py` is the loop. It takes a `GateView` of the state now and then, hands keys to the `Ui` (what is selected,
filtered, asked), lets `actions.py` do what a key wishes, and draws the lines of `layout.py` with `terminal.py`.
Everything but the loop and the terminal works without a terminal.
"""
