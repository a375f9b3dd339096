"""The engine: pure decisions, without I/O. Time is an argument, and every change is an event.

A command goes to its handler (`handlers/`), which records events (`recorder.py`). The state applies them (`state/`),
with the queues of waiting tickets (`queue/`), the pools whose slots they need (`pools/`) and the policies of their
limits (`limits/`). Then `queue/admission.py` admits what can enter. `views/` reads the state for people and programs.

Start with `engine.py`, then the theory of operation at the head of `queue/admission.py`, `pools/pool.py` and
`limits/adaptive.py`. The rules by their ids are in docs/rules.md.
"""
