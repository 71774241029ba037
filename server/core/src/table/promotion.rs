//! Who gets a lock next: strict first come, first served across modes (docs/SEMANTICS.md, "Promote").
//!
//! Invariant: nobody is granted a lock while somebody live holds it in a conflicting mode, and nobody in line
//! is passed by who came later. Deliberately absent: what made room.

use lockstep_wire::FencingToken;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::reply::Grant;
use lockstep_wire::request::Mode;

use super::cell::{Candidate, Table};
use super::outcome::{Answer, Outcome, Outcomes};
use super::record::LockSlot;

/// How live sessions hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupancy {
    /// Nobody does.
    Vacant,
    /// A shared phase runs under this fence.
    Shared { fence: FencingToken },
    /// One owner does.
    Exclusive,
}

impl Occupancy {
    pub(crate) fn admits(self, mode: Mode) -> bool {
        match (self, mode) {
            (Occupancy::Vacant, _) | (Occupancy::Shared { .. }, Mode::Shared) => true,
            (Occupancy::Shared { .. }, Mode::Exclusive) | (Occupancy::Exclusive, _) => false,
        }
    }
}

impl Table {
    /// How the lock is held by live sessions. All of them hold it alike, so the first one tells.
    pub(crate) fn occupancy(&self, lock: LockSlot) -> Occupancy {
        let mut holds = self.locks[lock].holds.iter(&self.holds);
        match holds.find(|(_, hold)| self.is_live(hold.session)) {
            None => Occupancy::Vacant,
            Some((_, hold)) => match hold.mode {
                Mode::Exclusive => Occupancy::Exclusive,
                Mode::Shared => Occupancy::Shared { fence: hold.fence },
            },
        }
    }

    pub(crate) fn has_live_wait(&self, lock: LockSlot) -> bool {
        self.locks[lock].waits.iter(&self.waits).any(|(_, wait)| self.is_live(wait.session))
    }

    /// How many hold the lock in the eyes of anybody. Records are counted one by one only while some are to be
    /// reaped.
    pub(crate) fn live_holds_len(&self, lock: LockSlot) -> u32 {
        let holds = &self.locks[lock].holds;
        if self.reap_queue.is_empty() {
            return holds.len();
        }
        let live = holds.iter(&self.holds).filter(|(_, hold)| self.is_live(hold.session));
        live.fold(0, |count, _| count + 1)
    }

    /// How many wait for it, likewise.
    pub(crate) fn live_waits_len(&self, lock: LockSlot) -> u32 {
        let waits = &self.locks[lock].waits;
        if self.reap_queue.is_empty() {
            return waits.len();
        }
        let live = waits.iter(&self.waits).filter(|(_, wait)| self.is_live(wait.session));
        live.fold(0, |count, _| count + 1)
    }

    pub(crate) fn is_full_of_holders(&self, lock: LockSlot) -> bool {
        self.locks[lock].holds.len() >= self.limits.holders_per_lock_max
    }

    /// Grants a lock to somebody whom its occupancy admits.
    pub(crate) fn grant_of_new(&mut self, candidate: Candidate, occupancy: Occupancy) -> Grant {
        let token = match mutant::is(Mutant::TokenFromCounter) {
            true => FencingToken(u64::from(self.locks[candidate.lock].holds.len()) + 1),
            false => self.token(),
        };
        let fence = match occupancy {
            Occupancy::Vacant => token,
            Occupancy::Shared { fence } => fence,
            Occupancy::Exclusive => panic!("a lock that is held exclusively is granted to nobody else"),
        };
        let hold = self.add_hold(candidate, token, fence);
        self.grant_of(hold)
    }

    /// Promotes whoever the lock can be granted to, head first, as far as the budget goes; what is left is
    /// marked. Deletes the lock when nothing of it is left. While the cell is quiet every line keeps its mark.
    pub(crate) fn promote(&mut self, lock: LockSlot, budget: &mut u32, out: &mut Outcomes) {
        if self.is_quiet() {
            return self.delete_if_empty(lock);
        }
        let mut occupancy = self.occupancy(lock);
        let is_done = loop {
            let Some(head) = self.locks[lock].waits.first() else { break true };
            let wait = &self.waits[head];
            let is_live = self.is_live(wait.session);
            let is_grantable = occupancy.admits(wait.mode)
                && (wait.mode == Mode::Exclusive || !self.is_full_of_holders(lock));
            if is_live && !is_grantable {
                break true;
            }
            if *budget == 0 {
                break false;
            }
            *budget -= 1;
            let session = self.sessions[wait.session].id;
            let candidate = self.remove_wait(head);
            let acquire_id = candidate.acquire_id;
            out.push(Outcome::WaitEnded { session, acquire_id });
            if is_live {
                let mode = candidate.mode;
                let grant = self.grant_of_new(candidate, occupancy);
                occupancy = match mode {
                    Mode::Exclusive => Occupancy::Exclusive,
                    Mode::Shared => Occupancy::Shared { fence: grant.fence },
                };
                out.push(Outcome::Reply { session, request_id: acquire_id, answer: Answer::Granted(grant) });
            }
        };
        if is_done {
            self.clear_mark(lock);
        } else {
            self.set_mark(lock);
        }
        self.delete_if_empty(lock);
    }
}
