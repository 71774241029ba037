//! Leases without a cell: clocks, wheels and slots.

use super::*;

const TTL: Span = Span::from_ms(1_000);
fn slot() -> SessionSlot {
    SessionSlot::from_index(3)
}

fn at(leases: &mut Leases, ms: u64) -> bool {
    // Steps come every 50 ms, as a leader's heartbeats make them come.
    while leases.stepped < Time(ms * 1_000_000) {
        let next = (leases.stepped + Span::from_ms(50)).min(Time(ms * 1_000_000));
        leases.on_step(next);
        drained(leases);
    }
    drained(leases)
}

/// Logs the silence of whoever is silent; whether somebody is due.
fn drained(leases: &mut Leases) -> bool {
    while leases.notice() && !leases.silent.is_empty() {
        while let Some((slot, ms)) = leases.poll_silent() {
            leases.on_silence(slot, ms, TTL, LogIndex(1));
        }
    }
    !leases.due.is_empty()
}

/// As if all that was logged of its silence had been ended by another entry.
fn renew(leases: &mut Leases) -> bool {
    leases.renew(slot(), TTL, 0, LogIndex(9)) == Renewal::Renewed
}

/// The silence that is to be logged of the slot by then.
fn silence_due(leases: &mut Leases, ms: u64) -> Option<u32> {
    while leases.stepped < Time(ms * 1_000_000) {
        let next = (leases.stepped + Span::from_ms(50)).min(Time(ms * 1_000_000));
        leases.on_step(next);
    }
    leases.notice();
    leases.poll_silent().map(|(_, ms)| ms)
}

fn leading() -> Leases {
    let mut leases = Leases::default();
    leases.on_step(Time(1));
    leases.forget();
    leases.take_office();
    leases
}

#[test]
fn a_session_is_due_after_its_ttl_and_not_before() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    assert!(!at(&mut leases, 1_000));
    assert!(at(&mut leases, 1_000 + 2 * BUCKET.ms()));
    assert_eq!(leases.poll_due(), Some(slot()));
    assert_eq!(leases.poll_due(), None);
}

#[test]
fn a_confirmed_beat_moves_the_deadline() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    at(&mut leases, 900);
    assert!(leases.on_beat(slot()));
    assert!(!leases.on_beat(slot()), "one beat a session waits for its answer");
    assert!(renew(&mut leases));
    assert!(!at(&mut leases, 1_900));
    assert!(at(&mut leases, 1_950));
}

#[test]
fn a_beat_that_was_waiting_when_the_deadline_was_noticed_keeps_the_session() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    assert!(at(&mut leases, 1_100));
    leases.on_beat(slot());
    assert_eq!(leases.poll_due(), None);
    assert!(renew(&mut leases));
    assert!(!at(&mut leases, 2_000));
    assert!(at(&mut leases, 2_200), "it is still watched");
}

#[test]
fn a_doomed_session_is_not_renewed() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    leases.doom(slot());
    assert!(!renew(&mut leases));
    leases.forget();
    assert!(renew(&mut leases), "a new tenure knows no doom");
}

#[test]
fn a_stalled_loop_ends_nobody_early() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    at(&mut leases, 500);
    leases.on_step(Time(5_500 * 1_000_000));
    assert!(!drained(&mut leases), "4,900 ms of the 5,000 do not count");
    assert!(!at(&mut leases, 5_850));
    assert!(at(&mut leases, 5_950));
}

#[test]
fn a_reused_slot_knows_nothing_of_its_former_session() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    leases.on_beat(slot());
    leases.doom(slot());
    leases.open(slot(), TTL);
    assert!(!leases.is_doomed(slot()));
    assert!(leases.on_beat(slot()));
    renew(&mut leases);
    assert!(at(&mut leases, 1_100));
    assert_eq!(leases.poll_due(), Some(slot()));
    assert_eq!(leases.poll_due(), None, "an entry of the former session counts for nothing");
}

#[test]
fn an_ended_session_is_not_looked_at_again_though_a_beat_of_it_waits() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    leases.on_beat(slot());
    leases.doom(slot());
    leases.close(slot());
    assert!(!at(&mut leases, 1_100));
    assert_eq!(leases.deadline(), Time::NEVER);
}

#[test]
fn a_slot_that_is_opened_anew_while_it_stands_among_the_due_is_watched_once() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    assert!(at(&mut leases, 1_100));
    leases.close(slot());
    leases.open(slot(), TTL);
    assert_eq!(leases.poll_due(), None);
    assert!(at(&mut leases, 2_200));
    assert_eq!(leases.poll_due(), Some(slot()));
    assert_eq!(leases.poll_due(), None);
}

#[test]
fn an_attach_that_waits_for_its_answer_keeps_the_session() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    assert!(at(&mut leases, 1_100));
    leases.on_return(slot());
    assert_eq!(leases.poll_due(), None);
    assert!(renew(&mut leases));
    assert!(!at(&mut leases, 2_000));
    assert!(at(&mut leases, 2_200));
    assert_eq!(leases.poll_due(), Some(slot()));
}

