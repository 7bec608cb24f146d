"""vq over HTTP, for programs that have no client of it.

    config      how a gateway serves, and the bounds of what it takes
    problems    errors as HTTP statuses and problem documents
    tokens      who may do what: the file of tokens
    forms       messages and answers as JSON
    bodies      bodies of requests, bounded
    unread      answers that peers do not take
    members     members of groups that the gateway hosts, with leases
    streams     messages as server-sent events
    counts      what is counted, as metrics
    routes      one row for each route: what it does, and the right it needs
    app         all of it as an ASGI application
    server      the process of ``vq gateway``

Not in here: what a message, a send or a group is; the gateway uses ``vq.aio`` as any program does.
Importing this package needs the extra ``web``; ``config``, ``problems`` and ``tokens`` do without.
"""
