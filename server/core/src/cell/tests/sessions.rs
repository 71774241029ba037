//! Sessions: opened, attached, kept alive, closed.

use expect_test::expect;
use lockstep_wire::request::Request;
use lockstep_wire::{Rows, SessionId};

use super::asking::{acquire, open, release};
use super::rig::Rig;

const NAME: &[&str] = &["/ls/a/b"];

#[test]
fn a_session_is_opened_once_attached_anywhere_and_closed_once() {
    let mut rig = Rig::serving(1);
    let (a, b) = (rig.connect(1), rig.connect(1));
    rig.ask(a, open(1, 5_000));
    rig.ask(a, open(1, 5_000));
    let session = SessionId(2);
    rig.beat(a, session);
    rig.beat(b, session);
    rig.advance(10);
    rig.say_attach(b, session, 2);
    rig.say_attach(b, session, 1);
    rig.settle();
    rig.beat(a, session);
    rig.advance(10);
    rig.ask(b, acquire(session, 1, NAME, 0));
    rig.ask(b, Request::CloseSession { session });
    rig.ask(b, Request::CloseSession { session });
    rig.advance(10);
    expect![[r#"
        OK session 2 ttl 5000 next 1
        OK session 2 ttl 5000 next 1
        alive: 2 OK
        alive: 2 NOT_ATTACHED"#]]
    .assert_eq(&rig.told(a).join("\n"));
    expect![[r#"
        alive: 2 NOT_ATTACHED
        attached: 2 DENIED
        attached: 2 OK ttl 5000 next 1
        OK token 4 holders 1
        OK released 1
        SESSION_EXPIRED"#]]
    .assert_eq(&rig.told(b).join("\n"));
    assert_eq!(rig.unanswered(), 0);
}

#[test]
fn a_session_closed_twice_in_one_breath_is_answered_twice() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 5_000);
    rig.say(a, Request::CloseSession { session });
    rig.say(a, Request::CloseSession { session });
    rig.say_beat(a, session);
    rig.settle();
    rig.advance(10);
    let mut told = rig.told(a);
    told.sort();
    assert_eq!(told, ["OK released 0", "SESSION_EXPIRED", "alive:"]);
    assert_eq!(rig.count(rig.leader(), "end closed"), 1);
}

#[test]
fn nothing_is_acknowledged_once_the_end_of_the_session_is_appended() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 5_000);
    rig.is_bulk_cut = true;
    rig.ask(a, Request::CloseSession { session });
    rig.beat(a, session);
    rig.advance(20);
    assert_eq!(rig.told(a), ["alive:"], "a session whose end is on its way has no row");
    rig.is_bulk_cut = false;
    rig.advance(600);
    assert_eq!(rig.told(a), ["OK released 0"]);
}

#[test]
fn a_close_that_comes_before_its_leader_serves_dooms_the_session_too() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 10_000);
    rig.advance(100);
    let old = rig.leader();
    rig.isolate(old);
    rig.is_bulk_cut = true;
    let leads = |rig: &Rig, node: u16| node != old && rig.cell(node).raft().is_leader();
    rig.advance_until(5_000, |rig| (1..=3).any(|node| leads(rig, node)));
    let new = (1..=3).find(|node| leads(&rig, *node)).unwrap();
    let third = 6 - old - new;
    let b = rig.connect(new);
    rig.say_attach(b, session, 1);
    rig.ask(b, Request::CloseSession { session });
    // The blank entry commits, and the end of the session, which is behind it, does not.
    rig.hold_disk(third);
    rig.is_bulk_cut = false;
    rig.advance_until(2_000, |rig| rig.log(third).last().unwrap() == "end closed 1");
    rig.confirm_all_but(third, 1);
    assert!(rig.cell(new).raft().is_serving());
    rig.beat(b, session);
    rig.advance(20);
    assert_eq!(rig.told(b), [format!("attached: {session} OUTCOME_UNKNOWN"), "alive:".to_owned()]);
    rig.release_disk(third);
    assert_eq!(rig.told(b), ["OK released 0"]);
}

#[test]
fn the_end_of_a_session_is_told_to_its_connection_and_answers_what_it_has_outstanding() {
    let mut rig = Rig::serving(1);
    let (a, b) = (rig.connect(1), rig.connect(1));
    let holder = rig.open(a, 1, 60_000);
    rig.ask(a, acquire(holder, 1, NAME, 0));
    let waiter = rig.open(b, 2, 1_000);
    rig.ask(b, acquire(waiter, 1, NAME, 50_000));
    rig.told(b);
    rig.advance(1_300);
    assert_eq!(rig.told(b), ["SESSION_EXPIRED (expired)", &format!("event: session {waiter} expired")]);
    // The lock passes it by (a waiter whose lease is over gets nothing).
    let c = rig.connect(1);
    let next = rig.open(c, 3, 60_000);
    rig.ask(c, acquire(next, 1, NAME, 50_000));
    rig.told(a);
    rig.ask(a, release(holder, 2, 1, NAME[0], 3));
    assert_eq!(rig.told(a), ["OK"]);
    assert!(rig.told(c).last().unwrap().starts_with("OK token"), "the next live waiter is granted at once");
    assert_eq!(rig.unanswered(), 0);
}

