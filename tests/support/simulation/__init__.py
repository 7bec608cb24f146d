"""A whole cluster on one thread, in virtual time, from one seed.

    loop       an event loop whose time is a number; processes that can be stopped and killed
    world      ZooKeeper, network, disks and clocks in memory; broker and client processes on them
    workload   producers, members of a consumer group, an auditor
    nemesis    what goes wrong, when, to whom
    history    what everybody did and was told, with a hash that tells two runs apart
    judge      whether that is what vq promises
    run        one seed from beginning to end

The production code runs as it is: broker, client and coordination over the in-memory twins of
disk, network and ZooKeeper. Nothing in here or in there may ask the machine for time or chance.
"""
