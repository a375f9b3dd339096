"""One process under a lease: started, watched, signalled, accounted for.

| file | what it does |
| --- | --- |
| `child.py` | forks a child that waits for leave before it executes anything |
| `supervise.py` | stays with it until it ends: signals, stops, deadlines |
| `heard.py` | which signals came, and from whom |
| `terminal.py` | whose turn it is at the terminal |
| `tap.py` | passes piped output on, byte for byte, and shows it on the way |
| `ending.py` | when an agent that hangs is to be ended |

All of this is on the way of every `fleetgate run`, so it imports next to nothing: `_signal`, which the interpreter
has loaded anyway, instead of `signal`, and ctypes only once the child runs.
"""
