"""The tree in ZooKeeper at one glance, and the names at its top.

One class per znode has its path and the format of its value: the classes are in ``values``, those
of repeatable writes in ``writes``.

    settings                              ClusterSettings  what operators decided for all of it
    security/secret                       ClusterSecret   by which brokers know each other
    security/identities                   Identities      who holds rights in ZooKeeper
    security/acls                         AccessList      who may do what at the brokers
    security/quotas                       QuotaList       how much users may use of the brokers
    security/users/<user>                 StoredUser      who may connect to brokers
    brokers/<group>                       BrokerGroup     pool, labels, draining or not
      state                               GroupState      epoch, master, insync, incarnations
      nodes/<node>            ephemeral   Registration    where the process listens
      load/<node>             ephemeral   BrokerLoad      how busy it is
      partitions                          OpenPartitions  how many partitions are open on it
    topics/<topic>                        TopicNode       id, settings, phase
      partitions                          PlacementChanges  recently changed partitions
        <n>                               Partition       placement spans, state
      deleting-<id>                       DeletionFence   the topic with this id is being removed
    audit/unclean/<group>                 UncleanElections  when a node led that may lack messages
    audit/acts/<act>                      ActRecord       an act of an operator, before it began
      end                                 ActOutcome      what became of it
    deleted                               DeletedTopics   ids and names of recently deleted topics
    grace                                 GraceClock      time that passed for deleted topics
    consumers/<group>                     ConsumerGroup   model, topics, start
      members/<member>        ephemeral   Member          host, pid, subscriptions
      assignment/<topic>/<n>              Assignment      member, generation (the fence)
      owners/<topic>/<n>      ephemeral   Owner           the member that consumes it now
      offsets/<topic>/<n>                 CommittedOffset offset, message id, epoch, member
    slots                                 SlotCounter     where the search for a slot starts
      <n>                     ephemeral   Slot            the holder of this message-id slot
    slot_marks/<n>                        SlotMark        the latest time of ids of the slot
    leases/<job>                          LeaseFence      how often the lease was taken (the fence)
      holder                  ephemeral   LeaseHolder     the node that does the job now
      times                               LeaseTimes      when each part of the job was due last
    decisions/<n>/<name>                  Decision        the last transaction that moved offsets
    archive/runs                          RunCounter      the number of the next run
      <n>                                 RunOrder        what every node is to archive
        <group>:<node>                    RunResult       what one node has done of it
    allocations/<plan>                    AllocationOrder which partitions go to which groups
      progress                            AllocationProgress  how far that is
      cancel                              AllocationCancel  somebody wants it to end
    writes/<write>/…                                      who writes repeatable writes: ``writes``
"""

from typing import Final

SETTINGS: Final = "settings"
SECURITY: Final = "security"
USERS: Final = f"{SECURITY}/users"
BROKERS: Final = "brokers"
TOPICS: Final = "topics"
AUDIT: Final = "audit"
ACTS: Final = f"{AUDIT}/acts"
DELETED: Final = "deleted"
GRACE: Final = "grace"
CONSUMERS: Final = "consumers"
SLOTS: Final = "slots"
SLOT_MARKS: Final = "slot_marks"
LEASES: Final = "leases"
ARCHIVE: Final = "archive"
DECISIONS: Final = "decisions"
ALLOCATIONS: Final = "allocations"
