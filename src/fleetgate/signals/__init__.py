"""What happened? HTTP responses and the output of processes in, an outcome with its evidence out (SPEC S).

Nothing here asks a clock, reads a file or opens a connection: text and the time at which it was seen go in. Import from
the modules: `outcome` (the eight outcomes), `times` (waits in words), `http` (responses, and errors inside streams).
"""
