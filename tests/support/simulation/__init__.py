"""A whole cluster on one thread, in virtual time, from one seed.

    loop       an event loop whose time is a number; processes that can be stopped and killed
    world      ZooKeeper, network, disks and clocks in memory; broker and client processes on them
    workload   producers, members of a consumer group, an auditor
    nemesis    the faults: which, when, on which process
    history    the events of all clients, with a hash to compare two runs
    judge      checks the events against the promises of vq
    run        one seed from beginning to end

The production code runs as it is: broker, client and coordination over the in-memory twins of
disk, network and ZooKeeper. Nothing in here or in there may ask the machine for time or chance.
"""
