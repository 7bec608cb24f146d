"""The table of operations: one row for each thing that an administrator asks or changes.

A row is the function that does the work, whether it asks, plans or acts, the right that it needs,
on what, and the command that does it. ``vq.Admin``, ``vq.aio.Admin`` and the page
``docs/reference/operations.md`` are made of it.
"""

from vq.operations.allocation import applying, measuring, planning
from vq.operations.allocation import runs as allocation_runs
from vq.operations.archives import archive_runs, archives
from vq.operations.brokers import (
    blocks,
    brokers,
    diverged,
    draining,
    jobs,
    removing,
    switching,
    unclean,
)
from vq.operations.cluster import audit, bulk, cluster, definitions, security_facts, settings
from vq.operations.explain import disks, messages, partition, sends
from vq.operations.groups import (
    balance,
    group_removal,
    groups,
    making,
    progress,
    resets,
    shared,
    terms,
)
from vq.operations.messages import (
    columns,
    dead_letters,
    delayed,
    finding,
    recovering,
    resending,
    stored,
    transactions,
    writes,
)
from vq.operations.operation import Effect, row, yielding_row
from vq.operations.partitions import offsets
from vq.operations.partitions import placements as partitions
from vq.operations.security import access, quotas, users
from vq.operations.topics import closing, deletion, emptying, topics, verification
from vq.operations.tree import checking, copying, securing
from vq.security.rules import Resource, Right

ASK, PLAN, ACT = Effect
DESCRIBE, READ, WRITE, MANAGE = Right
TOPIC, GROUP, _, CLUSTER = Resource


