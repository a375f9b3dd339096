"""One process under a lease: its start, its signals, its output and its end.

| file | what is in it |
| --- | --- |
| `child.py` | a forked child that waits for permission before it executes anything |
| `supervisor.py` | supervision of the child until it ends: signals, stops, deadlines |
| `signal_listener.py` | the signals that arrived, and their senders |
| `terminal_foreground.py` | the terminal's foreground group |
| `output_tap.py` | piped output, passed on byte for byte and shown to a reader |
| `agent_run.py` | an agent under a lease: its output, its outcome, the release of its slot |
| `early_stop.py`, `refusal_patience.py` | when an agent that hangs or is refused is ended |
| `run_usage.py` | what the agent used, by its own records |
| `session_resume.py` | the agent's own session, resumed and remembered |
| `launch.py`, `placeholders.py` | the agent's command and environment |

All of this is on the path of every `fleetgate run`, so it imports next to nothing: `_signal`, which the interpreter
has loaded anyway, instead of `signal`, and ctypes only once the child is running.
"""
