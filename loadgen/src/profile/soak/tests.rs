//! What the clients do when told what happened; the core under them is real, its cell is absent.

use std::collections::BTreeSet;

use lockstep_client::core::{ClientConfig, Failure, Loss};
use lockstep_wire::reply::{EndReason, Grant};
use lockstep_wire::{CellId, FencingToken};

use super::*;

const START: Time = Time(1_000_000_000);

fn plan(clients: u32, live: u32, writes_enough: u64) -> Plan {
    let course = Course::default();
    Plan { run: 7, ttl_ms: 10_000, clients, live, writes_enough, names_each: 2, course }
}

struct Rig {
    soak: Soak,
    core: ClientCore,
    /// The token of the last grant.
    token: FencingToken,
}

impl Rig {
    /// Clients that have their sessions.
    fn opened(plan: Plan) -> Rig {
        let plan = Arc::new(plan);
        let pulse = Arc::new(Pulse::new());
        pulse.begin(START, START.plus_ms(60_000));
        let tally = Rc::new(RefCell::new(Tally::new()));
        let config = ClientConfig::new(CellId(0), vec!["127.0.0.1:1".to_owned()], "test", 7);
        let soak = Soak::new(&plan, 0..plan.clients, tally, pulse);
        let mut rig = Rig { soak, core: ClientCore::new(config, START), token: FencingToken(0) };
        assert_eq!(rig.soak.deadline(), Some(Time(0)));
        rig.soak.on_tick(&mut rig.core, START);
        assert_eq!(rig.soak.deadline(), None);
        for at in 0..rig.soak.clients.len() {
            rig.finish(at, Outcome::Opened { ttl_ms: 10_000 });
        }
        rig
    }

    fn course(&self) -> &Course {
        &self.soak.plan.course
    }

    fn standing(&self, at: usize) -> Standing {
        self.soak.clients[at].standing
    }

    fn finish(&mut self, at: usize, outcome: Outcome) {
        let call = self.soak.by_call.iter().find(|(_, of)| **of == at).map(|(call, _)| *call);
        let call = call.expect("the client waits for something");
        self.soak.on_event(Event::Finished { call, outcome }, &mut self.core, START);
    }

    fn grant(&mut self, at: usize) {
        let token = self.token;
        let grant = Grant { token, fence: token, slot: 0, hold_left_ms: 0, holders: 1 };
        self.finish(at, Outcome::Granted(grant));
    }

    /// Answers whatever the client waits for as it hopes; `false` when it waits for nothing.
    fn succeed(&mut self, at: usize) -> bool {
        match self.standing(at) {
            Standing::Acquiring { .. } => {
                self.token.0 += 1;
                self.grant(at);
            }
            Standing::Releasing { .. } => self.finish(at, Outcome::Released),
            Standing::Outside | Standing::Opening | Standing::Resting => return false,
        }
        true
    }
}

#[test]
fn the_lasting_locks_are_shared_out_and_none_is_left_over() {
    for (clients, live) in [(1, 0), (3, 10), (7, 7), (200, 100_000), (64, 3)] {
        let plan = plan(clients, live, 1);
        let shares: Vec<usize> = (0..clients).map(|client| plan.share(client)).collect();
        assert_eq!(shares.iter().sum::<usize>(), live as usize);
        assert!(shares.iter().max().zip(shares.iter().min()).is_some_and(|(most, least)| most - least <= 1));
    }
}

#[test]
fn every_other_name_is_new_and_the_others_come_again() {
    let plan = plan(2, 0, 1);
    let names: Vec<String> = (0..40).map(|pair| plan.passing_name(1, pair)).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 20 + 2);
    assert!(names.iter().all(|name| *name != plan.passing_name(0, 0) && *name != plan.name(1, "lasting", 0)));
}

#[test]
fn a_name_that_comes_again_must_have_a_greater_token() {
    let mut rig = Rig::opened(plan(1, 0, 100));
    // Two names that come again, and two that are new, each acquired and released; the fifth pair is of the first name.
    (0..8).for_each(|_| assert!(rig.succeed(0)));
    rig.grant(0);
    assert_eq!(rig.course().names_new.load(Ordering::Relaxed), 4);
    assert!(!rig.course().has_failed(), "its token has grown since the first time");
    assert_eq!(rig.course().names_again.load(Ordering::Relaxed), 1);
    rig.finish(0, Outcome::Released);
    (0..2).for_each(|_| assert!(rig.succeed(0)));
    rig.token = FencingToken(2);
    rig.grant(0);
    assert_eq!(rig.soak.tally.borrow().errors["TOKEN_NOT_GREATER"], 1);
    assert!(rig.soak.tally.borrow().trouble.contains("again-0-1"), "{}", rig.soak.tally.borrow().trouble);
}

#[test]
fn lasting_locks_are_held_until_there_were_writes_enough_and_then_given_back() {
    // Two lasting locks each, and writes for some pairs.
    let mut rig = Rig::opened(plan(2, 4, 24));
    let mut held = Vec::new();
    while [0, 1].map(|at| rig.succeed(at)).contains(&true) {
        held.push(rig.course().held.load(Ordering::Relaxed));
        assert!(held.len() < 100, "it comes to an end");
    }
    let first_full = held.iter().position(|held| *held == 4).expect("all are held");
    let last_full = held.iter().rposition(|held| *held == 4).expect("all are held");
    assert!(held[first_full..=last_full].iter().all(|held| *held == 4), "{held:?}");
    assert_eq!(held.last(), Some(&0));
    assert!(rig.course().is_returned() && !rig.course().has_failed());
    assert!((24..=32).contains(&rig.course().writes.load(Ordering::Relaxed)));
    assert!((0..2).all(|at| matches!(rig.standing(at), Standing::Resting)));
}

#[test]
fn a_call_that_fails_is_counted_and_its_client_asks_no_more() {
    let mut rig = Rig::opened(plan(2, 4, 24));
    rig.finish(0, Outcome::Failed(Failure::NotExecuted { trouble: "nobody leads".to_owned() }));
    assert!(rig.course().has_failed() && !rig.course().is_returned());
    assert!(matches!(rig.standing(0), Standing::Resting));
    assert_eq!(rig.soak.tally.borrow().errors["NOT_EXECUTED"], 1);
    assert_eq!(rig.soak.tally.borrow().trouble, "nobody leads");
    assert!(rig.succeed(1), "the others go on until the run is ended");
}

#[test]
fn a_lasting_lock_that_is_lost_or_not_its_own_any_more_is_a_failure() {
    let mut rig = Rig::opened(plan(1, 1, 1));
    assert!(rig.succeed(0));
    assert!(matches!(rig.standing(0), Standing::Releasing { is_lasting: true, .. }));
    rig.finish(0, Outcome::StaleToken);
    assert_eq!(rig.soak.tally.borrow().errors["STALE_TOKEN"], 1);

    let mut rig = Rig::opened(plan(1, 1, 100));
    assert!(rig.succeed(0));
    let (session, acquire) = (rig.soak.clients[0].session.expect("open"), rig.soak.clients[0].lasting[0]);
    let lost = Event::HoldLost { session, acquire, reason: Loss::Ended(EndReason::Expired) };
    rig.soak.on_event(lost, &mut rig.core, START);
    assert!(rig.course().has_failed());
    assert_eq!(rig.soak.tally.borrow().errors["HOLD_LOST"], 1);
}
