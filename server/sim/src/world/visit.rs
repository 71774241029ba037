//! The visitor of a cell: a client that comes when all has come to rest, and finds everything in order.
//!
//! Invariant: it opens a session, and one name after the other is granted at once, given back and seen without holders;
//! then it closes. Whatever is left of other clients would be in its way. Deliberately absent: whether it comes to an
//! end at all; that is for `closing`.

use std::collections::VecDeque;

use lockstep_client::core::{AcquireOptions, Outcome, SessionKey};
use lockstep_wire::CellId;
use lockstep_wire::request::Mode;

use super::client::Client;
use super::clock::Clock;
use super::plan::{Plan, Workload};
use super::schedule::{MS, Moment};
use super::workload::{NEVER, State};
use crate::oracle::{Verdict, violated};

/// What is still to be done.
#[derive(Debug)]
pub(super) struct Visit {
    /// Names that were not granted yet.
    names: VecDeque<String>,
    /// The name that was given back and is to be looked at.
    returned: Option<String>,
    is_over: bool,
}

impl Visit {
    fn new(workload: &Workload) -> Visit {
        let names = (0..workload.names).map(|number| workload.name(number)).collect();
        Visit { names, returned: None, is_over: false }
    }

    /// Whether all was as it should be, to the end.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

/// The visitor of a cell before it has come.
pub(super) fn absent(plan: &Plan, cell: CellId) -> Client {
    let mut client = arriving(plan, cell, 0);
    client.is_running = false;
    client
}

/// The visitor of a cell as it comes.
pub(super) fn arriving(plan: &Plan, cell: CellId, now: Moment) -> Client {
    let place = plan.workload.clients + usize::from(cell.0);
    let workload = Workload {
        tasks: 1,
        sessions: 1,
        think_mean: MS,
        hold_mean: MS,
        again_percent: 0,
        drop_percent: 0,
        ..plan.workload.clone()
    };
    let visit = Visit::new(&workload);
    let plan = Plan { workload, ..plan.clone() };
    let mut client = Client::new(&plan, (place, cell), 0, Clock::new(1_000_000_000, 0), now);
    client.hands.visit = Some(visit);
    client
}

impl Client {
    /// An idle visitor does what comes next.
    pub(super) fn go_on_visiting(&mut self, at: usize, key: SessionKey, now: Moment) {
        let local = self.local(now);
        let owner = self.hands.tasks[at].owner;
        let Some(visit) = &mut self.hands.visit else { return };
        let state = if let Some(name) = &visit.returned {
            State::Looking { call: self.core.get_lock(name, local) }
        } else if let Some(name) = visit.names.front().cloned() {
            let mode = Mode::Exclusive;
            let options = AcquireOptions {
                name: name.clone(),
                owner,
                mode,
                is_reentrant: false,
                wait_ms: 0,
                data: Vec::new(),
            };
            let call = self.core.acquire(key, options, local);
            State::Asking { call, name, owner, mode, withdraw_at: None }
        } else {
            self.hands.wind_down();
            State::Closing { call: self.core.close_session(key, local) }
        };
        self.hands.tasks[at].state = state;
        self.hands.tasks[at].due = NEVER;
    }

    /// A visitor has been told how something ended. What failed on its way is tried again.
    pub(super) fn look_at_visit(&mut self, at: usize, outcome: &Outcome) -> Verdict {
        let Some(visit) = &mut self.hands.visit else { return Ok(()) };
        let is_as_it_should = match (&self.hands.tasks[at].state, outcome) {
            (State::Closing { .. }, outcome) => {
                visit.is_over = true;
                matches!(outcome, Outcome::Closed { .. })
            }
            (_, Outcome::Failed(_)) => true,
            (State::Asking { .. }, outcome) => matches!(outcome, Outcome::Granted(_)),
            (State::Releasing { .. }, Outcome::Released) => {
                visit.returned = visit.names.pop_front();
                true
            }
            (State::Looking { .. }, Outcome::Lock(view)) => {
                visit.returned = None;
                view.holders.is_empty() && view.waiters.is_empty()
            }
            (_, _) => false,
        };
        if is_as_it_should {
            return Ok(());
        }
        violated(
            "at rest every name is free (contract 4)",
            format!(
                "a visitor of cell {} is told {outcome:?} while {:?}",
                self.cell, self.hands.tasks[at].state
            ),
        )
    }
}
