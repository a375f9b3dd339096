"""Durable jobs: commands left in the line, and the workers that run them (SPEC J).

A job is a ticket of the engine that is nobody's until a worker offers to run it, and a row beside the log that says
what to run and what became of it. Both change in the same transaction. What the engine decides about a job when no
worker is by (it expired, its worker died) is left in the table `job_ends`, and whoever comes next sees to it.

    states.py      the states of a job, and every edge between them
    records.py     what is kept of a job
    store.py       the rows, and a job as it is now: row, ticket and lease together
    reading.py     a specification, as somebody said it, checked
    submitting.py  from a specification to a place in the queue
    verdicts.py    what a job's end means: done, again, or failed
    settling.py    ends that came when no worker was by
    changing.py    cancel, approve, retry, clean
    output.py      what a job printed, in rotated files
    hand.py        one hand of a worker: offers, waits, runs one job at a time
    attempt.py     one attempt under a lease
    worker.py      a worker: its hands, and what has to be seen to
    dispatching.py start what fits now
    shapes.py      a job in the shape that programs are told it in
    desk.py        all of that for a service
"""
