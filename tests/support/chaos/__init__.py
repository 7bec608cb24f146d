"""Real brokers in groups with copies, a real ZooKeeper, and faults at random from a seed.

    network    a network namespace for each node; links that can be cut one way
    groups     the nodes: processes that are started, killed, paused; who leads and who is in sync
    load       the clients: idempotent producers and members of a group, each with its own history
    nemesis    the faults: each says whether it had an effect
    evidence   what the logs of all nodes and ZooKeeper hold at the end, for ``support.judge``
    rows       the table: which faults strike which cluster, and how often
    run        one run from beginning to end
    report     the summary of many runs

``python -m support.chaos --help`` runs rows; ``make chaos`` calls it.
"""
