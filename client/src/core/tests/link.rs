//! Which member the core talks to, and what it sends again.

use lockstep_wire::Status;
use lockstep_wire::reply::Event as Told;
use lockstep_wire::request::kind;

use super::*;

#[test]
fn a_hundred_sessions_live_through_an_election_of_three_seconds() {
    let mut rig = Rig::new();
    let keys: Vec<SessionKey> = (0..100).map(|_| rig.open(10_000)).collect();
    let calls: Vec<CallId> =
        keys.iter().zip(0..).map(|(key, number)| rig.hold(*key, &format!("{NAME}{number}"))).collect();
    rig.pass_ms(3_000);
    rig.is_refusing = true;
    rig.cut();
    rig.pass_ms(1_500);
    rig.is_refusing = false;
    rig.cell.leader_is = Some(String::new());
    rig.pass_ms(1_500);
    rig.cell.leader_is = None;
    rig.pass_ms(30_000);
    assert!(calls.iter().all(|call| rig.is_held(*call)));
    assert_eq!(rig.losses(), []);
    assert!(keys.iter().all(|key| rig.conditions(*key) == [Condition::Safe]));
}

#[test]
fn a_member_that_is_asked_for_itself_is_taken_at_its_word_and_others_are_gone_to() {
    for (is_pinned, wanted) in [(true, Some(Status::WrongCell)), (false, None)] {
        let mut rig = Rig::with(|config| config.is_pinned = is_pinned);
        rig.cell.refusals.push_back((kind::HELLO, Status::WrongCell));
        let call = rig.core.status(rig.now);
        rig.pass_ms(100);
        match rig.outcome(call) {
            Some(Outcome::Failed(Failure::Refused { status, detail })) => {
                assert_eq!((Some(status), detail.as_str()), (wanted, "as told"));
            }
            other => assert!(matches!(other, Some(Outcome::Status(_))) && wanted.is_none(), "{other:?}"),
        }
    }
}

#[test]
fn a_member_that_lost_its_leader_is_left_within_one_try() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let first = rig.tried.last().cloned();
    rig.cell.ignores_beats = true;
    rig.pass_ms(3_334);
    assert_eq!(rig.tried.len(), 1);
    rig.pass_ms(1_000);
    assert!(rig.tried.len() >= 2, "the beat got no answer for a whole try");
    assert_ne!(rig.tried.get(1), first.as_ref());
    rig.cell.ignores_beats = false;
    rig.pass_ms(20_000);
    assert_eq!(rig.conditions(key), [Condition::Safe]);
}

/// Whoever left it would find no better one, and would have to attach anew behind everything that waits.
#[test]
fn a_leader_whose_disks_are_slow_is_not_left_as_long_as_it_answers_beats() {
    let mut rig = Rig::new();
    let key = rig.open(3_000);
    let held = rig.hold(key, NAME);
    rig.cell.is_slow = true;
    let release = rig.core.release(held, rig.now);
    rig.pass_ms(8_000);
    assert_eq!(rig.tried.len(), 1);
    assert_eq!(rig.conditions(key), [Condition::Safe]);
    rig.cell.speed_up();
    rig.pass_ms(1);
    assert_eq!(rig.outcome(release), Some(Outcome::Released));
}

#[test]
fn a_leader_that_confirms_nobody_for_a_while_is_not_left_and_asked_less_and_less_often() {
    let mut rig = Rig::new();
    let key = rig.open(3_000);
    rig.cell.is_slow = true;
    rig.cell.confirms_nobody = true;
    rig.acquire(key, NAME, 0);
    rig.pass_ms(2_500);
    assert_eq!(rig.tried.len(), 1);
    let asked = rig.cell.heard.iter().filter(|heard| heard.starts_with("KeepAlive")).count();
    assert!((4..=9).contains(&asked), "{asked} beats");
    rig.cell.confirms_nobody = false;
    rig.pass_ms(450);
    assert_eq!(rig.conditions(key), [Condition::Safe]);
}

#[test]
fn a_leader_that_answers_neither_a_call_nor_a_beat_is_left_within_one_try() {
    let mut rig = Rig::new();
    let key = rig.open(3_000);
    rig.cell.is_slow = true;
    rig.cell.ignores_beats = true;
    rig.acquire(key, NAME, 0);
    rig.pass_ms(749);
    assert_eq!(rig.tried.len(), 1);
    rig.pass_ms(2);
    assert_eq!(rig.tried.len(), 2, "a quarter of the TTL is a try");
}

