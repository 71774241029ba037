//! What the clients do when told what happened; the core under them is real, its cell is absent.

use lockstep_client::core::{ClientConfig, Failure, Loss};
use lockstep_wire::CellId;
use lockstep_wire::reply::EndReason;

use super::*;

const START: Time = Time(1_000_000_000);

struct Rig {
    pairs: Pairs,
    core: ClientCore,
    now: Time,
}

impl Rig {
    /// So many clients that have been told to open, on one shared name.
    fn new(clients: u32, hold_ms: u32) -> Rig {
        let plan = Arc::new(Plan {
            run: 7,
            ttl_ms: 10_000,
            names: 1,
            contended_of_million: 1_000_000,
            hold_ms,
            ledger: Some(Arc::new(Ledger::new(1 + clients))),
        });
        let pulse = Arc::new(Pulse::new());
        pulse.begin(START, START.plus_ms(60_000));
        let tally = Rc::new(RefCell::new(Tally::new()));
        let config = ClientConfig::new(CellId(0), vec!["127.0.0.1:1".to_owned()], "test", 7);
        let mut rig = Rig {
            pairs: Pairs::new(&plan, 0..clients, tally, pulse),
            core: ClientCore::new(config, START),
            now: START,
        };
        rig.tick();
        rig
    }

    fn opened(clients: u32, hold_ms: u32) -> Rig {
        let mut rig = Rig::new(clients, hold_ms);
        for at in 0..clients as usize {
            rig.finish(at, Outcome::Opened { ttl_ms: 10_000 });
        }
        rig
    }

    fn tick(&mut self) {
        self.pairs.on_tick(&mut self.core, self.now);
    }

    fn finish(&mut self, at: usize, outcome: Outcome) {
        let call = self.standing(at).call().expect("the client waits for something");
        self.pairs.on_event(Event::Finished { call, outcome }, &mut self.core, self.now);
    }

    fn grant(&mut self, at: usize, token: u64) {
        let token = FencingToken(token);
        let grant = Grant { token, fence: token, slot: 0, hold_left_ms: 0, holders: 1 };
        self.finish(at, Outcome::Granted(grant));
    }

    fn end_session(&mut self, at: usize) {
        let session = self.pairs.clients[at].session.expect("it has one");
        let condition = Condition::Ended(Loss::Ended(EndReason::Expired));
        self.pairs.on_event(Event::SessionChanged { session, condition }, &mut self.core, self.now);
    }

    fn standing(&self, at: usize) -> Standing {
        self.pairs.clients[at].standing
    }

    fn error(&self, status: &str) -> u64 {
        self.pairs.tally.borrow().errors.get(status).copied().unwrap_or(0)
    }

    fn violations(&self) -> u64 {
        self.pairs.plan.ledger.as_ref().expect("it is checked").violations_total()
    }
}

#[test]
fn a_client_goes_from_opening_through_pairs_with_one_request_at_a_time() {
    let mut rig = Rig::opened(3, 0);
    assert!((0..3).all(|at| matches!(rig.standing(at), Standing::Acquiring { .. })));
    rig.now = rig.now.plus_ms(2);
    rig.grant(0, 5);
    assert!(matches!(rig.standing(0), Standing::Releasing { .. }));
    rig.finish(0, Outcome::Released);
    assert!(matches!(rig.standing(0), Standing::Acquiring { .. }));
    assert_eq!(rig.pairs.by_call.len(), 3);
    let tally = rig.pairs.tally.borrow();
    assert_eq!((tally.acquire_us.len(), tally.release_us.len()), (1, 1));
    assert!(tally.acquire_us.max().abs_diff(2_000) < 5);
}

#[test]
fn a_hold_is_kept_for_as_long_as_was_asked_for() {
    let mut rig = Rig::opened(1, 50);
    rig.grant(0, 5);
    rig.now = rig.now.plus_ms(49);
    rig.tick();
    assert!(matches!(rig.standing(0), Standing::Holding { .. }));
    rig.now = rig.now.plus_ms(1);
    rig.tick();
    assert!(matches!(rig.standing(0), Standing::Releasing { .. }));
}

