//! A withdrawn acquire leaves nothing behind, whenever it is withdrawn.

use lockstep_wire::Status;
use lockstep_wire::request::kind;

use super::*;

/// Runs an acquire and withdraws it after `steps` things have happened; false when that is after everything.
fn withdraw_after(steps: usize, is_contended: bool, cut_after: Option<usize>) -> bool {
    let mut rig = Rig::new();
    let intruder = is_contended.then(|| rig.cell.intrude(NAME));
    let (key, _) = rig.core.open_session(10_000, Nonce([1; 16]), rig.now);
    let call = rig.acquire(key, NAME, 60_000);
    let mut happened = 0;
    let mut intruder_left = false;
    for step in 0..steps {
        if step == 8
            && let Some(intruder) = intruder
        {
            rig.cell.leave(intruder);
            intruder_left = true;
        }
        if !rig.step() {
            break;
        }
        happened += 1;
    }
    let was_delivered = rig.outcome(call).is_some();
    rig.core.cancel(call, rig.now);
    rig.pull();
    assert!(!rig.is_held(call));
    if let Some(cut_after) = cut_after {
        for _ in 0..cut_after {
            rig.step();
        }
        rig.cut();
    }
    rig.pass_ms(2_000);
    if let Some(intruder) = intruder.filter(|_| !intruder_left) {
        rig.cell.leave(intruder);
    }
    rig.pass_ms(2_000);
    let ours = rig.cell.locks.get(NAME);
    assert!(ours.is_none(), "step {steps}, contended {is_contended}, cut {cut_after:?}: {ours:?}");
    if !was_delivered {
        assert_eq!(rig.outcome(call), None, "nothing is said of a call that was withdrawn");
    }
    assert!(rig.losses().is_empty());
    let state = &rig.core.sessions[&key];
    assert!(state.unfinished.is_empty() && state.holds.is_empty());
    // Whoever comes next is granted at once.
    rig.hold(key, NAME);
    happened == steps
}

#[test]
fn an_acquire_withdrawn_at_any_point_leaves_neither_a_holder_nor_a_waiter() {
    for is_contended in [false, true] {
        for cut_after in [None, Some(0), Some(1), Some(2), Some(3)] {
            let mut steps = 0;
            while withdraw_after(steps, is_contended, cut_after) {
                steps += 1;
                assert!(steps < 100, "the scenario ends");
            }
            assert!(steps >= 6, "there were only {steps} points");
        }
    }
}

#[test]
fn a_hold_that_is_withdrawn_is_given_back() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    rig.core.cancel(call, rig.now);
    assert!(!rig.is_held(call));
    rig.settle();
    assert_eq!(rig.cell.holder(NAME), None);
    assert_eq!(rig.losses(), []);
}

#[test]
fn a_release_that_comes_too_late_says_so() {
    let mut rig = Rig::new();
    let key = rig.open(10_000);
    let call = rig.hold(key, NAME);
    rig.cell.take_away(NAME);
    let release = rig.core.release(call, rig.now);
    rig.settle();
    assert_eq!(rig.outcome(release), Some(Outcome::StaleToken));
}

#[test]
fn a_release_that_nobody_took_in_time_is_of_unknown_outcome_and_is_carried_out_later() {
    let mut rig = Rig::new();
    let key = rig.open(60_000);
    let call = rig.hold(key, NAME);
    rig.is_refusing = true;
    rig.cut();
    let release = rig.core.release(call, rig.now);
    rig.pass_ms(15_000);
    let outcome = rig.outcome(release);
    assert!(matches!(outcome, Some(Outcome::Failed(Failure::OutcomeUnknown { .. }))), "{outcome:?}");
    assert!(rig.cell.holder(NAME).is_some());
    rig.is_refusing = false;
    rig.pass_ms(5_000);
    assert_eq!(rig.cell.holder(NAME), None, "nobody else could have given it back");
}

#[test]
fn a_release_that_outlives_its_user_while_it_rests_is_sent_again() {
    for patience_ms in 1..60 {
        let mut rig = Rig::with(|config| config.call_timeout_ms = 1_000);
        let key = rig.open(10_000);
        let held = rig.hold(key, NAME);
        let release = rig.core.release(held, rig.now);
        // Refused for load again and again, so that its user gives it up somewhere within a pause.
        rig.cell.refusals.extend(std::iter::repeat_n((kind::RELEASE, Status::Overloaded), 20 + patience_ms));
        rig.pass_ms(1_000);
        rig.pass_ms(4_000);
        assert!(rig.outcome(release).is_some());
        assert_eq!(rig.core.outstanding_total(), 0, "after {patience_ms} refusals more");
        assert!(!rig.cell.locks.contains_key(NAME), "after {patience_ms} refusals more");
    }
}
