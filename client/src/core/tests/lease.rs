//! What a session may believe, and for how long.

use lockstep_wire::Status;
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::kind;
use proptest::prelude::*;

use super::*;

/// 10 s less 1,000 ppm and 5 ms.
const LEASE_MS: u64 = 10_000 - 10 - 5;

#[test]
fn beats_keep_a_session_safe() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    rig.pass_ms(300_000);
    assert!(rig.is_held(call));
    assert_eq!(rig.conditions(key), [Condition::Safe]);
    let beats = rig.cell.heard.iter().filter(|heard| heard.starts_with("KeepAlive")).count();
    assert!((90..=100).contains(&beats), "{beats} beats in 300 s of a TTL of 10 s");
}

#[test]
fn sessions_of_one_client_beat_together() {
    let mut rig = Rig::new();
    let keys: Vec<SessionKey> = (0..100).map(|_| rig.open(10_000)).collect();
    rig.cut();
    rig.settle();
    assert!(rig.cell.heard.contains(&"Attach 100".to_owned()));
    rig.pass_ms(60_000);
    for key in keys {
        assert_eq!(rig.conditions(key), [Condition::Safe]);
    }
}

#[test]
fn the_deadline_counts_from_the_send_of_what_was_acknowledged() {
    let mut rig = Rig::new();
    let (key, _) = rig.core.open_session(10_000, Nonce([1; 16]), rig.now);
    while rig.to_cell.is_empty() || rig.cell.heard.is_empty() {
        assert!(rig.step());
    }
    let sent_at = rig.now;
    rig.now = rig.now.plus_ms(400);
    rig.settle();
    assert_eq!(rig.core.session_safe_until(key), Some(sent_at.plus_ms(LEASE_MS)));
}

#[test]
fn a_server_error_in_the_beats_does_not_stop_them() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    for status in [Status::Overloaded, Status::OutcomeUnknown, Status::NoQuorum, Status::Invalid] {
        rig.cell.refusals.push_back((kind::KEEP_ALIVE, status));
        rig.pass_ms(10_000);
    }
    let other = rig.open(10_000);
    rig.pass_ms(60_000);
    assert!(rig.is_held(call));
    assert_eq!(rig.conditions(key), [Condition::Safe]);
    assert_eq!(rig.conditions(other), [Condition::Safe]);
}

#[test]
fn a_session_whose_cell_is_silent_is_in_jeopardy_at_its_deadline_and_given_up_after_the_grace_period() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    rig.is_refusing = true;
    rig.cut();
    rig.pass_ms(LEASE_MS - 1);
    assert!(rig.is_held(call));
    rig.pass_ms(1);
    assert!(!rig.is_held(call));
    assert_eq!(rig.conditions(key), [Condition::Safe, Condition::Jeopardy]);
    assert_eq!(rig.losses(), []);
    rig.pass_ms(44_999);
    assert_eq!(rig.losses(), []);
    rig.pass_ms(1);
    assert_eq!(rig.losses(), [(call, Loss::Unconfirmed)]);
    assert_eq!(rig.conditions(key).last(), Some(&Condition::Ended(Loss::Unconfirmed)));
}

#[test]
fn a_session_in_jeopardy_is_safe_again_after_an_acknowledgement_and_keeps_its_token() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    rig.is_refusing = true;
    rig.cut();
    rig.pass_ms(20_000);
    assert!(!rig.is_held(call));
    rig.is_refusing = false;
    rig.pass_ms(2_000);
    assert!(rig.is_held(call));
    assert_eq!(rig.conditions(key), [Condition::Safe, Condition::Jeopardy, Condition::Safe]);
    assert_eq!(rig.losses(), []);
}

#[test]
fn an_acknowledgement_that_comes_after_its_own_deadline_changes_nothing() {
    let mut rig = Rig::with(|config| config.try_timeout_ms = 60_000);
    let key = rig.open(10_000);
    rig.core.try_timeout_ms = 60_000;
    let call = rig.hold(key, NAME);
    while rig.to_cell.is_empty() {
        let deadline = rig.core.deadline().unwrap();
        rig.now = deadline;
        rig.core.on_tick(deadline);
        rig.pull();
    }
    rig.now = rig.now.plus_ms(10_000);
    while rig.cell.sent.is_empty() {
        assert!(rig.step());
    }
    assert!(rig.step(), "the acknowledgement arrives");
    assert!(!rig.is_held(call));
    assert_eq!(rig.conditions(key), [Condition::Safe, Condition::Jeopardy]);
    rig.settle();
    assert!(rig.is_held(call), "the next beat is sent at once, and its acknowledgement counts");
}

#[test]
fn a_suspended_client_that_wakes_past_its_deadline_holds_nothing_before_it_hears_from_the_cell() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    rig.cell.end_session(rig.cell.session_ids()[0], EndReason::Expired, false);
    rig.now = rig.now.plus_ms(11_000);
    assert!(!rig.is_held(call), "the deadline counts without any tick");
    rig.pass_ms(100);
    assert!(!rig.is_held(call));
    assert_eq!(rig.losses(), [(call, Loss::Ended(EndReason::Expired))]);
    assert_eq!(
        rig.conditions(key),
        [Condition::Safe, Condition::Jeopardy, Condition::Ended(Loss::Ended(EndReason::Expired))]
    );
}

