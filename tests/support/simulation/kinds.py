"""All kinds of faults of a cluster by name, those that hurt together, and what a seed draws."""

from support.simulation import archives, links, machines, operators, quorum
from support.simulation.nemesis import Fault

from vq.testing.loop import generator

KINDS_PER_RUN = (1, 8)


FAULTS: dict[str, Fault] = {
    "kill broker": machines.kill_broker,
    "power cut": machines.cut_power,
    "kill all": machines.kill_all_brokers,
    "graceful restart": machines.restart_broker,
    "hand over": machines.hand_over,
    "slow disk": machines.slow_disk,
    "failing disk": machines.failing_disk,
    "full disk": machines.full_disk,
    "second broker": machines.second_broker,
    "cut": links.cut_network,
    "reset": links.reset_connections,
    "pause": links.pause,
    "clock": links.step_clock,
    "leave": links.member_leaves,
    "client dies": links.client_dies,
    "expire": quorum.expire_session,
    "disconnect": quorum.disconnect,
    "blink": quorum.blink,
    "lost reply": quorum.lose_reply,
    "lost request": quorum.lose_request,
    "watches": quorum.lose_watches,
    "stale reads": quorum.stale_reads,
    "flaky zookeeper": quorum.flaky_zookeeper,
    "ensemble away": quorum.ensemble_away,
    "move": operators.move_partition,
    "sleepy mover": operators.sleepy_mover,
    "grow": operators.add_partition,
    "settings": operators.change_settings,
}

#: Kinds of faults that meet in the same few lines of the broker or the client.
COMBINATIONS: tuple[tuple[str, ...], ...] = (
    ("power cut", "slow disk"),  # what was acknowledged, and what only nearly was
    ("move", "watches"),  # the old and the new group hear of it at different times
    ("sleepy mover", "watches"),
    ("sleepy mover", "kill broker"),
    ("move", "lost reply", "lost request"),  # the version is raised, or it is not known
    ("move", "power cut"),
    ("expire", "failing disk"),  # a new epoch that cannot be stored
    ("full disk", "kill all"),
    ("reset", "slow disk"),  # resends while the first attempt waits for its flush
    ("pause", "expire", "leave"),
    ("hand over", "lost reply", "lost request"),  # who leads now?
    ("hand over", "kill broker", "cut"),  # the successor is gone, or does not hear of it
)


#: Not drawn by ``draw_kinds``: it needs a second topic.
REPLICATION = "replication"
#: All kinds by name, also those that are not drawn.
EVERY_KIND: dict[str, Fault] = {
    **FAULTS,
    REPLICATION: operators.change_replication,
    operators.BALANCE: operators.carry_out_plan,
    archives.ARCHIVE: archives.archive_blocks,
    archives.HANGING_PLACE: archives.hang_place,
}


def draw_kinds(seed: int) -> tuple[str, ...]:
    """Return the kinds of faults of a run: two runs in three have kinds that hurt together.

    A pair drawn at random is one in three hundred; those that belong together would hardly meet.
    """
    rng = generator(seed, "kinds")
    kinds = set(rng.sample(sorted(FAULTS), rng.randint(*KINDS_PER_RUN)))
    if seed % 3:
        kinds.update(COMBINATIONS[(seed - seed // 3) % len(COMBINATIONS)])
    return tuple(sorted(kinds))
