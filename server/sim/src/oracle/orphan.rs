//! No orphan holder and no orphan waiter (contract, points 3 and 5; ARCHITECTURE section 2, "Cancel").
//!
//! Invariant checked: from when a client is told that an acquire is over (its cancel or release was done, or it has a final answer
//! other than a grant), that acquire neither holds nor waits, ever; and at the end of a run whoever holds or waits is
//! known to a client that lives. Kept by its own bookkeeping of committed entries. Deliberately absent: how soon a session
//! that nobody keeps alive is gone.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::entry::Command;
use lockstep_wire::{Owner, RequestId, SessionId};

use super::once::RequestKey;
use super::{Verdict, Violation, violated};

/// What the judge demands.
pub const RULE: &str = "no orphan holder or waiter (contract 3)";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    owner: Owner,
    name: String,
    is_held: bool,
}

/// Who holds and waits in one cell, and who must not. See the module.
#[derive(Debug, Default)]
pub struct Orphans {
    live: BTreeSet<SessionId>,
    /// What each acquire that was ever admitted asked for.
    asked: BTreeMap<RequestKey, (Owner, String)>,
    claims: BTreeMap<RequestKey, Claim>,
    over: BTreeSet<RequestKey>,
}

impl Orphans {
    /// Sessions that have not ended.
    pub fn live_sessions(&self) -> impl Iterator<Item = SessionId> {
        self.live.iter().copied()
    }

    /// Acquires of live sessions that hold or wait, with what they hold or wait for.
    pub fn claims(&self) -> impl Iterator<Item = (RequestKey, &str)> {
        self.claims.iter().map(|(request, claim)| (*request, claim.name.as_str()))
    }

    /// The cell was restored from a backup: nobody lives, holds or waits.
    pub fn on_restored(&mut self) {
        self.live.clear();
        self.claims.clear();
    }

    /// Somebody holds or waits whom no client knows.
    pub fn orphan(request: RequestKey, name: &str) -> Violation {
        let (session, acquire_id) = request;
        let detail =
            format!("acquire {acquire_id} of session {session} has {name}, and no client knows of it");
        Violation { rule: RULE, detail }
    }