#[test]
fn a_slot_that_is_used_again_is_not_untied_by_the_connection_of_its_former_session() {
    let mut rig = Rig::serving(1);
    let (a, b) = (rig.connect(1), rig.connect(1));
    let former = rig.open(a, 1, 5_000);
    rig.ask(a, Request::CloseSession { session: former });
    let session = rig.open(b, 2, 5_000);
    rig.disconnect(a);
    rig.beat(b, session);
    rig.advance(10);
    assert_eq!(rig.told(b), [format!("alive: {session} OK")]);
}

#[test]
fn the_newest_attachment_wins_although_an_older_one_is_answered_later() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let b = rig.connect(rig.leader());
    let session = rig.open(a, 1, 5_000);
    let followers: Vec<u16> = (1..=3).filter(|node| *node != rig.leader()).collect();
    followers.iter().for_each(|node| rig.hold_disk(*node));
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.say_attach(a, session, 1);
    rig.settle();
    rig.say_attach(b, session, 1);
    rig.ask(b, acquire(session, 2, &["/ls/a/c"], 0));
    // The older attach can be answered now, and the newer one has an acquire on its way.
    rig.confirm_all_but(followers[0], 1);
    assert!(rig.told(a).last().unwrap().starts_with("attached"));
    followers.iter().for_each(|node| rig.release_disk(*node));
    rig.advance(100);
    assert_eq!(rig.unanswered(), 0);
    let told = rig.told(b).join(", ");
    assert!(told.contains("next 2") && told.contains("OK token"), "{told}");
    rig.beat(a, session);
    rig.beat(b, session);
    rig.advance(10);
    assert_eq!(rig.told(b), [format!("alive: {session} OK")]);
    assert!(rig.told(a).contains(&format!("alive: {session} NOT_ATTACHED")));
}

#[test]
fn a_session_that_moves_gets_every_answer_where_it_asks_again() {
    let mut rig = Rig::serving(1);
    let (a, b, c) = (rig.connect(1), rig.connect(1), rig.connect(1));
    let holder = rig.open(c, 9, 60_000);
    rig.ask(c, acquire(holder, 1, NAME, 0));
    let session = rig.open(a, 1, 60_000);
    rig.ask(a, acquire(session, 1, NAME, 50_000));
    rig.attach(b, session, 1);
    rig.ask(b, acquire(session, 1, NAME, 50_000));
    rig.told(c);
    rig.ask(c, release(holder, 2, 1, NAME[0], 3));
    expect![[r#"
        QUEUED 1
        OUTCOME_UNKNOWN (the session is attached elsewhere; ask there with the same request id)"#]]
    .assert_eq(&rig.told(a).join("\n"));
    expect![[r#"
        QUEUED 1
        OK token 7 holders 1"#]]
    .assert_eq(&rig.told(b).join("\n"));
}

#[test]
fn an_attachment_that_overtakes_an_open_is_not_taken_back_by_it() {
    let mut rig = Rig::serving(3);
    let (a, b) = (rig.connect(rig.leader()), rig.connect(rig.leader()));
    let session = rig.open(a, 1, 5_000);
    rig.say(a, open(1, 5_000));
    rig.say_attach(b, session, 1);
    rig.settle();
    rig.beat(b, session);
    rig.advance(10);
    assert!(rig.told(b).contains(&format!("alive: {session} OK")));
}

#[test]
fn strangers_learn_nothing_and_change_nothing() {
    let mut rig = Rig::serving(1);
    let (a, b) = (rig.connect(1), rig.connect(1));
    let session = rig.open(a, 1, 60_000);
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.open(b, 2, 60_000);
    rig.say(b, release(session, 2, 1, NAME[0], 3));
    rig.say(b, acquire(session, 2, NAME, 0));
    rig.say(b, Request::CloseSession { session });
    rig.say_attach(b, session, 2);
    rig.beat(b, session);
    rig.beat(b, SessionId(1 << 40));
    rig.advance(10);
    expect![[r#"
        NOT_ATTACHED (the session is not attached to this connection)
        NOT_ATTACHED (the session is not attached to this connection)
        NOT_ATTACHED (the session is not attached to this connection)
        alive: 2 NOT_ATTACHED
        attached: 2 DENIED
        alive: 1099511627776 SESSION_UNKNOWN"#]]
    .assert_eq(&rig.told(b).join("\n"));
    let told = rig.call(b, Request::GetLock { name: NAME[0] });
    assert_eq!(told, [format!("OK held by: {session}, waiting:")]);
}

#[test]
fn a_beat_is_acknowledged_once_however_often_it_is_sent_before_its_answer() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 5_000);
    rig.say(a, Request::KeepAlive(Rows::Slice(&[session, session])));
    rig.say_beat(a, session);
    rig.settle();
    rig.advance(10);
    assert_eq!(rig.told(a), [format!("alive: {session} OK"), "alive:".to_owned()]);
}
