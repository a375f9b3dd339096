"""Classification: from HTTP responses and the output of processes to an outcome with its evidence (rules S1 to S4).

Nothing here reads a clock or a file or opens a connection: the text and the time of its arrival are arguments. Import
from the modules: `outcome` (the eight outcomes), `wait_times` (waits in words), `classify_http` (responses, and errors
inside streams), `classify_process` (the output of processes).
"""
