//! What a busy, cut-off or badly asked replica answers (ARCHITECTURE section 6.2).

use expect_test::expect;
use lockstep_wire::DecodeError;
use lockstep_wire::frame::Head;
use lockstep_wire::request::{Request, kind};
use lockstep_wire::{CellId, Correlation};

use super::asking::{acquire, cancel, open, release, token};
use super::rig::{CELL, Rig};
use crate::Input;

const NAME: &[&str] = &["/ls/a/b"];

#[test]
fn under_load_new_sessions_go_first_then_acquires_then_releases_and_beats_never() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 60_000);
    let first = token(&rig.call(a, acquire(session, 1, NAME, 0))[0]);
    rig.is_bulk_cut = true;
    let mut request = 1;
    let mut fill = |rig: &mut Rig, upto: u64| {
        while rig.cell(leader).backlog() < upto {
            request += 1;
            assert!(request < 2 * 32_768, "each of them is an entry");
            rig.say(a, cancel(session, request, request - 1));
        }
        rig.settle();
        rig.told(a);
        request
    };
    fill(&mut rig, 16_384);
    assert!(rig.call(a, open(2, 5_000))[0].starts_with("OVERLOADED"));
    let next = fill(&mut rig, 32_768) + 1;
    assert!(rig.call(a, acquire(session, next, &["/ls/a/c"], 0))[0].starts_with("OVERLOADED"));
    assert!(rig.call(a, release(session, next, 1, NAME[0], first)).is_empty(), "admitted, and on its way");
    rig.ask(a, Request::GetLock { name: NAME[0] });
    rig.beat(a, session);
    rig.advance(20);
    let told = rig.told(a);
    assert_eq!(told, [format!("OK held by: {session}, waiting:"), format!("alive: {session} OK")]);
}

#[test]
fn beats_are_answered_while_nothing_is_committed_and_an_attach_waits() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let (a, b) = (rig.connect(leader), rig.connect(leader));
    let (one, two) = (rig.open(a, 1, 2_000), rig.open(b, 2, 2_000));
    rig.is_bulk_cut = true;
    rig.ask(a, acquire(one, 1, NAME, 0));
    let c = rig.connect(leader);
    rig.say_attach(c, two, 2);
    rig.settle();
    rig.ask(b, Request::GetLock { name: NAME[0] });
    rig.advance_beating(900, 300, &[(a, one)]);
    rig.advance(10);
    assert!(rig.told(c).is_empty(), "what the old connection sent may still use up request ids");
    assert_eq!(rig.told(b), ["OK held by:, waiting:"]);
    assert_eq!(rig.told(a), vec![format!("alive: {one} OK"); 3]);
}

#[test]
fn a_leader_whose_commits_stall_refuses_what_is_new_and_says_that_it_was_not_done() {
    let mut rig = Rig::serving(3);
    let a = rig.connect(rig.leader());
    let session = rig.open(a, 1, 60_000);
    rig.is_bulk_cut = true;
    rig.ask(a, acquire(session, 1, NAME, 0));
    rig.advance(1_100);
    rig.told(a);
    let told = rig.call(a, acquire(session, 2, NAME, 0));
    assert!(told[0].starts_with("NO_QUORUM"), "{told:?}");
    let entries = rig.count(rig.leader(), "acquire");
    assert_eq!(entries, 1);
    rig.is_bulk_cut = false;
    rig.advance(600);
    assert!(rig.told(a)[0].starts_with("OK token"), "what was on its way is answered");
    assert!(rig.call(a, acquire(session, 2, &["/ls/a/c"], 0))[0].starts_with("OK token"));
}

#[test]
fn what_is_badly_asked_is_refused_in_words_and_never_becomes_an_entry() {
    let mut rig = Rig::serving(3);
    let leader = rig.leader();
    let follower = rig.follower();
    let a = rig.connect(leader);
    let session = rig.open(a, 1, 60_000);
    let entries = rig.log(leader).len();
    for names in [&["job"][..], &["/ls/a/"], &["/ls//b"], &["/ls/a/b", ""], &["/ls/a/\u{7}"]] {
        rig.ask(a, acquire(session, 1, names, 0));
    }
    rig.ask(a, acquire(session, 1, NAME, 86_400_001));
    rig.ask(a, Request::GetLock { name: "" });
    let told = rig.told(a);
    assert!(told.len() == 7 && told.iter().all(|line| line.starts_with("INVALID")), "{told:?}");
    let head = |kind| Head { kind, cell: CELL, correlation: Correlation(1) };
    let errors = [
        (kind::ACQUIRE, Some(DecodeError::Truncated("owner"))),
        (kind::ACQUIRE, Some(DecodeError::Trailing { bytes: 3 })),
        (kind::RELEASE, Some(DecodeError::TooLarge("name"))),
        (kind::GET_LOCK, Some(DecodeError::Invalid("name"))),
        (0x0199, Some(DecodeError::UnknownKind(0x0199))),
        (0x8110, Some(DecodeError::UnknownKind(0x8110))),
        (kind::STATUS, None),
    ];
    let told = [leader, follower].map(|node| {
        let b = rig.connect(node);
        for (kind, error) in errors {
            let head = if error.is_some() { head(kind) } else { Head { cell: CellId(4), ..head(kind) } };
            rig.hear_malformed(b, head, error);
        }
        rig.told(b).join("\n")
    });
    assert_eq!(told[0], told[1]);
    expect![[r#"
        INVALID (the message ends inside `owner`)
        INVALID (3 bytes are left over behind the message)
        INVALID (`name` is over its limit)
        INVALID (`name` has a value that it cannot have)
        UNSUPPORTED (no message has kind 0x0199)
        UNSUPPORTED (no message has kind 0x8110)
        WRONG_CELL (this connection serves cell 3, not cell 4)"#]]
    .assert_eq(&told[0]);
    assert_eq!(rig.log(leader).len(), entries);
}

#[test]
fn a_second_hello_is_not_answered_in_a_layout_that_its_sender_would_misread() {
    let mut rig = Rig::serving(1);
    let a = rig.connect(1);
    let error = Some(DecodeError::UnknownKind(kind::HELLO));
    let head = Head { kind: kind::HELLO, cell: CELL, correlation: Correlation(9) };
    rig.step(1, Input::Malformed { connection: a, head, error });
    assert!(rig.told(a).is_empty());
}

#[test]
fn any_member_answers_status_and_routes() {
    let mut rig = Rig::serving(3);
    for node in 1..=3 {
        let a = rig.connect(node);
        rig.ask(a, Request::Status);
        rig.ask(a, Request::Routes);
        let role = if node == rig.leader() { "leader" } else { "follower" };
        assert_eq!(rig.told(a), [format!("OK {role} sessions 0"), "OK routes 1".to_owned()]);
    }
}
