//! A nonce opens one session, and proves who may attach it (contract, point 5).
//!
//! Invariant checked: while a session lives, entries that open by its nonce find it and make no other; whoever is told of a
//! session has opened it by the nonce and as the client that he sent; it is attached by its nonce and refused to any other.
//! Deliberately absent: whether the session lives when its client is told; see `durability` and `expiry`.

use std::collections::BTreeMap;

use lockstep_core::table::Outcome;
use lockstep_wire::entry::Command;
use lockstep_wire::{LogIndex, Nonce, SessionId, Status};

use super::{Verdict, violated};

const RULE: &str = "a nonce opens one session, and nobody else's (contract 5)";

/// Who opens a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// His secret.
    pub nonce: Nonce,
    /// What he calls himself.
    pub client_id: String,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Nonces {
    openers: BTreeMap<SessionId, Opener>,
    /// Those that live.
    live: BTreeMap<Nonce, SessionId>,
}

impl Nonces {
    /// The session that lives by a nonce.
    pub fn live(&self, nonce: &Nonce) -> Option<SessionId> {
        self.live.get(nonce).copied()
    }

    /// The cell was restored from a backup: no session lives.
    pub fn on_restored(&mut self) {
        self.live.clear();
    }

    /// Takes an entry and what it told.
    ///
    /// # Errors
    /// It opens a second session by a nonce, or finds one that is not of it.
    pub fn on_entry(&mut self, index: LogIndex, command: &Command<'_>, outcomes: &[Outcome]) -> Verdict {
        for outcome in outcomes {
            match (command, outcome) {
                (Command::OpenSession { client_id, nonce, .. }, Outcome::Opened { session, is_new, .. }) => {
                    let opener = Opener { nonce: *nonce, client_id: (*client_id).to_owned() };
                    self.on_opened(index, *session, *is_new, opener)?;
                }
                (_, Outcome::SessionEnded { session, .. }) => {
                    self.live.retain(|_, live| live != session);
                }
                (_, _) => {}
            }
        }
        Ok(())
    }

    fn on_opened(&mut self, index: LogIndex, session: SessionId, is_new: bool, opener: Opener) -> Verdict {
        match (self.live(&opener.nonce), is_new) {
            (None, true) => {
                self.live.insert(opener.nonce, session);
                self.openers.insert(session, opener);
                Ok(())
            }
            (Some(live), false) if live == session && self.openers.get(&session) == Some(&opener) => Ok(()),
            (live, _) => violated(
                RULE,
                format!(
                    "entry {index} opens session {session} (new: {is_new}) for {:?}, whose nonce has {live:?}",
                    opener.client_id
                ),
            ),
        }
    }

    /// A client is told that its session is open.
    ///
    /// # Errors
    /// It was opened by somebody else.
    pub fn on_told(&self, session: SessionId, asker: &Opener) -> Verdict {
        let opener = self.openers.get(&session);
        if opener == Some(asker) {
            return Ok(());
        }
        violated(RULE, format!("{asker:?} is told of session {session}, which was opened by {opener:?}"))
    }

    /// A client is told what became of an attach.
    ///
    /// # Errors
    /// It is attached by another nonce, or refused by its own.
    pub fn on_attached(&self, session: SessionId, nonce: &Nonce, status: Status) -> Verdict {
        let is_its_own = self.openers.get(&session).is_some_and(|opener| opener.nonce == *nonce);
        let is_right = match status {
            Status::Ok => is_its_own,
            Status::Denied => !is_its_own,
            _ => true,
        };
        if is_right {
            return Ok(());
        }
        violated(
            RULE,
            format!("an attach of session {session} by its own nonce ({is_its_own}): {}", status.name()),
        )
    }
}

#[cfg(test)]
mod tests {
    use lockstep_wire::reply::EndReason;

    use super::*;

    const ONE: Nonce = Nonce([1; 16]);
    const OTHER: Nonce = Nonce([2; 16]);

    fn open(
        nonces: &mut Nonces,
        index: u64,
        (nonce, client_id): (Nonce, &str),
        opened: (u64, bool),
    ) -> Verdict {
        let command = Command::OpenSession { client_id, ttl_ms: 1_000, nonce };
        let (session, is_new) = (SessionId(opened.0), opened.1);
        nonces.on_entry(LogIndex(index), &command, &[Outcome::Opened { session, ttl_ms: 1_000, is_new }])
    }

    #[test]
    fn a_second_session_of_a_nonce_is_seen_while_the_first_lives() {
        let mut nonces = Nonces::default();
        assert!(open(&mut nonces, 3, (ONE, "me"), (3, true)).is_ok());
        assert!(open(&mut nonces, 4, (ONE, "me"), (3, false)).is_ok());
        assert!(open(&mut nonces, 5, (OTHER, "me"), (5, true)).is_ok());
        assert!(open(&mut nonces, 6, (ONE, "me"), (6, true)).is_err());
        assert!(open(&mut nonces, 6, (ONE, "me"), (5, false)).is_err());
        assert!(open(&mut nonces, 6, (ONE, "thief"), (3, false)).is_err());
        let ended = Outcome::SessionEnded {
            session: SessionId(3),
            reason: EndReason::Expired,
            released_total: 0,
            released: Vec::new(),
        };
        assert!(nonces.on_entry(LogIndex(7), &Command::Blank, &[ended]).is_ok());
        assert!(open(&mut nonces, 8, (ONE, "me"), (3, false)).is_err());
        assert!(open(&mut nonces, 8, (ONE, "me"), (8, true)).is_ok());
    }

    #[test]
    fn a_session_is_for_its_opener_alone() {
        let mut nonces = Nonces::default();
        assert!(open(&mut nonces, 3, (ONE, "me"), (3, true)).is_ok());
        let session = SessionId(3);
        let me = Opener { nonce: ONE, client_id: "me".to_owned() };
        assert!(nonces.on_told(session, &me).is_ok());
        assert!(nonces.on_told(SessionId(4), &me).is_err());
        assert!(nonces.on_told(session, &Opener { nonce: OTHER, ..me.clone() }).is_err());
        assert!(nonces.on_told(session, &Opener { client_id: "thief".to_owned(), ..me }).is_err());
        for (nonce, status, is_right) in [
            (ONE, Status::Ok, true),
            (ONE, Status::Denied, false),
            (OTHER, Status::Ok, false),
            (OTHER, Status::Denied, true),
            (ONE, Status::OutcomeUnknown, true),
        ] {
            assert_eq!(nonces.on_attached(session, &nonce, status).is_ok(), is_right, "{status:?}");
        }
    }
}
