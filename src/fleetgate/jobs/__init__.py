"""Durable jobs: commands that wait in the queue, and the workers that run them (rules J1 to J6).

A job is a ticket of the engine without a holder until a worker offers to run it, and a row beside the log with the
command and its result. Both change in the same transaction. When the engine decides about a job while no worker is
attached (it expired, its worker died), it leaves a row in the table `job_ends`; the next command or worker handles it.

    state_machine.py    the states of a job, every edge between them, and the one place where a job follows an edge
    job_record.py       the row of a job, and the command that puts it in the queue
    job_store.py        rows, tickets and leases together: a job as it is now
    spec_parser.py      a job's specification, checked
    submit.py           from a specification to a place in the queue
    retry_policy.py     the meaning of a job's end: done, again, or failed
    unattended_ends.py  ends of jobs without a worker
    actions.py          cancel, approve, retry, clean
    output_files.py     the output of a job, in rotated files
    job_owner.py        the user that a job belongs to
    sealed_files.py     specifications in files of their owner, where users share a folder
    dispatch.py         start the jobs that fit now
    job_json.py         a job as JSON
    blocking_api.py     all of that for a service
    worker/             workers: their processes, and one attempt under a lease
"""