    /// Takes an entry and what it told.
    ///
    /// # Errors
    /// An acquire that is over holds or waits again.
    pub fn on_entry(&mut self, command: &Command<'_>, outcomes: &[Outcome]) -> Verdict {
        let (mut own, mut undone) = (None, None);
        match command {
            Command::Acquire(acquire) => {
                let request = (acquire.mutation.session, acquire.mutation.request_id);
                let name = acquire.names.iter().next().unwrap_or_default().to_owned();
                own = Some((request, acquire.owner, name));
            }
            Command::Cancel { mutation, acquire_id } | Command::Release { mutation, acquire_id, .. } => {
                undone = Some(((mutation.session, mutation.request_id), *acquire_id));
            }
            _ => {}
        }
        for outcome in outcomes {
            match outcome {
                Outcome::Opened { session, is_new: true, .. } => {
                    self.live.insert(*session);
                }
                Outcome::Reply { session, request_id, answer } => {
                    let request = (*session, *request_id);
                    if let Some((_, owner, name)) = own.as_ref().filter(|(own, _, _)| *own == request)
                        && matches!(answer, Answer::Granted(_) | Answer::Queued { .. })
                    {
                        self.asked.entry(request).or_insert_with(|| (*owner, name.clone()));
                    }
                    match (answer, undone) {
                        (Answer::Granted(_), _) => self.claim(request, true)?,
                        (Answer::Queued { .. }, _) => self.claim(request, false)?,
                        (Answer::Done, Some((by, acquire_id))) if by == request => {
                            self.claims.remove(&(*session, acquire_id));
                        }
                        (_, _) => {}
                    }
                }
                Outcome::WaitEnded { session, acquire_id } => {
                    self.claims.remove(&(*session, *acquire_id));
                }
                Outcome::HoldEnded { session, acquire_id, name, .. } => {
                    self.end_hold(*session, *acquire_id, name);
                }
                Outcome::SessionEnded { session, .. } => {
                    self.live.remove(session);
                    self.claims.retain(|(of, _), _| of != session);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn claim(&mut self, request: RequestKey, is_held: bool) -> Verdict {
        if self.over.contains(&request) {
            return violated(
                RULE,
                format!("{request:?} is over, as its client was told, and holds or waits again"),
            );
        }
        if let Some((owner, name)) = self.asked.get(&request) {
            self.claims.insert(request, Claim { owner: *owner, name: name.clone(), is_held });
        }
        Ok(())
    }

    /// All acquires of one hold end together.
    fn end_hold(&mut self, session: SessionId, acquire_id: RequestId, name: &str) {
        let Some((owner, _)) = self.asked.get(&(session, acquire_id)).cloned() else { return };
        self.claims.retain(|(of, _), claim| {
            *of != session || !claim.is_held || claim.owner != owner || claim.name != name
        });
    }

    /// A client is told that an acquire of its session is over.
    ///
    /// # Errors
    /// It holds or waits.
    pub fn on_over(&mut self, request: RequestKey) -> Verdict {
        self.over.insert(request);
        match self.claims.get(&request) {
            Some(claim) => violated(
                RULE,
                format!("a client was told that {request:?} is over, and it has {:?}", claim.name),
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::EndReason;
    use lockstep_wire::request::{Acquire, Mode, Mutation};
    use lockstep_wire::{FencingToken, Rows};

    use super::*;

    const SESSION: SessionId = SessionId(1);

    fn acquire<'a>(request_id: u64, owner: u64, names: &'a [&'a str]) -> Command<'a> {
        let mutation =
            Mutation { session: SESSION, request_id: RequestId(request_id), seen: Rows::Slice(&[]) };
        Command::Acquire(Acquire {
            mutation,
            owner: Owner(owner),
            mode: Mode::Exclusive,
            is_reentrant: false,
            permits: 0,
            wait_ms: 1,
            lock_delay_ms: 0,
            max_hold_ms: 0,
            names: Rows::Slice(names),
            data: b"",
        })
    }

    fn queued(request_id: u64) -> Outcome {
        let answer = Answer::Queued { position: 1 };
        Outcome::Reply { session: SESSION, request_id: RequestId(request_id), answer }
    }

    #[test]
    fn a_waiter_whose_cancel_was_confirmed_is_seen() {
        let mut orphans = Orphans::default();
        orphans.on_entry(&acquire(1, 1, &["n"]), &[queued(1)]).unwrap();
        assert!(orphans.on_over((SESSION, RequestId(1))).is_err());
    }

    #[test]
    fn an_acquire_that_comes_after_its_confirmed_cancel_is_seen() {
        let mut orphans = Orphans::default();
        assert!(orphans.on_over((SESSION, RequestId(1))).is_ok());
        assert!(orphans.on_entry(&acquire(1, 1, &["n"]), &[queued(1)]).is_err());
    }

    #[test]
    fn what_has_ended_is_no_claim() {
        let mut orphans = Orphans::default();
        orphans.on_entry(&acquire(1, 1, &["n"]), &[queued(1)]).unwrap();
        orphans.on_entry(&acquire(2, 2, &["m"]), &[queued(2)]).unwrap();
        let ended = Outcome::WaitEnded { session: SESSION, acquire_id: RequestId(1) };
        orphans.on_entry(&Command::Reap, &[ended]).unwrap();
        assert_eq!(orphans.claims().collect::<Vec<_>>(), [((SESSION, RequestId(2)), "m")]);
        let ended = Outcome::SessionEnded {
            session: SESSION,
            reason: EndReason::Expired,
            released_total: 0,
            released: Vec::new(),
        };
        orphans.on_entry(&Command::Reap, &[ended]).unwrap();
        assert_eq!(orphans.claims().count(), 0);
    }

    #[test]
    fn a_hold_ends_with_all_its_acquires_and_leaves_those_of_other_owners() {
        let mut orphans = Orphans::default();
        let grant = lockstep_wire::reply::Grant {
            token: FencingToken(5),
            fence: FencingToken(5),
            slot: 0,
            hold_left_ms: 0,
            holders: 1,
        };
        for (request_id, owner) in [(1, 1), (2, 1), (3, 2)] {
            let answer = Answer::Granted(grant);
            let outcome = Outcome::Reply { session: SESSION, request_id: RequestId(request_id), answer };
            orphans.on_entry(&acquire(request_id, owner, &["n"]), &[outcome]).unwrap();
        }
        let ended = Outcome::HoldEnded {
            session: SESSION,
            acquire_id: RequestId(2),
            name: "n".into(),
            token: FencingToken(5),
            reason: EndReason::Released,
        };
        orphans.on_entry(&Command::Reap, &[ended]).unwrap();
        assert_eq!(orphans.claims().map(|(request, _)| request.1).collect::<Vec<_>>(), [RequestId(3)]);
    }
}
