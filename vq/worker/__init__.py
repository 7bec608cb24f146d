"""Processes that handle the messages of a group: ``vq worker``, and tasks with typed arguments.

    task | arguments     ``vq.task``: a function whose calls are messages; its arguments
    config               settings of a runner
    supervisor           the parent: starts processes, looks at them, stops them
    process              one process as the parent sees it
    child                what runs in a process: a consumer, and around each message what follows
    handlers             what is called for a message, found by its name
    alone                messages that a process may have died of run alone
    suspects             which ones those are. Pure
    in_hand              memory in which a process shows its parent what it is at
    periodic             tasks that are due, sent by one of many processes

The parent has no client of vq and none of the application's code. Not in here: delivery, retries,
dead letters; they are the consumer's.
"""
