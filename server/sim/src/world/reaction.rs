//! What a client makes of what it is told, and what it finds wrong with it.
//!
//! Invariant: a task believes what the client core tells it and nothing else; where that goes against what the contract gives a
//! client whose session is safe, the judges hear of it. Deliberately absent: what replies say as such; that is judged as they
//! reach the socket (`testimony`).

use lockstep_client::core::{CallId, Condition, Event, Failure, Loss, Outcome, SessionKey};
use lockstep_wire::reply::{EndReason, Grant};

use super::client::{Client, ClientSurroundings};
use super::schedule::{MS, Moment};
use super::trace::number_of_shown;
use super::workload::{State, TaskHold};
use crate::mark::Mark;
use crate::oracle::expiry::{self, Lease};
use crate::oracle::violated;

/// The point that a client relies on while its session is safe.
const HOLD_LASTS: &str = "a hold lasts as long as its session (contract 1)";

impl Client {
    /// Takes what the core tells. `leases` is what the client believed just before.
    pub(super) fn take_events(
        &mut self,
        leases: &[(SessionKey, Lease)],
        around: &mut ClientSurroundings<'_>,
    ) {
        while let Some(event) = self.core.poll_event() {
            let now = around.fabric.now();
            let words = [30, self.place as u64, self.life, number_of_shown(&event)];
            around.fabric.trace.note(now, &words, || format!("client {}: {event:?}", self.place));
            match event {
                Event::Queued { .. } => {}
                Event::Finished { call, outcome } => self.on_finished(call, outcome, around),
                Event::SessionChanged { session, condition } => {
                    self.on_condition(session, condition, leases, around);
                }
                Event::HoldLost { session, acquire, reason } => {
                    self.on_lost(session, acquire, reason, around);
                }
            }
        }
    }

    fn on_condition(
        &mut self,
        key: SessionKey,
        condition: Condition,
        leases: &[(SessionKey, Lease)],
        around: &mut ClientSurroundings<'_>,
    ) {
        let now = around.fabric.now();
        self.hands.has_news = true;
        let Some(at) = self.hands.slots.iter().position(|slot| slot.session == Some(key)) else { return };
        let was_in_jeopardy =
            std::mem::replace(&mut self.hands.slots[at].is_in_jeopardy, condition == Condition::Jeopardy);
        if was_in_jeopardy && condition == Condition::Safe {
            around.judges.set(Mark::JeopardyPassed);
        }
        let Condition::Ended(loss) = condition else { return };
        if loss == Loss::Unconfirmed {
            around.judges.set(Mark::SessionGivenUp);
        }
        let lease = leases.iter().find(|(of, _)| *of == key);
        if let (Some((_, lease)), Loss::Ended(_) | Loss::Unknown) = (lease, loss)
            && !around.judges.cell(self.cell).acknowledgements.is_void(lease.session)
        {
            around.judges.take(expiry::on_ended(*lease, "is told to have ended"));
        }
        let pause = self.hands.stream.around(self.hands.workload.think_mean);
        let slot = &mut self.hands.slots[at];
        (slot.session, slot.opening, slot.reopen_at) = (None, None, now + pause);
        for task in 0..self.hands.tasks.len() {
            // What is under way has its own outcome to come; only holds end without one.
            if self.hands.tasks[task].slot == at && matches!(self.hands.tasks[task].state, State::Holding(_))
            {
                self.hands.rest(task, now);
            }
        }
    }

    /// Whether the client may rely on a session at this moment.
    fn relies_on(&self, key: SessionKey, now: Moment) -> bool {
        self.core.session_safe_until(key).is_some_and(|until| self.local(now) < until)
    }

    /// Whether the session of a task's hold is the same as then, and safe.
    fn relies_on_hold(&self, at: usize, hold: &TaskHold, now: Moment) -> bool {
        let key = self.hands.slots[self.hands.tasks[at].slot].session;
        key.is_some_and(|key| self.core.session_id(key) == Some(hold.session) && self.relies_on(key, now))
    }

    fn on_lost(
        &mut self,
        key: SessionKey,
        acquire: CallId,
        reason: Loss,
        around: &mut ClientSurroundings<'_>,
    ) {
        let now = around.fabric.now();
        let is_safe = self.relies_on(key, now);
        let Some(at) = self.hands.task_of(acquire) else { return };
        if let State::Holding(hold) | State::Again { hold, .. } | State::Shedding { hold, .. } =
            &self.hands.tasks[at].state
        {
            if is_safe {
                around.judges.take(violated(
                    HOLD_LASTS,
                    format!(
                        "client {} lost {} (token {}), {reason}, while its session is safe",
                        self.place, hold.name, hold.token
                    ),
                ));
            }
            self.hands.rest(at, now);
        }
    }