class Operations:
    """What ``vq.Admin`` and ``vq.aio.Admin`` offer, in the order of their pages."""

    # Topics
    create_topic = row(topics.create_topic, ACT, MANAGE, TOPIC, "topic create")
    list_topics = row(topics.list_topics, ASK, DESCRIBE, TOPIC, "topic list")
    readable_topics = row(topics.readable_topics, ASK, DESCRIBE, TOPIC, "topic list")
    get_topic = row(topics.get_topic, ASK, DESCRIBE, TOPIC)
    describe_topic = row(topics.describe_topic, ASK, DESCRIBE, TOPIC, "topic describe")
    change_settings = row(topics.change_settings, ACT, MANAGE, TOPIC, "topic alter")
    alter_topic = row(topics.alter_topic, ACT, MANAGE, TOPIC, "topic alter")
    add_partitions = row(topics.add_partitions, ACT, MANAGE, TOPIC, "topic alter")
    close_topic = row(closing.close_topic, ACT, MANAGE, TOPIC, "topic close")
    open_topic = row(closing.open_topic, ACT, MANAGE, TOPIC, "topic open")
    drain_topic = row(emptying.drain_topic, ACT, MANAGE, TOPIC, "topic drain")
    plan_delete = row(deletion.plan_delete, PLAN, DESCRIBE, TOPIC, "topic delete")
    delete_topic = row(deletion.delete_topic, ACT, MANAGE, TOPIC, "topic delete")
    undelete_topic = row(deletion.undelete_topic, ACT, MANAGE, TOPIC, "topic undelete")
    deleted_topics = row(deletion.deleted_topics, ASK, DESCRIBE, TOPIC, "topic list")

    # Placements
    placements = row(partitions.partitions_of, ASK, DESCRIBE, TOPIC, "topic describe")
    plan_moves = row(partitions.plan_moves, PLAN, DESCRIBE, TOPIC, "topic move")
    plan_emptying = row(partitions.plan_emptying, PLAN, DESCRIBE, CLUSTER, "broker drain")
    move = row(partitions.move_all, ACT, MANAGE, TOPIC, "topic move", of="planned")

    # Topics for broker groups by load
    group_loads = row(measuring.group_loads, ASK, DESCRIBE, CLUSTER, "balance load")
    measure_allocation = row(measuring.measure_allocation, ASK, DESCRIBE, CLUSTER, "balance load")
    plan_allocation = row(planning.plan_allocation, PLAN, DESCRIBE, CLUSTER, "balance plan")
    allocation_changes = row(planning.allocation_changes, ASK, DESCRIBE, CLUSTER, "balance apply")
    apply_allocation = row(applying.apply_allocation, ACT, MANAGE, CLUSTER, "balance apply")
    resume_allocation = row(applying.resume_allocation, ACT, MANAGE, CLUSTER, "balance resume")
    cancel_allocation = row(applying.cancel_allocation, ACT, MANAGE, CLUSTER, "balance cancel")
    list_allocations = row(
        allocation_runs.list_allocations, ASK, DESCRIBE, CLUSTER, "balance progress"
    )
    describe_allocation = row(
        allocation_runs.describe_allocation, ASK, DESCRIBE, CLUSTER, "balance progress"
    )

    # Consumer groups
    list_groups = row(groups.list_groups, ASK, DESCRIBE, GROUP, "group list")
    readable_groups = row(groups.readable_groups, ASK, DESCRIBE, GROUP, "group list")
    describe_group = row(groups.describe_group, ASK, DESCRIBE, GROUP, "group describe")
    plan_reset = row(resets.plan_reset, PLAN, DESCRIBE, GROUP, "group reset")
    reset = row(resets.reset, ACT, MANAGE, GROUP, "group reset")
    plan_delete_group = row(group_removal.plan_delete_group, PLAN, DESCRIBE, GROUP, "group delete")
    delete_group = row(group_removal.delete_group, ACT, MANAGE, GROUP, "group delete")
    plan_forget_topic = row(group_removal.plan_forget_topic, PLAN, DESCRIBE, GROUP, "group forget")
    forget_topic = row(group_removal.forget_topic, ACT, MANAGE, GROUP, "group forget")
    alter_group = row(terms.alter_group, ACT, MANAGE, GROUP, "group alter")
    roll_group = row(terms.roll_group, ACT, MANAGE, GROUP, "group roll")
    end_roll = row(terms.end_roll, ACT, MANAGE, GROUP, "group roll")
    plan_balance = row(balance.plan_balance, PLAN, DESCRIBE, GROUP, "group plan")
    describe_shared_group = row(shared.describe_shared_group, ASK, DESCRIBE, GROUP, "group shared")
    group_history = row(balance.group_history, ASK, DESCRIBE, GROUP, "group history")
    plan_create_group = row(making.plan_create_group, PLAN, DESCRIBE, GROUP, "group create")
    plan_clone_group = row(making.plan_clone_group, PLAN, DESCRIBE, GROUP, "group clone")
    export_group = row(making.export_group, ASK, DESCRIBE, GROUP, "group export")
    plan_import_group = row(making.plan_import_group, PLAN, DESCRIBE, GROUP, "group import")
    make_group = row(making.make_group, ACT, MANAGE, GROUP, "group create", of="planned")
    commit_progress = row(progress.commit_progress, ACT, READ, GROUP)

    # Offsets and stored messages
    bounds = row(topics.bounds, ASK, DESCRIBE, TOPIC)
    offsets_at_time = row(offsets.offsets_at_time, ASK, DESCRIBE, TOPIC)
    numbers_at = row(offsets.numbers_at, ASK, DESCRIBE, TOPIC, "message number")
    offsets_at_numbers = row(offsets.offsets_at_numbers, ASK, DESCRIBE, TOPIC, "message number")
    boundaries = row(stored.boundaries_of, ASK, DESCRIBE, TOPIC)
    read_range = row(stored.read_range, ASK, READ, TOPIC)
    read_columns = yielding_row(columns.read_columns, ASK, READ, TOPIC)
    read_bytes = row(stored.read_bytes, ASK, READ, TOPIC)
    find_messages = row(finding.find_messages, ASK, READ, TOPIC, "message find")

    # Dead letters
    list_dead_letters = row(dead_letters.list_dead_letters, ASK, DESCRIBE, GROUP, "dlq list")
    read_dead_letters = yielding_row(dead_letters.read_dead_letters, ASK, READ, GROUP, "dlq read")
    resend_dead_letters = row(resending.resend_dead_letters, ACT, MANAGE, GROUP, "dlq resend")
    delete_dead_letters = row(resending.delete_dead_letters, ACT, MANAGE, GROUP, "dlq delete")

    # Delayed messages
    list_delayed = row(delayed.list_delayed, ASK, READ, TOPIC, "delayed list")
    cancel_delayed = row(delayed.cancel_delayed, ACT, WRITE, CLUSTER, "delayed cancel")

    # Transactions
    list_transactions = row(transactions.list_transactions, ASK, DESCRIBE, CLUSTER, "tx list")
    describe_transaction = row(transactions.describe_transaction, ASK, DESCRIBE, CLUSTER, "tx show")
    read_transaction = row(transactions.read_transaction, ASK, READ, CLUSTER, "tx show")
    commit_transaction = row(transactions.commit_transaction, ACT, MANAGE, CLUSTER, "tx commit")
    forget_transaction = row(transactions.forget_transaction, ACT, MANAGE, CLUSTER, "tx forget")
    list_branches = row(recovering.list_branches, ASK, DESCRIBE, CLUSTER, "tx recover")
    recover_branches = row(recovering.recover_branches, ACT, MANAGE, CLUSTER, "tx recover")
    roll_back_transaction = row(
        transactions.roll_back_transaction, ACT, MANAGE, CLUSTER, "tx rollback"
    )
    check_transaction = row(transactions.check_transaction, ACT, MANAGE, CLUSTER, "tx check")

    # Repeatable writes
    begin_write = row(writes.begin_write, ACT, WRITE, CLUSTER)
    end_write = row(writes.end_write, ACT, WRITE, CLUSTER, "write end")
    list_writes = row(writes.list_writes, ASK, DESCRIBE, CLUSTER, "write list")
    begin_attempt = row(writes.begin_attempt, ACT, WRITE, CLUSTER)
    tasks_begun = row(writes.tasks_begun, ASK, DESCRIBE, CLUSTER)
    enter_topic = row(writes.enter_topic, ACT, WRITE, TOPIC)
    read_written = row(writes.read_written, ASK, READ, TOPIC)

    # Many at once, for reports on a whole cluster
    read_contracts = row(bulk.read_contracts, ASK, DESCRIBE, GROUP, "report lag")
    read_topic_states = row(bulk.read_topic_states, ASK, DESCRIBE, TOPIC, "report lag")
    list_broker_groups = row(bulk.list_broker_groups, ASK, DESCRIBE, CLUSTER, "report capacity")
    read_placements = row(bulk.read_placements, ASK, DESCRIBE, TOPIC, "report lag", of="partitions")
    read_places = row(bulk.read_places, ASK, DESCRIBE, GROUP, "report lag", of="wanted")
    bounds_on = row(bulk.bounds_on, ASK, DESCRIBE, CLUSTER, "report lag")
    measure = row(bulk.measure, ASK, DESCRIBE, TOPIC, "report lag", of="ranges")

    # Why something does not happen
    explain_partition = row(partition.explain_partition, ASK, DESCRIBE, GROUP, "explain partition")
    explain_key = row(sends.explain_key, ASK, DESCRIBE, TOPIC, "explain key")
    explain_message = row(messages.explain_message, ASK, READ, GROUP, "explain message")
    explain_disk = row(disks.explain_disk, ASK, DESCRIBE, CLUSTER, "explain disk")
    explain_send = row(sends.explain_send, ASK, DESCRIBE, TOPIC, "explain send")

    # Who may do what
    list_users = row(users.list_users, ASK, DESCRIBE, CLUSTER, "user list")
    get_user = row(users.get_user, ASK, DESCRIBE, CLUSTER, "user show")
    add_user = row(users.add_user, ACT, MANAGE, CLUSTER, "user add")
    rotate_user = row(users.rotate_user, ACT, MANAGE, CLUSTER, "user rotate")
    finish_rotation = row(users.finish_rotation, ACT, MANAGE, CLUSTER, "user rotate")
    change_user_roles = row(users.change_user_roles, ACT, MANAGE, CLUSTER, "user roles")
    remove_user = row(users.remove_user, ACT, MANAGE, CLUSTER, "user remove")

    # The archive
    start_archive_run = row(
        archive_runs.start_archive_run, ACT, MANAGE, CLUSTER, "archive run", of="topic"
    )
    wait_for_archive_run = row(
        archive_runs.wait_for_archive_run, ASK, DESCRIBE, CLUSTER, "archive run"
    )
    list_archives = row(archives.list_archives, ASK, DESCRIBE, TOPIC, "archive list")
    verify_archives = row(
        archives.verify_archives, ACT, MANAGE, TOPIC, "archive verify", of="blocks"
    )
    restore_archive = row(
        archives.restore_archive, ACT, MANAGE, TOPIC, "archive restore", of="block"
    )
    restore_archives = row(
        archives.restore_archives, ACT, MANAGE, TOPIC, "archive restore", of="blocks"
    )
    archive_history = row(archive_runs.archive_history, ASK, DESCRIBE, CLUSTER, "archive history")

    # Brokers and the cluster
    list_brokers = row(brokers.list_brokers, ASK, DESCRIBE, CLUSTER)
    broker_status = row(brokers.broker_status, ASK, DESCRIBE, CLUSTER, "cluster status")
    blocks_of = row(blocks.blocks_of, ASK, DESCRIBE, TOPIC, "report capacity")
    list_blocks = row(blocks.list_blocks, ASK, DESCRIBE, TOPIC, "report capacity")
    broker_jobs = row(jobs.broker_jobs, ASK, DESCRIBE, CLUSTER, "broker jobs")
    drain_node = row(draining.drain_node, ACT, MANAGE, CLUSTER, "broker drain")
    undrain_node = row(draining.undrain_node, ACT, MANAGE, CLUSTER, "broker undrain")
    drain_group = row(draining.drain_group, ACT, MANAGE, CLUSTER, "broker drain")
    undrain_group = row(draining.undrain_group, ACT, MANAGE, CLUSTER, "broker undrain")
    plan_removal = row(removing.plan_removal, PLAN, DESCRIBE, CLUSTER, "broker remove")
    remove_broker = row(removing.remove_broker, ACT, MANAGE, CLUSTER, "broker remove")
    switch_master = row(switching.switch_master, ACT, MANAGE, CLUSTER, "cluster switch")
    plan_unclean = row(unclean.plan_unclean, PLAN, DESCRIBE, CLUSTER, "cluster unclean")
    elect_uncleanly = row(unclean.elect_uncleanly, ACT, MANAGE, CLUSTER, "cluster unclean")
    unclean_elections = row(unclean.unclean_elections, ASK, DESCRIBE, CLUSTER)
    list_cut = row(diverged.list_cut, ASK, DESCRIBE, TOPIC, "cluster diverged")
    read_cut = row(diverged.read_part, ASK, READ, TOPIC, "cluster diverged", of="file")
    delete_cut = row(diverged.delete_cut, ACT, MANAGE, TOPIC, "cluster diverged", of="file")
    check_brokers = row(cluster.check_brokers, ASK, DESCRIBE, CLUSTER, "doctor")
    cluster_status = row(cluster.cluster_status, ASK, DESCRIBE, CLUSTER, "cluster status")
    cluster_settings = row(settings.read_settings, ASK, DESCRIBE, CLUSTER, "cluster settings")
    set_auto_create = row(settings.set_auto_create, ACT, MANAGE, CLUSTER, "cluster settings")
    export_definitions = row(
        definitions.export_definitions, ASK, DESCRIBE, CLUSTER, "cluster export"
    )
    plan_import_definitions = row(
        definitions.plan_import_definitions, PLAN, DESCRIBE, CLUSTER, "cluster import"
    )
    import_definitions = row(definitions.import_definitions, ACT, MANAGE, CLUSTER, "cluster import")
    list_access_rules = row(access.list_access_rules, ASK, DESCRIBE, CLUSTER, "acl list")
    add_access_rules = row(access.add_access_rules, ACT, MANAGE, CLUSTER, "acl add")
    remove_access_rules = row(access.remove_access_rules, ACT, MANAGE, CLUSTER, "acl remove")
    decide_access = row(access.decide_access, ASK, DESCRIBE, CLUSTER, "acl test")
    list_acts = row(audit.list_acts, ASK, DESCRIBE, CLUSTER, "audit list")
    plan_security = row(security_facts.plan_security, PLAN, DESCRIBE, CLUSTER, "secure plan")
    list_quotas = row(quotas.list_quotas, ASK, DESCRIBE, CLUSTER, "quota list")
    show_quota = row(quotas.show_quota, ASK, DESCRIBE, CLUSTER, "quota show")
    set_quotas = row(quotas.set_quotas, ACT, MANAGE, CLUSTER, "quota set")
    remove_quotas = row(quotas.remove_quotas, ACT, MANAGE, CLUSTER, "quota remove")
    check_tree = row(checking.check_tree, ASK, DESCRIBE, CLUSTER, "zk check")
    plan_repair_tree = row(checking.plan_repair_tree, PLAN, DESCRIBE, CLUSTER, "zk repair")
    repair_tree = row(checking.repair_tree, ACT, MANAGE, CLUSTER, "zk repair")
    plan_secure_tree = row(securing.plan_secure_tree, PLAN, DESCRIBE, CLUSTER, "zk secure")
    secure_tree = row(securing.secure_tree, ACT, MANAGE, CLUSTER, "zk secure")
    export_tree = yielding_row(copying.export_tree, ASK, MANAGE, CLUSTER, "zk export")
    plan_import_tree = row(copying.plan_import_tree, PLAN, DESCRIBE, CLUSTER, "zk import")
    import_tree = row(copying.import_tree, ACT, MANAGE, CLUSTER, "zk import")
    verify = row(verification.verify, ACT, MANAGE, TOPIC, "topic verify", of="topics")