#[test]
fn a_member_that_says_it_has_no_leader_is_left_at_once() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    rig.cell.refusals.push_back((kind::KEEP_ALIVE, Status::NotLeader));
    rig.pass_ms(3_400);
    assert_eq!(rig.tried.len(), 2);
    assert_eq!(rig.conditions(key), [Condition::Safe]);
}

#[test]
fn a_hint_is_followed_at_once_but_not_for_ever() {
    let mut rig = Rig::new();
    rig.cell.leader_is = Some("leader:1".to_owned());
    rig.core.open_session(10_000, Nonce([1; 16]), rig.now);
    let steps = (0..40).take_while(|_| rig.step()).count();
    assert!(steps < 40, "hints that lead nowhere end in a pause");
    assert_eq!(rig.tried[1], "leader:1");
    rig.cell.leader_is = None;
    rig.pass_ms(100);
    assert_eq!(rig.cell.session_ids().len(), 1);
}

#[test]
fn tries_that_fail_are_paced() {
    let mut rig = Rig::new();
    rig.is_refusing = true;
    rig.core.open_session(10_000, Nonce([1; 16]), rig.now);
    rig.pass_ms(9_000);
    let tries = rig.tried.len();
    assert!((10..60).contains(&tries), "{tries} tries in nine seconds");
    let in_turn: std::collections::BTreeSet<&String> = rig.tried[..3].iter().collect();
    assert_eq!(in_turn.len(), 3, "every member is tried");
}

#[test]
fn a_member_that_accepts_connections_and_confirms_nothing_is_not_hammered() {
    let mut rig = Rig::new();
    rig.cell.leader_is = Some(String::new());
    rig.core.open_session(60_000, Nonce([1; 16]), rig.now);
    rig.pass_ms(9_000);
    assert!(rig.tried.len() < 60, "{} tries", rig.tried.len());
}

#[test]
fn a_member_that_shuts_down_is_left_at_once() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    let connection = rig.connection.unwrap();
    let told = Told::ShuttingDown { leader: lockstep_wire::NodeId(2), leader_address: "next:1" };
    rig.cell.tell(connection.0, &told);
    rig.settle();
    assert_eq!(rig.tried.last().map(String::as_str), Some("next:1"));
    assert!(rig.is_held(call));
}

#[test]
fn a_lost_reply_is_asked_for_again_under_the_same_request_id() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.acquire(key, NAME, 1_000);
    while rig.cell.holder(NAME).is_none() {
        assert!(rig.step());
    }
    // The acquire has run, and its reply is lost with the connection.
    rig.cut();
    rig.settle();
    let Some(Outcome::Granted(grant)) = rig.outcome(call) else { panic!("{:?}", rig.outcome(call)) };
    assert_eq!(Some(grant.token), rig.cell.holder(NAME).map(|claim| claim.token));
    let release = rig.core.release(call, rig.now);
    while rig.cell.holder(NAME).is_some() {
        assert!(rig.step());
    }
    rig.cut();
    rig.settle();
    assert_eq!(rig.outcome(release), Some(Outcome::Released));
    assert!(rig.cell.runs.values().all(|runs| *runs == 1), "{:?}", rig.cell.runs);
}

#[test]
fn an_unknown_outcome_is_asked_for_again_under_the_same_request_id() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    for status in [Status::OutcomeUnknown, Status::Overloaded, Status::NotLeader, Status::NotAttached] {
        rig.cell.refusals.push_back((kind::ACQUIRE, status));
    }
    let call = rig.acquire(key, NAME, 1_000);
    rig.pass_ms(2_000);
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted(_))));
    assert_eq!(rig.cell.heard.iter().filter(|heard| *heard == "Acquire 1").count(), 1);
}

#[test]
fn a_call_that_nobody_can_carry_out_says_that_it_was_not_executed_and_why() {
    let mut rig = Rig::new();
    rig.is_refusing = true;
    let call = rig.core.get_lock(NAME, rig.now);
    rig.pass_ms(10_000);
    let Some(Outcome::Failed(Failure::NotExecuted { trouble })) = rig.outcome(call) else {
        panic!("{:?}", rig.outcome(call))
    };
    assert!(trouble.ends_with(":1: connection refused"), "{trouble}");
    assert!(rig.core.is_idle());
}