    fn on_finished(&mut self, call: CallId, outcome: Outcome, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        if let Some(at) = self.hands.slots.iter().position(|slot| slot.opening == Some(call)) {
            return self.on_open_finished(at, &outcome, now);
        }
        let Some(at) = self.hands.task_of(call) else { return };
        around.judges.take(self.look_at_visit(at, &outcome));
        match (self.hands.tasks[at].state.clone(), outcome) {
            (State::Asking { .. }, Outcome::Granted(grant)) => self.on_granted(at, call, grant, now),
            (State::Again { hold, call: own, is_reentrant }, outcome) if own == call => {
                self.on_asked_again(at, hold, call, is_reentrant, &outcome, around);
            }
            (State::Shedding { hold, call: own }, outcome) if own == call => match outcome {
                Outcome::Released => self.hold_further(at, hold, now),
                Outcome::StaleToken => self.on_stale_release(at, &hold, around),
                _ => self.shed(at, hold, now),
            },
            (State::Releasing { hold, .. }, Outcome::StaleToken) => {
                self.on_stale_release(at, &hold, around);
            }
            (State::Asking { name, .. }, Outcome::Lost { token, reason }) => {
                let key = self.hands.slots[self.hands.tasks[at].slot].session;
                if key.is_some_and(|key| self.relies_on(key, now)) {
                    around.judges.take(violated(
                        HOLD_LASTS,
                        format!(
                            "client {} asked for {name} and is told that token {token} was lost, {reason:?}, \
                             while its session is safe",
                            self.place
                        ),
                    ));
                }
                self.hands.rest(at, now);
            }
            // The hold's own call has nothing more to say.
            (State::Holding(_) | State::Again { .. } | State::Shedding { .. }, _) => {}
            (_, _) => self.hands.rest(at, now),
        }
    }

    fn on_open_finished(&mut self, at: usize, outcome: &Outcome, now: Moment) {
        let slot = &mut self.hands.slots[at];
        slot.opening = None;
        if !matches!(outcome, Outcome::Opened { .. }) {
            (slot.session, slot.reopen_at) = (None, now + 100 * MS);
        }
    }

    fn on_granted(&mut self, at: usize, call: CallId, grant: Grant, now: Moment) {
        let key = self.hands.slots[self.hands.tasks[at].slot].session;
        let session = key.and_then(|key| self.core.session_id(key));
        let State::Asking { name, owner, mode, .. } = self.hands.tasks[at].state.clone() else { return };
        let (Some(session), Some(_)) = (session, self.core.acquire_id(call)) else {
            // Lost in the same breath; its event follows.
            return self.hands.rest(at, now);
        };
        self.hands.last_token = grant.token;
        let release_at = now + self.hands.stream.around(self.hands.workload.hold_mean);
        let (token, fence) = (grant.token, grant.fence);
        let hold = TaskHold { call, origin: call, name, owner, mode, token, fence, session, release_at };
        self.hold_further(at, hold, now);
    }

    fn hold_further(&mut self, at: usize, hold: TaskHold, now: Moment) {
        self.hands.has_news = true;
        self.hands.tasks[at].state = State::Holding(hold);
        self.hands.tasks[at].due = now;
    }

    /// What became of it says nothing of the rest of the hold.
    fn shed(&mut self, at: usize, hold: TaskHold, now: Moment) {
        if self.core.safe_until(hold.call).is_some() {
            self.hold_further(at, hold, now);
        } else {
            self.hands.rest(at, now);
        }
    }

    /// The owner of a hold has asked for it once more.
    fn on_asked_again(
        &mut self,
        at: usize,
        mut hold: TaskHold,
        call: CallId,
        is_reentrant: bool,
        outcome: &Outcome,
        around: &mut ClientSurroundings<'_>,
    ) {
        let now = around.fabric.now();
        let is_as_it_should = match outcome {
            Outcome::Granted(grant) => is_reentrant && (grant.token, grant.fence) == (hold.token, hold.fence),
            Outcome::AlreadyHeld { token, .. } => !is_reentrant && *token == hold.token,
            Outcome::Failed(Failure::Invalid { .. }) | Outcome::TimedOut | Outcome::Lost { .. } => false,
            _ => true,
        };
        if !is_as_it_should && self.relies_on_hold(at, &hold, now) {
            around.judges.take(violated(
                "an owner is granted its own hold again, if it wishes (contract 1)",
                format!(
                    "client {} asked again for {hold:?} (reentrant: {is_reentrant}): {outcome:?}",
                    self.place
                ),
            ));
        }
        if !matches!(outcome, Outcome::Granted(_)) {
            return self.shed(at, hold, now);
        }
        // One of the two acquires goes, and the hold must stay.
        let shed =
            if self.hands.variety.percent(50) { std::mem::replace(&mut hold.call, call) } else { call };
        let local = self.local(now);
        let call = self.core.release(shed, local);
        self.hands.tasks[at].state = State::Shedding { hold, call };
    }

    /// Nobody but its owner ends a hold while its session lives.
    fn on_stale_release(&mut self, at: usize, hold: &TaskHold, around: &mut ClientSurroundings<'_>) {
        let now = around.fabric.now();
        if self.relies_on_hold(at, hold, now) {
            around.judges.take(violated(
                HOLD_LASTS,
                format!(
                    "client {} gives {} back (token {}) and it is gone",
                    self.place, hold.name, hold.token
                ),
            ));
        }
        self.hands.rest(at, now);
    }
}

/// Why a session that a committed entry ended may be believed in by nobody.
pub(super) fn how(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "expires",
        EndReason::Closed => "is closed",
        EndReason::Released
        | EndReason::Cancelled
        | EndReason::Revoked
        | EndReason::MaxHold
        | EndReason::CellRestored => "ends",
    }
}
