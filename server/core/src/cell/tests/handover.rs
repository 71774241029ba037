//! A hand-over that an operator asks for.

use lockstep_wire::NodeId;
use lockstep_wire::request::Request;

use super::asking::{acquire, token};
use super::rig::Rig;

const NAME: &[&str] = &["/ls/a/b"];

fn transfer(to: u16) -> Request<'static> {
    Request::TransferLeader { to: NodeId(to) }
}

#[test]
fn the_member_that_was_asked_for_leads_and_whoever_asked_is_told() {
    let mut rig = Rig::serving(5);
    let old = rig.leader();
    let to = if old == 4 { 5 } else { 4 };
    let a = rig.connect(old);
    let session = rig.open(a, 1, 10_000);
    let first = token(&rig.call(a, acquire(session, 1, NAME, 0))[0]);
    assert_eq!(rig.call(a, transfer(to)), [format!("OK leader {to} term 2")]);
    assert_eq!(rig.leader(), to);
    // Nobody's hold or session is touched by it.
    let b = rig.connect(to);
    rig.attach(b, session, 1);
    assert_eq!(rig.call(b, acquire(session, 1, NAME, 0)), [format!("OK token {first} holders 1")]);
    // And without a wish, to somebody else.
    let told = rig.call(b, transfer(0));
    assert!(told[0].starts_with("OK leader ") && told[0].ends_with(" term 3"), "{told:?}");
    assert_ne!(rig.leader(), to);
}

#[test]
fn what_cannot_be_is_refused_at_once_and_changes_nothing() {
    let mut rig = Rig::serving(3);
    let (leader, follower) = (rig.leader(), rig.follower());
    let a = rig.connect(leader);
    assert_eq!(rig.call(a, transfer(9)), ["INVALID (node 9 is no member of this cell)"]);
    assert_eq!(rig.call(a, transfer(leader)), [format!("INVALID (node {leader} leads already)")]);
    let b = rig.connect(follower);
    let hint = format!("NOT_LEADER ask node {leader} at node{leader}:4600");
    assert_eq!(rig.call(b, transfer(leader)), [hint]);
    rig.crash(follower);
    let refused = format!("NO_QUORUM (node {follower} is not heard by node {leader}; start it first)");
    assert_eq!(rig.call(a, transfer(follower)), [refused]);
    assert_eq!(rig.leader(), leader);
    let mut alone = Rig::serving(1);
    let c = alone.connect(1);
    assert!(alone.call(c, transfer(0))[0].starts_with("NO_QUORUM (no other member is heard"));
    assert_eq!(alone.unanswered(), 0);
}

/// The member is linked and nothing gets through to it; reads go on meanwhile, writes are refused as not executed.
#[test]
fn a_hand_over_to_a_member_that_hears_nothing_ends_within_an_election_timeout() {
    let mut rig = Rig::serving(3);
    let (leader, to) = (rig.leader(), rig.follower());
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 10_000);
    rig.isolate(to);
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.told(a);
    rig.ask(a, transfer(to));
    assert_eq!(rig.told(a), Vec::<String>::new(), "it is under way");
    assert_eq!(rig.call(a, transfer(0)), ["NO_QUORUM (leadership is moving to another member)"]);
    let refused = rig.call(a, acquire(session, 2, &["/ls/a/c"], 0));
    assert_eq!(refused, ["NO_QUORUM (leadership is moving to another member)"]);
    for _ in 0..4 {
        rig.advance(200);
        assert!(rig.call(a, Request::GetLock { name: NAME[0] })[0].starts_with("OK held by"), "reads go on");
    }
    rig.advance(200);
    assert_eq!(rig.told(a), [format!("NO_QUORUM (node {to} did not catch up within an election timeout)")]);
    assert_eq!(rig.leader(), leader);
    assert!(rig.call(a, acquire(session, 2, &["/ls/a/c"], 0))[0].starts_with("OK token"), "writes resume");
    rig.heal();
    rig.advance(1_000);
    let told = rig.call(a, transfer(to));
    assert!(told[0].starts_with(&format!("OK leader {to} term")), "a later one works: {told:?}");
}

/// Nothing says that its link is gone, and the log of the cell rests.
#[test]
fn a_member_that_is_silent_for_an_election_timeout_takes_nothing_over() {
    let mut rig = Rig::serving(3);
    let (leader, still) = (rig.leader(), rig.follower());
    let other = 6 - leader - still;
    let a = rig.connect(leader);
    rig.isolate(still);
    rig.advance(1_500);
    let refused = format!("NO_QUORUM (node {still} is not heard by node {leader}; start it first)");
    assert_eq!(rig.call(a, transfer(still)), [refused]);
    let told = rig.call(a, transfer(0));
    assert!(told[0].starts_with(&format!("OK leader {other} term")), "{told:?}");
}

/// It may have heard, and campaign when it pleases.
#[test]
fn a_hand_over_that_was_told_and_not_taken_is_of_unknown_outcome() {
    let mut rig = Rig::serving(3);
    let (leader, to) = (rig.leader(), rig.follower());
    let a = rig.connect(leader);
    rig.isolate(to);
    rig.ask(a, transfer(to));
    rig.advance(1_000);
    let wanted = format!("OUTCOME_UNKNOWN (node {to} was told to take over and is not known to lead yet)");
    assert_eq!(rig.told(a), [wanted]);
    assert_eq!(rig.leader(), leader);
}

/// A majority is out of reach, so that nobody follows, and nobody hears who leads.
#[test]
fn a_leader_that_loses_its_office_meanwhile_says_so() {
    let mut rig = Rig::serving(3);
    let (leader, to) = (rig.leader(), rig.follower());
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 10_000);
    rig.isolate(leader);
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.advance(300);
    rig.ask(a, transfer(to));
    rig.advance(2_500);
    let told = rig.told(a);
    let wanted = format!("NO_QUORUM (this node lost its office before node {to} was told to take over)");
    assert!(told.contains(&wanted), "{told:?}");
    assert_eq!(rig.unanswered(), 0);
}

/// Its disks keep it from being deposed while it is asked.
#[test]
fn a_leader_that_stops_takes_no_other_wish() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let a = rig.connect(leader);
    (1..=3).for_each(|node| rig.hold_disk(node));
    rig.step(leader, crate::Input::Stop);
    assert!(rig.call(a, transfer(0))[0].starts_with("SHUTTING_DOWN"));
}
