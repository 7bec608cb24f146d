"""Who may lead a group, who joins and who leaves its in-sync set."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vq.coordination.brokers.insync import (
    Candidate,
    ChangeRefused,
    MastershipRefused,
    MayLackMessages,
    elected,
    follows,
    forgotten,
    goes_first,
    joined,
    keeps_leading,
    lacks_messages,
    left,
    longest,
    named_uncleanly,
    offered,
    successor,
    withdrawn,
)
from vq.coordination.tree.values.brokers import NODES_LEFT_MAX, GroupState

STATE = GroupState(
    epoch=7,
    master="n1",
    insync=("n1", "n2"),
    incarnations={"n1": 11, "n2": 12},
    directories={"n1": "d1", "n2": "d2"},
)


def test_the_first_node_of_a_group_leads_it_alone() -> None:
    first = elected(None, Candidate("b1", "n1", 11, "d1"), master_is_alive=False)
    assert first == GroupState(
        epoch=1, master="n1", insync=("n1",), incarnations={"n1": 11}, directories={"n1": "d1"}
    )


def test_a_member_of_the_set_follows_a_dead_master_in_a_new_epoch() -> None:
    """The set does not change: the old master leaves it by a change of its own."""
    after = elected(STATE, Candidate("b1", "n2", 20, "d2"), master_is_alive=False)
    assert (after.epoch, after.master, after.insync) == (8, "n2", ("n1", "n2"))
    assert after.incarnations == {"n1": 11, "n2": 20}


def test_a_node_that_left_is_remembered_until_it_is_back_or_forgotten() -> None:
    """Not more of them than a bound: their names are data of whoever starts brokers."""
    alone = left(STATE, 7, "n2")
    assert alone.left == ("n2",)
    n2 = Candidate("b1", "n2", 20, "d2")
    assert joined(alone, 7, n2, incarnation_now=20).left == ()
    assert forgotten(alone, "n2") == replace(alone, left=())
    assert forgotten(alone, "n9") == alone
    unclean = named_uncleanly(STATE, Candidate("b1", "n3", 30, "d3"), able=())
    assert unclean.left == ("n1", "n2")
    many = replace(STATE, left=tuple(f"a{number:02}" for number in range(NODES_LEFT_MAX)))
    assert left(many, 7, "n2").left == (*many.left[1:], "n2")


def test_nobody_follows_a_living_master_but_itself() -> None:
    with pytest.raises(MastershipRefused, match="led by node 'n1', which is alive"):
        elected(STATE, Candidate("b1", "n2", 20, "d2"), master_is_alive=True)
    assert elected(STATE, Candidate("b1", "n1", 20, "d1"), master_is_alive=True).epoch == 8


@pytest.mark.parametrize(
    ("node", "master_is_alive", "expected"),
    [
        ("n1", True, False),  # its own earlier registration
        ("n1", False, False),
        ("n2", True, True),
        ("n2", False, False),  # in sync: it may lead
        ("n3", True, True),
        ("n3", False, True),  # it waits for the master
    ],
)
def test_who_follows(node: str, master_is_alive: bool, expected: bool) -> None:
    assert follows(STATE, node, master_is_alive=master_is_alive) is expected
    assert not follows(None, node, master_is_alive=master_is_alive)


def test_a_node_outside_of_the_set_never_leads() -> None:
    with pytest.raises(MastershipRefused, match="'n3' is not in sync"):
        elected(STATE, Candidate("b1", "n3", 20), master_is_alive=False, accept_data_loss=True)


def test_a_node_with_another_data_directory_leads_only_if_told_so() -> None:
    candidate = Candidate("b1", "n1", 20, "d9")
    with pytest.raises(MastershipRefused, match="with id d1; this one has id d9"):
        elected(STATE, candidate, master_is_alive=False)
    after = elected(STATE, candidate, master_is_alive=False, accept_data_loss=True)
    assert after.directories["n1"] == "d9"


def test_a_node_that_lost_power_leads_once_the_record_names_its_registration() -> None:
    started = Candidate("b1", "n2", 20, "d2", lost_power=True)
    with pytest.raises(MastershipRefused, match="waits for n1, from which it copies them"):
        elected(STATE, started, master_is_alive=False)
    caught_up = joined(STATE, 7, started, incarnation_now=20)
    assert elected(caught_up, started, master_is_alive=False).master == "n2"


def test_a_node_that_lost_power_leads_if_nobody_has_more_or_if_told_so() -> None:
    started = Candidate("b1", "n1", 20, "d1", lost_power=True)
    alone = left(STATE, 7, "n2")
    assert elected(alone, started, master_is_alive=False).epoch == 8
    assert elected(STATE, started, master_is_alive=False, accept_data_loss=True).epoch == 8


def test_nodes_that_all_lost_power_wait_for_nobody() -> None:
    """And a master that lost power is no reason to follow it."""
    started = Candidate("b1", "n2", 20, "d2", lost_power=True)
    after = elected(STATE, started, master_is_alive=False, others_lack=True)
    assert (after.master, after.incarnations["n2"]) == ("n2", 20)
    with pytest.raises(MastershipRefused, match="led by node 'n1', which is alive"):
        elected(STATE, started, master_is_alive=True, others_lack=True)


def test_of_nodes_that_all_lost_power_the_one_with_the_longest_logs_leads() -> None:
    started = Candidate("b1", "n2", 20, "d2", lost_power=True)
    with pytest.raises(MayLackMessages, match="it waits for n1, from which it copies"):
        elected(STATE, started, master_is_alive=False, others_lack=True, longer="n1")
    after = elected(
        STATE, started, master_is_alive=False, others_lack=True, longer="n1", accept_data_loss=True
    )
    assert after.master == "n2"


@given(st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), st.integers(1, 3), min_size=1))
def test_somebody_has_the_longest_logs(ends: dict[str, int]) -> None:
    """Nobody waits in a circle, and who waits does so for longer logs."""
    waits = {node: longest(ends, node) for node in ends}
    assert "" in waits.values()
    for node, other in waits.items():
        assert not other or ends[other] == max(ends.values()) > ends[node]
    assert longest(ends, "n4") == ""


@pytest.mark.parametrize(
    ("incarnation", "lost_power", "expected"),
    [(11, True, False), (20, True, True), (20, False, False)],
)
def test_a_node_lacks_messages_until_the_record_names_it(
    incarnation: int, lost_power: bool, expected: bool
) -> None:
    assert lacks_messages(STATE, "n1", incarnation, lost_power=lost_power) is expected


@pytest.mark.parametrize(
    ("state", "others_lack", "accept_data_loss", "leads"),
    [
        (STATE, False, False, False),  # n1 may come, and have everything
        (STATE, True, False, True),  # nobody has everything
        (STATE, False, True, True),  # an operator said so
        (left(STATE, 7, "n2"), True, True, False),  # it is not in sync
        (left(replace(STATE, master="n2"), 7, "n1"), False, False, True),  # it is in sync alone
        (joined(STATE, 7, Candidate("b1", "n2", 20), incarnation_now=20), False, False, False),
        (replace(STATE, successor="n2"), False, False, False),  # it found damage since the offer
        (replace(STATE, successor="n2"), True, False, True),  # the master has damage, too
    ],
)
def test_a_damaged_node_leads_only_if_nobody_may_have_everything(
    state: GroupState, others_lack: bool, accept_data_loss: bool, leads: bool
) -> None:
    """Also if the record names its registration: the damage may be younger."""
    damaged = Candidate("b1", "n2", 20, "d2", damaged=True)
    try:
        after = elected(
            state,
            damaged,
            master_is_alive=False,
            others_lack=others_lack,
            accept_data_loss=accept_data_loss,
        )
    except MastershipRefused:
        assert not leads
    else:
        assert leads
        assert after.master == "n2"


def test_a_damaged_node_says_for_whom_it_waits() -> None:
    with pytest.raises(MayLackMessages, match=r"has damage in its logs.*it waits for n1"):
        elected(STATE, Candidate("b1", "n2", 12, "d2", damaged=True), master_is_alive=False)


@pytest.mark.parametrize(
    ("incarnation", "lost_power", "damaged", "expected"),
    [
        (11, False, False, True),
        (11, False, True, True),  # it hands over
        (20, False, False, True),
        (20, False, True, False),  # it has to claim the group again, and may not
        (20, True, False, False),
        (11, True, False, True),
    ],
)
def test_a_master_that_finds_damage_leads_on_while_it_is_registered(
    incarnation: int, lost_power: bool, damaged: bool, expected: bool
) -> None:
    found = keeps_leading(STATE, incarnation, lost_power=lost_power, damaged=damaged)
    assert found is expected
    assert lacks_messages(STATE, "n1", incarnation, lost_power=False, damaged=True)


def test_a_node_joins_with_the_registration_that_caught_up() -> None:
    after = joined(STATE, 7, Candidate("b1", "n3", 13, "d3"), incarnation_now=13)
    assert (after.epoch, after.insync, after.incarnations["n3"]) == (7, ("n1", "n2", "n3"), 13)
    assert after.directories["n3"] == "d3"


@pytest.mark.parametrize("now", [14, None])
def test_a_node_that_registered_again_does_not_join(now: int | None) -> None:
    with pytest.raises(ChangeRefused, match="joins with registration 13, and has"):
        joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=now)


def test_a_node_that_leaves_is_forgotten() -> None:
    after = left(STATE, 7, "n2")
    assert (after.insync, after.incarnations, after.directories) == (
        ("n1",),
        {"n1": 11},
        {"n1": "d1"},
    )


def test_the_master_does_not_leave() -> None:
    with pytest.raises(ChangeRefused, match="'n1' leads in epoch 7"):
        left(STATE, 7, "n1")


@pytest.mark.parametrize("epoch", [6, 8])
def test_only_the_master_of_the_epoch_changes_the_set(epoch: int) -> None:
    with pytest.raises(ChangeRefused, match=f"epoch {epoch} is over"):
        left(STATE, epoch, "n2")
    with pytest.raises(ChangeRefused, match=f"epoch {epoch} is over"):
        joined(STATE, epoch, Candidate("b1", "n3", 13), incarnation_now=13)


# Hand-over ----------------------------------------------------------------------------------------
HEIR = Candidate("b1", "n2", 12, "d2")
OFFER = offered(STATE, 7, HEIR, incarnation_now=12, resigns=False)
RESIGNATION = offered(STATE, 7, HEIR, incarnation_now=12, resigns=True)


def test_the_successor_claims_the_group_of_a_living_master() -> None:
    """The old master stays in sync, and the offer is over."""
    after = elected(OFFER, HEIR, master_is_alive=True)
    assert (after.epoch, after.master, after.insync) == (8, "n2", ("n1", "n2"))
    assert (after.successor, after.resigns) == ("", False)


def test_a_master_that_resigns_leaves_the_set_with_the_claim_of_its_successor() -> None:
    after = elected(RESIGNATION, HEIR, master_is_alive=True)
    assert (after.insync, after.incarnations, after.directories) == (
        ("n2",),
        {"n2": 12},
        {"n2": "d2"},
    )


def test_another_node_that_claims_takes_nobody_out_of_the_set() -> None:
    """The master that resigned was lost before its successor came."""
    after = elected(RESIGNATION, Candidate("b1", "n1", 30, "d1"), master_is_alive=False)
    assert (after.master, after.insync, after.successor) == ("n1", ("n1", "n2"), "")


def test_nobody_but_the_successor_claims_the_group_of_a_living_master() -> None:
    three = joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=13)
    offer = offered(three, 7, HEIR, incarnation_now=12, resigns=True)
    with pytest.raises(MastershipRefused, match="which is alive"):
        elected(offer, Candidate("b1", "n3", 13), master_is_alive=True)
    assert follows(offer, "n3", master_is_alive=True)
    assert not follows(offer, "n2", master_is_alive=True)


@pytest.mark.parametrize(
    ("heir", "now", "reason"),
    [
        (Candidate("b1", "n3", 13), 13, "not in sync"),
        (Candidate("b1", "n1", 11), 11, "not in sync"),
        (HEIR, 20, "has 20 now"),
        (HEIR, None, "has none now"),
        (Candidate("b1", "n2", 20), 20, "in sync with registration 12, and has 20 now"),
    ],
)
def test_a_group_is_offered_to_a_registration_in_sync_only(
    heir: Candidate, now: int | None, reason: str
) -> None:
    with pytest.raises(ChangeRefused, match=reason):
        offered(STATE, 7, heir, incarnation_now=now, resigns=False)


def test_an_offer_ends_when_it_is_withdrawn_or_the_successor_leaves() -> None:
    assert withdrawn(RESIGNATION, 7) == STATE
    assert left(RESIGNATION, 7, "n2").successor == ""
    for change in (
        lambda: withdrawn(OFFER, 6),
        lambda: offered(OFFER, 6, HEIR, incarnation_now=12, resigns=False),
    ):
        with pytest.raises(ChangeRefused, match="epoch 6 is over"):
            change()


def test_the_successor_is_the_wanted_node_or_the_one_that_lacks_least() -> None:
    three = joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=13)
    behind = {"n1": 0, "n2": 10, "n3": 5, "n4": 0}
    assert successor(three, 7, "", behind) == "n3"
    assert successor(three, 7, "n2", behind) == "n2"
    for wanted, why in [
        ("n1", "leads it already"),
        ("n4", "is not in sync"),
        ("n5", "is not in sync; able: n2, n3"),
    ]:
        with pytest.raises(ChangeRefused, match=why):
            successor(three, 7, wanted, behind)
    with pytest.raises(ChangeRefused, match="'n2' cannot take over, it is not registered"):
        successor(STATE, 7, "n2", {})
    with pytest.raises(ChangeRefused, match="no other node is in sync, registered, without"):
        successor(STATE, 7, "", {})


def test_a_damaged_node_takes_over_only_from_a_damaged_master() -> None:
    three = joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=13)
    behind = {"n2": 0, "n3": 50}
    assert successor(three, 7, "", behind, damaged={"n2"}) == "n3"
    assert successor(three, 7, "", behind, damaged={"n1", "n2"}) == "n3"
    assert successor(three, 7, "n2", behind, damaged={"n1", "n2"}) == "n2"
    assert successor(three, 7, "", {"n2": 0}, damaged={"n1", "n2"}) == "n2"
    with pytest.raises(ChangeRefused, match="'n2' cannot take over, it has damage in its logs"):
        successor(three, 7, "n2", behind, damaged={"n2"})
    with pytest.raises(ChangeRefused, match="no other node is in sync, registered, without"):
        successor(three, 7, "", {"n2": 0}, damaged={"n2"})


def test_an_offer_is_kept_in_the_record() -> None:
    """A record without one has the fields that it had before."""
    assert GroupState.decode("x", RESIGNATION.encode()) == RESIGNATION
    assert b"successor" not in STATE.encode()


@pytest.mark.parametrize(
    ("node", "drained", "able", "expected"),
    [
        ("n2", ("n2",), ("n3",), "n3"),
        ("n2", (), ("n3",), ""),
        ("n2", ("n2",), (), ""),  # nobody else can
        ("n2", ("n2", "n3"), ("n3",), ""),
        ("n2", ("n2",), ("n4",), ""),  # not in sync
        ("n1", ("n1",), ("n2", "n3"), ""),  # the record names it, so nobody else may claim
    ],
)
def test_a_drained_node_lets_others_go_first(
    node: str, drained: tuple[str, ...], able: tuple[str, ...], expected: str
) -> None:
    three = joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=13)
    assert goes_first(three, node, drained=drained, able=able) == expected
    assert goes_first(None, node, drained=drained, able=able) == ""


@pytest.mark.parametrize(
    ("node", "full", "drained", "able", "expected"),
    [
        ("n2", ("n2",), (), ("n3",), "n3"),
        ("n2", ("n2", "n3"), (), ("n3",), ""),
        ("n2", ("n2",), (), (), ""),  # nobody else can
        ("n2", ("n2",), ("n3",), ("n3",), "n3"),  # drained, and takes messages
        ("n3", ("n2",), ("n3",), ("n2",), ""),
        ("n2", ("n2", "n3"), ("n2",), ("n3",), "n3"),
        ("n1", ("n1",), (), ("n2", "n3"), ""),  # the record names it
    ],
)
def test_a_node_with_a_full_disk_lets_others_go_first(
    node: str,
    full: tuple[str, ...],
    drained: tuple[str, ...],
    able: tuple[str, ...],
    expected: str,
) -> None:
    three = joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=13)
    assert goes_first(three, node, drained=drained, full=full, able=able) == expected


def test_a_node_with_a_full_disk_takes_over_only_if_no_other_can() -> None:
    three = joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=13)
    behind = {"n2": 0, "n3": 50}
    assert successor(three, 7, "", behind, full={"n2"}) == "n3"
    assert successor(three, 7, "", {"n2": 0}, full={"n2"}) == "n2"
    assert successor(three, 7, "", behind, drained=("n3",), full={"n2"}) == "n3"
    assert successor(three, 7, "n2", behind, full={"n1", "n2"}) == "n2"
    with pytest.raises(ChangeRefused, match="'n2' cannot take over, it refuses messages, its disk"):
        successor(three, 7, "n2", behind, full={"n2"})


def test_a_drained_node_takes_over_only_from_a_master_that_has_no_other() -> None:
    three = joined(STATE, 7, Candidate("b1", "n3", 13), incarnation_now=13)
    behind = {"n2": 0, "n3": 50}
    assert successor(three, 7, "", behind, drained=("n2",)) == "n3"
    assert successor(three, 7, "", {"n2": 0}, drained=("n2",)) == "n2"
    with pytest.raises(ChangeRefused, match="'n2' cannot take over, it is drained"):
        successor(three, 7, "n2", behind, drained=("n2",))


def test_an_operator_names_a_node_outside_of_the_set() -> None:
    """Nobody of the old set can lead any more; the node claims the group as any other one does."""
    named = named_uncleanly(STATE, Candidate("b1", "n3", 30, "d3"), able=())
    assert (named.epoch, named.master, named.insync, named.unclean) == (8, "n3", ("n3",), True)
    assert (named.incarnations, named.directories) == ({}, {"n3": "d3"})
    for old in ("n1", "n2"):
        with pytest.raises(MastershipRefused, match="is not in sync"):
            elected(named, Candidate("b1", old, 20), master_is_alive=False)
    leads = elected(named, Candidate("b1", "n3", 30, "d3"), master_is_alive=True)
    assert (leads.epoch, leads.incarnations, leads.unclean) == (9, {"n3": 30}, False)


def test_no_operator_names_a_node_while_one_in_sync_can_lead() -> None:
    with pytest.raises(MastershipRefused, match="n2 of group 'b1' is in sync and registered"):
        named_uncleanly(STATE, Candidate("b1", "n3", 30), able=("n2",))