#[test]
fn a_grant_that_comes_in_jeopardy_is_withheld_until_the_session_is_safe() {
    let mut rig = Rig::new();
    let intruder = rig.cell.intrude(NAME);
    let key = rig.open(2_000);
    let call = rig.acquire(key, NAME, 60_000);
    rig.settle();
    rig.core.try_timeout_ms = 60_000;
    rig.cell.ignores_beats = true;
    rig.pass_ms(2_500);
    assert_eq!(rig.conditions(key).last(), Some(&Condition::Jeopardy));
    rig.cell.leave(intruder);
    rig.settle();
    assert_eq!(rig.outcome(call), None);
    rig.cell.ignores_beats = false;
    rig.cut();
    rig.pass_ms(1_000);
    assert!(matches!(rig.outcome(call), Some(Outcome::Granted(_))));
    assert!(rig.is_held(call));
}

#[test]
fn the_end_of_a_session_is_told_once_with_all_its_holds() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let first = rig.hold(key, NAME);
    let second = rig.hold(key, "/ls/demo/other");
    rig.cell.end_session(rig.cell.session_ids()[0], EndReason::Expired, true);
    rig.pass_ms(60_000);
    let over = Loss::Ended(EndReason::Expired);
    assert_eq!(rig.losses(), [(first, over), (second, over)]);
    assert_eq!(rig.conditions(key), [Condition::Safe, Condition::Ended(over)]);
}

#[test]
fn a_hold_that_ended_while_the_client_was_away_is_found_missing() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let taken = rig.hold(key, NAME);
    let kept = rig.hold(key, "/ls/demo/other");
    rig.cut();
    rig.cell.take_away(NAME);
    rig.settle();
    assert_eq!(rig.losses(), [(taken, Loss::Unknown)]);
    assert!(rig.is_held(kept));
}

#[test]
fn holds_that_a_view_does_not_list_are_asked_for_one_by_one() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let calls: Vec<CallId> = (0..4).map(|number| rig.hold(key, &format!("{NAME}{number}"))).collect();
    rig.cell.claims_max = Some(1);
    rig.cut();
    rig.cell.take_away(&format!("{NAME}2"));
    rig.settle();
    assert_eq!(rig.losses(), [(calls[2], Loss::Unknown)]);
    assert!([0, 1, 3].iter().all(|at| rig.is_held(calls[*at])));
    assert_eq!(rig.cell.heard.iter().filter(|heard| *heard == "Check").count(), 3);
}

#[test]
fn a_hold_that_the_cell_ends_is_lost_with_its_reason_and_no_other_is() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let ended = rig.hold(key, NAME);
    let kept = rig.hold(key, "/ls/demo/other");
    let claim = rig.cell.take_away(NAME).unwrap();
    let told = lockstep_wire::reply::Event::HoldEnded {
        session: claim.session,
        acquire_id: claim.acquire_id,
        token: claim.token,
        reason: EndReason::Revoked,
        name: NAME,
    };
    let connection = rig.connection.unwrap();
    rig.cell.tell(connection.0, &told);
    rig.cell.tell(connection.0, &told);
    rig.settle();
    assert_eq!(rig.losses(), [(ended, Loss::Ended(EndReason::Revoked))]);
    assert!(!rig.is_held(ended));
    assert!(rig.is_held(kept));
}

#[test]
fn a_session_that_another_connection_took_over_is_attached_again() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    rig.cell.disconnect(rig.connection.unwrap().0);
    rig.pass_ms(20_000);
    assert!(rig.cell.heard.contains(&"Attach 1".to_owned()));
    assert!(rig.is_held(call));
    assert_eq!(rig.conditions(key), [Condition::Safe]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever happens, a hold is believed in only within the TTL of the last thing that the cell has acknowledged.
    #[test]
    fn a_hold_is_never_believed_in_past_its_deadline(
        moves in prop::collection::vec((0u8..10, 1u64..4_000), 1..120),
    ) {
        let mut rig = Rig::new();
        let (key, _) = rig.core.open_session(3_000, Nonce([1; 16]), rig.now);
        let mut calls = vec![rig.acquire(key, NAME, 60_000)];
        for (what, ms) in moves {
            let before = rig.now;
            match what {
                0 => rig.cut(),
                1 => rig.is_refusing = !rig.is_refusing,
                2 => rig.now = rig.now.plus_ms(ms),
                3 => rig.pass_ms(ms),
                4 => rig.cell.ignores_beats = !rig.cell.ignores_beats,
                5 => rig.core.on_tick(rig.now),
                6 => calls.push(rig.acquire(key, &format!("{NAME}{ms}"), 0)),
                7 => {
                    if let Some(id) = rig.cell.session_ids().first() && ms > 3_500 {
                        rig.cell.end_session(*id, EndReason::Expired, ms % 2 == 0);
                    }
                }
                8 => rig.core.cancel(calls[calls.len() - 1], rig.now),
                _ => {
                    for _ in 0..ms % 7 {
                        rig.step();
                    }
                }
            }
            rig.pull();
            prop_assert!(rig.now >= before);
            for call in &calls {
                if let Some(until) = rig.core.safe_until(*call) {
                    prop_assert!(until <= rig.acknowledged_at.plus_ns(crate::core::session::lease_ns(3_000)));
                    prop_assert!(!rig.core.is_held(*call, until));
                }
            }
            let ended = rig.conditions(key).iter().any(|it| matches!(it, Condition::Ended(_)));
            prop_assert!(!ended || calls.iter().all(|call| !rig.is_held(*call)));
        }
    }
}