#[test]
fn a_client_rests_after_a_failure_and_then_goes_on() {
    let mut rig = Rig::opened(1, 0);
    rig.finish(0, Outcome::TimedOut);
    assert_eq!(rig.error("TIMED_OUT"), 1);
    rig.tick();
    assert!(matches!(rig.standing(0), Standing::Ready), "it rests");
    let due = rig.pairs.deadline().expect("it will go on");
    assert!(due >= rig.now.plus_ms(REST_MS) && due < rig.now.plus_ms(2 * REST_MS));
    rig.now = due;
    rig.tick();
    assert!(matches!(rig.standing(0), Standing::Acquiring { .. }));
}

#[test]
fn a_session_that_is_lost_is_counted_and_replaced_after_a_rest() {
    let mut rig = Rig::opened(2, 50);
    rig.grant(0, 5);
    let lost = rig.pairs.clients[0].session;
    rig.end_session(0);
    assert_eq!(rig.pairs.tally.borrow().sessions_lost, 1);
    assert_eq!(rig.pairs.pulse.sessions.load(Ordering::Relaxed), 1);
    rig.grant(1, 6);
    assert_eq!(rig.violations(), 0, "nobody believes in the hold of a lost session");
    rig.now = rig.pairs.deadline().expect("it opens another one");
    rig.tick();
    assert!(matches!(rig.standing(0), Standing::Opening { .. }));
    assert_ne!(rig.pairs.clients[0].session, lost);
}

#[test]
fn an_open_that_fails_is_tried_again_and_loses_no_session() {
    let mut rig = Rig::new(1, 0);
    rig.finish(0, Outcome::Failed(Failure::NotExecuted { trouble: "nobody leads".to_owned() }));
    assert_eq!(rig.pairs.pulse.opens_failed.load(Ordering::Relaxed), 1);
    assert_eq!(rig.pairs.tally.borrow().sessions_lost, 0);
    assert_eq!(rig.pairs.tally.borrow().trouble, "nobody leads");
    rig.now = rig.now.plus_ms(2 * REST_MS);
    rig.tick();
    assert!(matches!(rig.standing(0), Standing::Opening { .. }));
}

#[test]
fn a_token_that_does_not_grow_is_found() {
    let mut rig = Rig::opened(2, 0);
    rig.grant(0, 5);
    rig.grant(1, 5);
    assert_eq!(rig.violations(), 1);
}

#[test]
fn a_hold_that_ends_by_itself_is_an_error_and_believed_in_no_more() {
    let mut rig = Rig::opened(2, 50);
    rig.grant(0, 5);
    let Standing::Holding { acquire, .. } = rig.standing(0) else { panic!("it holds") };
    let session = rig.pairs.clients[0].session.expect("it has one");
    let reason = Loss::Ended(EndReason::Revoked);
    rig.pairs.on_event(Event::HoldLost { session, acquire, reason }, &mut rig.core, rig.now);
    assert_eq!(rig.error("HOLD_LOST"), 1);
    assert!(matches!(rig.standing(0), Standing::Ready));
}

#[test]
fn at_the_end_nothing_more_is_asked_and_the_oldest_request_is_known() {
    let mut rig = Rig::opened(2, 0);
    rig.now = rig.now.plus_ms(300);
    rig.grant(0, 5);
    rig.pairs.close(&mut rig.core, rig.now);
    assert_eq!(rig.pairs.deadline(), None);
    assert_eq!(rig.pairs.tally.borrow().unanswered_ms_max, 300);
    while let Some(event) = rig.core.poll_event() {
        rig.pairs.on_event(event, &mut rig.core, rig.now);
    }
    assert!(rig.core.is_idle(), "sessions that were never sent leave nothing behind");
}

#[test]
fn names_of_clients_and_shared_names_never_meet() {
    let rig = Rig::new(2, 0);
    let plan = &rig.pairs.plan;
    let names =
        [NameIndex(0), plan.own(ClientIndex(0)), plan.own(ClientIndex(1))].map(|index| plan.name(index));
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), 3);
    assert!(names.iter().all(|name| lockstep_wire::Name::parse(name).is_ok()), "{names:?}");
}