#[test]
fn many_deadlines_at_one_moment_are_looked_at_in_slices() {
    let mut leases = leading();
    for index in 0..3 * LOOKS_PER_TURN {
        leases.arm(SessionSlot::from_index(index), TTL, Span(0));
    }
    let mut named = 0;
    let mut turns = 0;
    assert!(at(&mut leases, 1_100));
    while drained(&mut leases) {
        turns += 1;
        let before = named;
        while leases.poll_due().is_some() {
            named += 1;
        }
        assert!(named - before <= LOOKS_PER_TURN);
    }
    assert_eq!((named, turns), (3 * LOOKS_PER_TURN, 3));
}

#[test]
fn a_reused_slot_with_a_shorter_ttl_is_due_in_time() {
    let mut leases = leading();
    leases.open(slot(), Span::from_ms(60_000));
    leases.open(slot(), TTL);
    assert!(at(&mut leases, 1_100));
    assert_eq!(leases.poll_due(), Some(slot()));
}

#[test]
fn silence_is_told_after_half_a_ttl_and_then_in_steps_that_add_up() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    assert_eq!(silence_due(&mut leases, 500), None);
    let first = silence_due(&mut leases, 520).expect("half a TTL is over");
    assert!((500..=520).contains(&first));
    leases.on_silence(slot(), first, TTL, LogIndex(5));
    assert_eq!(silence_due(&mut leases, 740), None, "the next step is a quarter of a TTL");
    let second = silence_due(&mut leases, 800).expect("a step is over");
    assert!((795..=800).contains(&(first + second)), "{first} + {second}");
    leases.on_silence(slot(), second, TTL, LogIndex(6));
    assert!(at(&mut leases, 1_050), "and the TTL ends when it would have ended");
    assert_eq!(leases.poll_due(), Some(slot()));
}

#[test]
fn a_session_of_the_tenure_before_is_silent_after_a_step_and_due_when_its_ttl_has_been_used_up() {
    let mut leases = leading();
    leases.arm(slot(), TTL, Span::from_ms(600));
    assert_eq!(silence_due(&mut leases, 250), None);
    let first = silence_due(&mut leases, 270).expect("a quarter of a TTL is over");
    assert!((250..=270).contains(&first), "what was logged before is not logged again: {first}");
    leases.on_silence(slot(), first, TTL, LogIndex(5));
    assert!(!at(&mut leases, 400));
    assert!(at(&mut leases, 450));
    assert_eq!(leases.poll_due(), Some(slot()));
}

#[test]
fn a_session_that_was_silent_for_its_whole_ttl_is_due_once_its_leader_serves_and_has_drained() {
    let mut leases = leading();
    leases.arm(slot(), TTL, Span::from_ms(60_000));
    assert!(at(&mut leases, 50));
    leases.on_return(slot());
    assert_eq!(leases.poll_due(), None, "what came meanwhile counts");
}

#[test]
fn a_stall_counts_as_silence_of_nobody() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    at(&mut leases, 400);
    leases.on_step(Time(3_400 * 1_000_000));
    assert!(!leases.notice(), "400 + 100 ms have counted");
    let told = silence_due(&mut leases, 3_450).expect("half a TTL is over");
    assert!((500..=550).contains(&told), "{told}");
}

#[test]
fn a_beat_that_was_waiting_when_the_quiet_was_noticed_is_no_silence() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    for ms in (0..=550).step_by(50) {
        leases.on_step(Time(ms * 1_000_000 + 1));
    }
    assert!(leases.notice());
    leases.on_beat(slot());
    assert_eq!(leases.poll_silent(), None);
    assert!(renew(&mut leases));
    assert_eq!(silence_due(&mut leases, 1_040), None);
    assert!(silence_due(&mut leases, 1_100).is_some(), "it is still watched");
}

#[test]
fn whoever_is_silent_in_the_log_is_not_renewed() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    let told = silence_due(&mut leases, 600).unwrap();
    leases.on_silence(slot(), told, TTL, LogIndex(5));
    let (before, after) = (LogIndex(4), LogIndex(5));
    assert_eq!(leases.renew(slot(), TTL, 0, before), Renewal::Silent, "it is appended");
    assert_eq!(leases.renew(slot(), TTL, 1, after), Renewal::Silent, "it has applied");
    assert_eq!(leases.renew(slot(), TTL, 0, after), Renewal::Renewed, "it was ended");
    leases.doom(slot());
    assert_eq!(leases.renew(slot(), TTL, 1, after), Renewal::Doomed);
}

#[test]
fn silence_that_could_not_be_logged_is_told_again_and_whole() {
    let mut leases = leading();
    leases.open(slot(), TTL);
    let first = silence_due(&mut leases, 550).unwrap();
    leases.put_back_silent(slot());
    assert!(leases.has_noticed());
    let again = silence_due(&mut leases, 600).unwrap();
    assert!(again >= first + 50);
}
