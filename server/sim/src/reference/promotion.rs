//! Granting, promotion, and the slices of reaping (SEMANTICS sections 1 and 6).
//!
//! Invariant: one entry promotes a lock once at most, after everything that it removes is removed.

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::reply::Grant;
use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, RequestId, SessionId};

use super::session::count;
use super::{Hold, HoldAcquire, Lock, Model, Wait};

impl Model {
    /// Whether a request could be granted with `ahead` of the line in front of it.
    pub(super) fn is_grantable(&self, lock: &Lock, mode: Mode, ahead: &[Wait]) -> bool {
        let is_somebody_ahead = ahead.iter().any(|wait| self.is_live(wait.session));
        let mut live_holds = lock.holds.iter().filter(|hold| self.is_live(hold.session));
        let is_free = match mode {
            Mode::Shared => {
                live_holds.all(|hold| hold.mode == Mode::Shared)
                    && lock.holds.len() < self.limits.holders_per_lock_max as usize
            }
            Mode::Exclusive => live_holds.next().is_none(),
        };
        is_free && !is_somebody_ahead && !self.is_quiet
    }

    pub(super) fn live_holders(&self, lock: &Lock) -> u32 {
        count(lock.holds.iter().filter(|hold| self.is_live(hold.session)).count())
    }

    /// Appends a hold made by `request`, and gives its answer.
    pub(super) fn grant(&mut self, name: &str, request: Wait) -> Answer {
        let token = FencingToken(self.now());
        let shared_fence = self.lock_record(name).and_then(|lock| {
            lock.holds.iter().find(|hold| self.is_live(hold.session)).map(|hold| hold.fence)
        });
        let fence = match request.mode {
            Mode::Exclusive => token,
            Mode::Shared => shared_fence.unwrap_or(token),
        };
        let lock = self.lock_mut(name);
        lock.holds.push(Hold {
            session: request.session,
            owner: request.owner,
            mode: request.mode,
            token,
            fence,
            data: request.data,
            acquires: vec![HoldAcquire { id: request.id, content: request.content, is_seen: false }],
        });
        let holders = self.live_holders(self.lock_record(name).expect("it has a hold now"));
        Answer::Granted(Grant { token, fence, slot: 0, hold_left_ms: 0, holders })
    }

    /// Promote(lock, budget) of section 1; gives what is left of the budget, and whether it was done.
    pub(super) fn promote(&mut self, name: &str, budget: u32, out: &mut Vec<Outcome>) -> (u32, bool) {
        if self.is_quiet {
            self.delete_if_empty(name);
            return (budget, true);
        }
        let mut left = budget;
        let is_done = loop {
            let Some(head) = self.lock_record(name).and_then(|lock| lock.waits.first()).cloned() else {
                break true;
            };
            let is_live = self.is_live(head.session);
            let lock = self.lock_record(name).expect("it has a wait");
            if is_live && !self.is_grantable(lock, head.mode, &[]) {
                break true;
            }
            if left == 0 {
                break false;
            }
            left -= 1;
            self.lock_mut(name).waits.remove(0);
            let (session, acquire_id) = (head.session, head.id);
            out.push(Outcome::WaitEnded { session, acquire_id });
            if is_live {
                let answer = self.grant(name, head);
                out.push(Outcome::Reply { session, request_id: acquire_id, answer });
            }
        };
        if is_done {
            self.marks.retain(|mark| mark != name);
        } else if !self.marks.iter().any(|mark| mark == name) {
            self.marks.push(name.to_owned());
        }
        self.delete_if_empty(name);
        (left, is_done)
    }

    /// One slice of section 6.
    pub(super) fn reap_slice(&mut self, out: &mut Vec<Outcome>) {
        let budget = self.limits.transitions_per_entry_max;
        let mut used = 0;
        while used < budget / 2 {
            let Some(session) = self.reap_queue.first().copied() else { break };
            used += 1;
            self.reap_one(session, out);
        }
        let mut left = budget - used;
        while left > 0 && !self.is_quiet {
            let Some(name) = self.marks.first().cloned() else { break };
            left -= 1;
            let (rest, is_done) = self.promote(&name, left, out);
            left = if is_done { rest } else { 0 };
        }
    }

    /// Removes one record of an ended session: a hold, else a wait, else the session itself.
    fn reap_one(&mut self, session: SessionId, out: &mut Vec<Outcome>) {
        if let Some((name, acquire_id)) = self.lowest_hold(session) {
            let reason = self.session_record(session).and_then(|record| record.ended).expect("it has ended");
            let lock = self.lock_mut(&name);
            let is_it = |hold: &Hold| hold.session == session && hold.lowest_id() == acquire_id;
            let at = lock.holds.iter().position(is_it).expect("it was found");
            let hold = lock.holds.remove(at);
            out.push(Outcome::HoldEnded {
                session,
                acquire_id,
                name: name.as_str().into(),
                token: hold.token,
                reason,
            });
            self.mark_or_delete(&name);
        } else if let Some((name, acquire_id)) = self.lowest_wait(session) {
            self.lock_mut(&name).waits.retain(|wait| wait.session != session || wait.id != acquire_id);
            out.push(Outcome::WaitEnded { session, acquire_id });
            self.mark_or_delete(&name);
        } else {
            self.sessions.retain(|record| record.id != session);
            self.reap_queue.retain(|id| *id != session);
        }
    }

    fn lowest_hold(&self, session: SessionId) -> Option<(String, RequestId)> {
        let mut found: Option<(String, RequestId)> = None;
        for lock in &self.locks {
            for hold in lock.holds.iter().filter(|hold| hold.session == session) {
                if found.as_ref().is_none_or(|(_, id)| hold.lowest_id() < *id) {
                    found = Some((lock.name.clone(), hold.lowest_id()));
                }
            }
        }
        found
    }

    fn lowest_wait(&self, session: SessionId) -> Option<(String, RequestId)> {
        let mut found: Option<(String, RequestId)> = None;
        for lock in &self.locks {
            for wait in lock.waits.iter().filter(|wait| wait.session == session) {
                if found.as_ref().is_none_or(|(_, id)| wait.id < *id) {
                    found = Some((lock.name.clone(), wait.id));
                }
            }
        }
        found
    }

    fn mark_or_delete(&mut self, name: &str) {
        let has_waits = self.lock_record(name).is_some_and(|lock| !lock.waits.is_empty());
        if has_waits && !self.marks.iter().any(|mark| mark == name) {
            self.marks.push(name.to_owned());
        }
        self.delete_if_empty(name);
    }
}
