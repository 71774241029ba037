//! Locks as a client meets them: answers, retries, and who gets which.

use expect_test::expect;
use lockstep_wire::FencingToken;
use lockstep_wire::request::Request;

use super::asking::{acquire, cancel, release, token};
use super::rig::Rig;

const NAME: &[&str] = &["/ls/a/b"];

#[test]
fn a_lock_is_granted_tried_queued_cancelled_released_and_timed_out() {
    let mut rig = Rig::serving(3);
    let (a, b) = (rig.connect(rig.leader()), rig.connect(rig.leader()));
    let (one, two) = (rig.open(a, 1, 60_000), rig.open(b, 2, 60_000));
    let granted = rig.call(a, acquire(one, 1, NAME, 0));
    let first = token(&granted[0]);
    rig.ask(b, acquire(two, 1, NAME, 0));
    rig.ask(b, acquire(two, 2, NAME, 60_000));
    rig.ask(b, acquire(two, 3, NAME, 300));
    rig.ask(b, cancel(two, 4, 2));
    rig.advance(299);
    rig.ask(b, Request::GetLock { name: NAME[0] });
    rig.advance(60);
    rig.ask(b, acquire(two, 5, NAME, 60_000));
    rig.ask(a, release(one, 2, 1, NAME[0], first + 1));
    rig.ask(a, release(one, 3, 1, NAME[0], first));
    rig.ask(a, Request::CheckToken { name: NAME[0], token: FencingToken(first), session: one });
    expect![[r#"
        TIMED_OUT
        QUEUED 1
        QUEUED 2
        CANCELLED
        OK
        OK held by: 2, waiting: 3
        TIMED_OUT
        QUEUED 1
        OK token 12 holders 1"#]]
    .assert_eq(&rig.told(b).join("\n"));
    expect![[r#"
        STALE_TOKEN
        OK
        OK current false latest 12 floor 0"#]]
    .assert_eq(&rig.told(a).join("\n"));
    assert_eq!(rig.unanswered(), 0);
}

#[test]
fn a_request_sent_again_on_one_connection_has_one_outcome_and_two_answers() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 60_000);
    rig.say(a, acquire(session, 1, NAME, 0));
    rig.say(a, acquire(session, 1, NAME, 0));
    rig.settle();
    let told = rig.told(a);
    assert_eq!(told[0], "OUTCOME_UNKNOWN (sent again under another number, which will be answered)");
    let first = token(&told[1]);
    assert_eq!(rig.call(a, acquire(session, 1, NAME, 0)), [format!("OK token {first} holders 1")]);
    assert_eq!(rig.unanswered(), 0);
}

#[test]
fn another_request_under_the_same_id_is_not_given_the_answer_to_the_first() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 60_000);
    rig.say(a, acquire(session, 1, NAME, 0));
    rig.say(a, acquire(session, 1, &["/ls/a/other"], 0));
    rig.settle();
    assert_eq!(rig.told(a)[1..], ["INVALID (request_id)"]);
}

#[test]
fn a_hold_that_has_ended_is_lost_on_replay() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let session = rig.open(a, 1, 60_000);
    let granted = rig.call(a, acquire(session, 1, NAME, 0));
    let first = token(&granted[0]);
    rig.ask(a, release(session, 2, 1, NAME[0], first));
    rig.told(a);
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.ask(a, release(session, 2, 1, NAME[0], first));
    assert_eq!(rig.told(a), [format!("LOST token {first} released"), "OK".to_owned()]);
}

#[test]
fn a_grant_that_finds_no_connection_is_there_when_its_session_comes_back() {
    let mut rig = Rig::serving(1);
    let (a, b) = (rig.connect(1), rig.connect(1));
    let (holder, waiter) = (rig.open(a, 1, 60_000), rig.open(b, 2, 60_000));
    let first = token(&rig.call(a, acquire(holder, 1, NAME, 0))[0]);
    rig.ask(b, acquire(waiter, 1, NAME, 60_000));
    rig.disconnect(b);
    rig.ask(a, release(holder, 2, 1, NAME[0], first));
    let c = rig.connect(1);
    assert_eq!(rig.attach(c, waiter, 2), [format!("attached: {waiter} OK ttl 60000 next 2")]);
    let told = rig.call(c, acquire(waiter, 1, NAME, 60_000));
    assert!(token(&told[0]) > first);
}

#[test]
fn a_wait_sent_again_ends_at_the_earlier_of_its_deadlines() {
    let mut rig = Rig::serving(1);
    let (a, b) = (rig.connect(1), rig.connect(1));
    let (holder, waiter) = (rig.open(a, 1, 60_000), rig.open(b, 2, 60_000));
    rig.ask(a, acquire(holder, 1, NAME, 0));
    rig.ask(b, acquire(waiter, 1, NAME, 1_000));
    rig.advance(500);
    rig.ask(b, acquire(waiter, 1, NAME, 5_000));
    rig.advance(400);
    assert_eq!(rig.told(b).last().unwrap(), "QUEUED 1");
    rig.advance(200);
    assert_eq!(rig.told(b), ["TIMED_OUT"]);
}

#[test]
fn waits_that_run_out_together_end_in_slices_without_a_pause() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let holder = rig.open(a, 1, 60_000);
    rig.ask(a, acquire(holder, 1, NAME, 0));
    for client in 0..20 {
        let session = rig.open(a, 100 + client, 60_000);
        for request in 1..=60 {
            rig.say(a, acquire(session, request, NAME, 500));
        }
        rig.settle();
    }
    rig.advance(499);
    rig.told(a);
    rig.advance(51);
    let told = rig.told(a);
    assert_eq!(told.iter().filter(|line| *line == "TIMED_OUT").count(), 1_200);
    assert_eq!(rig.unanswered(), 0);
}

/// Waiters that beat are as good after ten minutes as after one second, whoever lines up behind them.
#[test]
fn live_waiters_of_ten_minutes_are_granted_in_order_and_a_late_arrival_prunes_nobody() {
    let mut rig = Rig::serving(1);
    let clients: Vec<_> = (1..=6)
        .map(|number| {
            let connection = rig.connect(1);
            (connection, rig.open(connection, number, 10_000))
        })
        .collect();
    let (last, early) = clients.split_last().unwrap();
    for (connection, session) in early {
        rig.ask(*connection, acquire(*session, 1, NAME, 3_600_000));
    }
    rig.advance_beating(600_000, 3_000, &clients);
    rig.advance(10);
    rig.ask(last.0, acquire(last.1, 1, NAME, 3_600_000));
    for (at, (connection, session)) in clients.iter().enumerate() {
        let told = rig.told(*connection);
        let granted = told.iter().find(|line| line.starts_with("OK token"));
        let granted = granted.unwrap_or_else(|| panic!("client {at} is next and was told {told:?}"));
        let later: Vec<_> = clients[at + 1..].iter().map(|(later, _)| rig.told(*later)).collect();
        assert!(later.iter().flatten().all(|line| !line.starts_with("OK token")), "{later:?}");
        rig.ask(*connection, release(*session, 2, 1, NAME[0], token(granted)));
    }
    assert_eq!(rig.unanswered(), 0);
}
