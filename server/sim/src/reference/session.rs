//! What every session-scoped command checks first, and the request window (SEMANTICS sections 2 and 3).
//!
//! Invariant: a refusal leaves nothing behind but what was seen.

use lockstep_core::table::{Answer, Outcome};
use lockstep_wire::reply::Grant;
use lockstep_wire::request::Mutation;
use lockstep_wire::{RequestId, SessionId};

use super::{Content, Kept, Model, WINDOW_MAX};

/// What the window knows of a request id.
pub(super) enum Standing {
    /// It has been answered, or waits: this is the answer to the same request again, and the remaining wait
    /// starts anew if it says so.
    Replay { answer: Answer, is_wait: bool },
    /// Not to be carried out.
    Refused(Answer),
    /// To be carried out.
    New,
}

impl Model {
    /// Section 2, rule 1.
    pub(super) fn session_refusal(&self, id: SessionId) -> Option<Answer> {
        match self.session_record(id) {
            Some(session) if session.ended.is_none() => None,
            Some(_) => Some(Answer::SessionExpired),
            None if id.0 <= self.now() && id.0 & ((1 << 48) - 1) != 0 => Some(Answer::SessionExpired),
            None => Some(Answer::SessionUnknown),
        }
    }

    /// Section 2, rules 1 and 2; `shape` is what the command's own row says.
    pub(super) fn early_refusal(&self, mutation: &Mutation<'_>, shape: Option<Answer>) -> Option<Answer> {
        let id = mutation.request_id.0;
        let is_out_of_bounds = id == 0 || id >= 1 << 63;
        self.session_refusal(mutation.session)
            .or(is_out_of_bounds.then_some(Answer::Invalid("request_id")))
            .or(shape)
    }

    /// Section 2, rule 3.
    pub(super) fn take_seen(&mut self, mutation: &Mutation<'_>) {
        let seen: Vec<RequestId> = mutation.seen.iter().filter(|id| *id < mutation.request_id).collect();
        let session = self.session_mut(mutation.session);
        session.outcomes.retain(|kept| !seen.contains(&kept.id));
        for lock in &mut self.locks {
            for hold in lock.holds.iter_mut().filter(|hold| hold.session == mutation.session) {
                for acquire in &mut hold.acquires {
                    acquire.is_seen |= seen.contains(&acquire.id);
                }
            }
        }
    }

    /// Section 2, rule 4, with the table of section 3.
    pub(super) fn standing(&self, id: SessionId, request_id: RequestId, content: &Content) -> Standing {
        let session = self.session_record(id).expect("the session was looked up");
        if let Some((known, answer, is_wait)) = self.known_request(id, request_id) {
            if known == *content {
                return Standing::Replay { answer, is_wait };
            }
            return Standing::Refused(Answer::Invalid("request_id"));
        }
        if request_id.0 <= session.highest && !session.gaps.contains(&request_id.0) {
            return Standing::Refused(Answer::StaleRequest);
        }
        Standing::New
    }

    fn known_request(&self, id: SessionId, request_id: RequestId) -> Option<(Content, Answer, bool)> {
        for lock in &self.locks {
            for hold in lock.holds.iter().filter(|hold| hold.session == id) {
                if let Some(acquire) = hold.acquires.iter().find(|acquire| acquire.id == request_id) {
                    let grant = Grant {
                        token: hold.token,
                        fence: hold.fence,
                        slot: 0,
                        hold_left_ms: 0,
                        holders: self.live_holders(lock),
                    };
                    return Some((acquire.content.clone(), Answer::Granted(grant), false));
                }
            }
            if let Some(wait) = lock.waits.iter().find(|wait| wait.session == id && wait.id == request_id) {
                return Some((wait.content.clone(), Answer::Queued { position: wait.position }, true));
            }
        }
        let session = self.session_record(id)?;
        let kept = session.outcomes.iter().find(|kept| kept.id == request_id)?;
        Some((kept.content.clone(), kept.answer, false))
    }

    /// Section 2, rule 5.
    pub(super) fn consume(&mut self, id: SessionId, request_id: RequestId) {
        let session = self.session_mut(id);
        if session.gaps.contains(&request_id.0) {
            session.gaps.retain(|gap| *gap != request_id.0);
            return;
        }
        // Of what is skipped only the highest 64 can stay, so the others need not be listed first.
        let first = (session.highest + 1).max(request_id.0.saturating_sub(WINDOW_MAX as u64));
        session.gaps.extend(first..request_id.0);
        session.highest = request_id.0;
        while session.gaps.len() > WINDOW_MAX {
            session.gaps.remove(0);
        }
    }

    /// Outcomes, waits, and acquire ids whose GRANTED was not seen (section 1, "Load").
    pub(super) fn load(&self, id: SessionId) -> usize {
        let outcomes = self.session_record(id).map_or(0, |session| session.outcomes.len());
        let mut load = outcomes;
        for lock in &self.locks {
            load += lock.waits.iter().filter(|wait| wait.session == id).count();
            for hold in lock.holds.iter().filter(|hold| hold.session == id) {
                load += hold.acquires.iter().filter(|acquire| !acquire.is_seen).count();
            }
        }
        load
    }

    pub(super) fn keep(&mut self, id: SessionId, request_id: RequestId, content: Content, answer: Answer) {
        self.session_mut(id).outcomes.push(Kept { id: request_id, content, answer });
    }

    /// The checks of section 2 that come before a command's own row, its own shape among them. Says whether the
    /// row is to be looked at; otherwise it is answered already.
    pub(super) fn admit(
        &mut self,
        mutation: &Mutation<'_>,
        shape: Option<Answer>,
        content: &Content,
        wait_ms: u32,
        out: &mut Vec<Outcome>,
    ) -> bool {
        let (session, request_id) = (mutation.session, mutation.request_id);
        let reply = |answer| Outcome::Reply { session, request_id, answer };
        if let Some(answer) = self.early_refusal(mutation, shape) {
            out.push(reply(answer));
            return false;
        }
        self.take_seen(mutation);
        match self.standing(session, request_id, content) {
            Standing::New => true,
            Standing::Refused(answer) => {
                out.push(reply(answer));
                false
            }
            Standing::Replay { answer, is_wait } => {
                out.push(reply(answer));
                if is_wait {
                    out.push(Outcome::WaitStarted { session, acquire_id: request_id, wait_ms });
                }
                false
            }
        }
    }
}

pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).expect("a model is small")
}