#[test]
fn full_disks_are_waited_for_a_while_and_then_told() {
    let mut rig = Rig::new();
    let key = rig.open(60_000);
    let full = |rig: &mut Rig, kind, times| {
        rig.cell.refusals.extend(std::iter::repeat_n((kind, Status::NoSpace), times));
    };
    full(&mut rig, kind::ACQUIRE, 2);
    let call = rig.acquire(key, NAME, 60_000);
    rig.pass_ms(2_000);
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted(_))));

    full(&mut rig, kind::ACQUIRE, 1_000);
    let call = rig.acquire(key, "/ls/a/c", 60_000);
    rig.pass_ms(2_900);
    assert_eq!(rig.outcome(call), None);
    rig.pass_ms(500);
    assert_eq!(
        rig.outcome(call),
        Some(Outcome::Failed(Failure::NoSpace)),
        "however long it would wait in line"
    );
    rig.cell.refusals.clear();
    rig.pass_ms(1_000);
    assert_eq!(rig.cell.holder("/ls/a/c"), None);
    assert_eq!(rig.core.outstanding_total(), 0, "its number is used up");
    let call = rig.acquire(key, "/ls/a/c", 0);
    rig.pass_ms(1_000);
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted(_))));

    full(&mut rig, kind::OPEN_SESSION, 1_000);
    let (_, opening) = rig.core.open_session(10_000, Nonce([251; 16]), rig.now);
    rig.pass_ms(3_500);
    assert_eq!(rig.outcome(opening), Some(Outcome::Failed(Failure::NoSpace)));
}

#[test]
fn an_acquire_whose_reply_never_comes_says_that_its_outcome_is_unknown_and_is_withdrawn() {
    let mut rig = Rig::new();
    let key = rig.open(60_000);
    let call = rig.acquire(key, NAME, 0);
    while rig.cell.holder(NAME).is_none() {
        assert!(rig.step());
    }
    rig.is_refusing = true;
    rig.cut();
    rig.pass_ms(10_000);
    let outcome = rig.outcome(call);
    assert!(matches!(outcome, Some(Outcome::Failed(Failure::OutcomeUnknown { .. }))), "{outcome:?}");
    rig.is_refusing = false;
    rig.pass_ms(5_000);
    assert_eq!(rig.cell.holder(NAME), None);
}

#[test]
fn bytes_that_are_no_frames_close_the_connection() {
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], &[0; 64], &[0xff; 64]] {
        let mut rig = Rig::new();
        let key = rig.open(10_000);
        let call = rig.hold(key, NAME);
        let connection = rig.connection.unwrap();
        rig.core.on_bytes(connection, bytes, rig.now);
        rig.pull();
        assert_ne!(rig.connection, Some(connection));
        rig.settle();
        assert!(rig.is_held(call));
    }
}

#[test]
fn another_cluster_on_a_known_address_is_not_talked_to() {
    let mut rig = Rig::with(|config| config.cluster = lockstep_wire::ClusterId([1; 16]));
    let call = rig.core.get_lock(NAME, rig.now);
    while let Some((connection, _)) = {
        rig.pull();
        rig.wanted.pop_front()
    } {
        rig.connection = Some(connection);
        rig.core.on_connected(connection, rig.now);
        rig.pull();
        // The fake checks the cluster, so it is answered by hand.
        let mut out = Vec::new();
        let head = lockstep_wire::frame::Head {
            kind: kind::HELLO | kind::REPLY,
            cell: CELL,
            correlation: lockstep_wire::Correlation(1),
        };
        let reply = lockstep_wire::hello::HelloReply {
            status: Status::Ok,
            detail: "",
            protocol: 1,
            node: lockstep_wire::NodeId(1),
            cluster: crate::fake::CLUSTER,
            incarnation: lockstep_wire::Incarnation::default(),
            ttl_ms_min: 0,
            ttl_ms_max: 0,
            leader: lockstep_wire::NodeId(1),
            leader_address: "",
        };
        lockstep_wire::frame::encode(&mut out, head, |out| reply.put(out));
        rig.to_cell.clear();
        rig.core.on_bytes(connection, &out, rig.now);
    }
    rig.connection = None;
    assert!(rig.core.trouble().contains("belongs to cluster 0909"), "{}", rig.core.trouble());
    assert_eq!(rig.outcome(call), None);
}

#[test]
fn a_session_that_its_member_forgot_is_attached_again_though_a_beat_was_under_way() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    while rig.to_cell.is_empty() {
        rig.now = rig.core.deadline().unwrap();
        rig.core.on_tick(rig.now);
        rig.pull();
    }
    let call = rig.acquire(key, NAME, 0);
    rig.pull();
    // A leader that lost its office and got it back; a beat's answer takes a round, a refusal none.
    rig.cell.disconnect(rig.connection.unwrap().0);
    rig.to_cell.swap(0, 1);
    rig.pass_ms(1_000);
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted(_))), "{:?}", rig.outcome(call));
    rig.pass_ms(30_000);
    assert_eq!(rig.conditions(key), [Condition::Safe]);
    assert_eq!(rig.tried.len(), 1);
}
