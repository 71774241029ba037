//! Reads are linearizable (contract, point 4).
//!
//! Invariant checked: a read shows its lock, token or session exactly as it was after one entry, namely that of its revision
//! where it names one; and no acknowledgement that anybody had when the read was asked for, of a write or of
//! another read, is missing in it. It knows what each entry left and what clients were shown. Deliberately
//! absent: lists, which are not built; status and routes, which are one node's word.

use std::collections::BTreeMap;

use lockstep_wire::request::Mode;
use lockstep_wire::{FencingToken, LogIndex, Owner, RequestId, SessionId};

use super::{Verdict, violated};

const RULE: &str = "reads are linearizable (contract 4)";

/// Who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The session.
    pub session: SessionId,
    /// Who, within it.
    pub owner: Owner,
    /// The acquire that names the hold.
    pub acquire_id: RequestId,
    /// Its token.
    pub token: FencingToken,
    /// Its fence.
    pub fence: FencingToken,
}

/// Who waits: session, who within it, acquire, and how it wishes to hold.
pub type Waiter = (SessionId, Owner, RequestId, Mode);

/// A lock as it is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    /// In the order of the grants.
    pub holders: Vec<Holder>,
    /// In line.
    pub waiters: Vec<Waiter>,
}

/// What a session has: acquire, who, how, token and fence (0 while it waits), name.
pub type Claims = Vec<(RequestId, Owner, Mode, FencingToken, FencingToken, String)>;

/// What is said of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenWord {
    /// The token.
    pub token: FencingToken,
    /// Whose it should be; 0 for anybody's.
    pub of: SessionId,
    /// Whether it names a live hold.
    pub is_current: bool,
    /// The greatest token of live holds; 0 without one.
    pub latest: FencingToken,
    /// The floor; 0 while there is a live hold.
    pub fence_floor: FencingToken,
}

/// How the locks and sessions of one cell changed.
#[derive(Debug, Default)]
pub struct Readings {
    locks: BTreeMap<String, Vec<(LogIndex, Lock)>>,
    sessions: BTreeMap<SessionId, Vec<(LogIndex, Claims)>>,
    /// The newest entry of which any client has had an acknowledgement.
    acknowledged: LogIndex,
    applied: LogIndex,
}

impl Readings {
    /// Names that anybody ever held or asked for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.locks.keys().map(String::as_str)
    }

    /// An entry was applied; what it changed is told next.
    pub fn on_entry(&mut self, index: LogIndex) {
        self.applied = index;
    }

    /// The cell goes on behind this entry, as restored from a backup, and nobody has anything.
    pub fn on_restored(&mut self, through: LogIndex) {
        *self = Readings { acknowledged: through, applied: through, ..Readings::default() };
    }

    /// A lock after the last entry.
    pub fn on_lock(&mut self, name: &str, lock: Lock) {
        let changes = self.locks.entry(name.to_owned()).or_default();
        if changes.last().map_or(lock != Lock::default(), |(_, last)| *last != lock) {
            changes.push((self.applied, lock));
        }
    }

    /// What a live session has after the last entry.
    pub fn on_session(&mut self, session: SessionId, claims: Claims) {
        let changes = self.sessions.entry(session).or_default();
        if changes.last().is_none_or(|(_, last)| *last != claims) {
            changes.push((self.applied, claims));
        }
    }

    /// A client was told of something that this entry did.
    pub fn on_acknowledged(&mut self, index: LogIndex) {
        self.acknowledged = self.acknowledged.max(index);
    }

    /// What a read that is asked for now must know of.
    pub fn floor(&self) -> LogIndex {
        self.acknowledged
    }

    /// A client was shown a lock, which it had asked for when [`Readings::floor`] was `floor`.
    ///
    /// # Errors
    /// It was not so at its revision, or the revision is too old or yet to come.
    pub fn on_lock_read(
        &mut self,
        name: &str,
        (revision, fence_floor): (LogIndex, FencingToken),
        shown: &Lock,
        floor: LogIndex,
    ) -> Verdict {
        self.check_revision(name, revision, floor)?;
        let then = state_at(self.locks.get(name), revision);
        if then.unwrap_or(&Lock::default()) != shown {
            return violated(
                RULE,
                format!("a read of {name} at {revision} shows {shown:?}, and it was {then:?}"),
            );
        }
        let is_floor_right =
            if shown.holders.is_empty() { fence_floor.index() == revision } else { fence_floor.0 == 0 };
        if !is_floor_right {
            return violated(RULE, format!("a read of {name} at {revision} shows the floor {fence_floor}"));
        }
        self.on_acknowledged(revision);
        Ok(())
    }

    /// A client was shown who holds a lock and nothing else, likewise.
    ///
    /// # Errors
    /// They did not at its revision, or the revision is too old or yet to come.
    pub fn on_holders_read(
        &mut self,
        name: &str,
        revision: LogIndex,
        shown: &[(SessionId, RequestId, FencingToken)],
        floor: LogIndex,
    ) -> Verdict {
        self.check_revision(name, revision, floor)?;
        let then = state_at(self.locks.get(name), revision).map_or(&[][..], |lock| lock.holders.as_slice());
        let were = then.iter().map(|holder| (holder.session, holder.acquire_id, holder.token));
        if !were.eq(shown.iter().copied()) {
            return violated(
                RULE,
                format!("a read of {name} at {revision} shows {shown:?}, and it was {then:?}"),
            );
        }
        self.on_acknowledged(revision);
        Ok(())
    }

    /// A client was told of a token, likewise.
    ///
    /// # Errors
    /// It was so at no entry that it could have been.
    pub fn on_token_read(&mut self, name: &str, word: TokenWord, floor: LogIndex) -> Verdict {
        let nothing = Lock::default();
        let at = if word.fence_floor.0 == 0 {
            // The reply names no revision: any from the floor on will do, and the first one that does is taken.
            let later = self.locks.get(name).map_or(&[][..], Vec::as_slice);
            let first = (floor, state_at(self.locks.get(name), floor).unwrap_or(&nothing));
            let later = later.iter().filter(|(index, _)| *index > floor).map(|(index, lock)| (*index, lock));
            let mut states = std::iter::once(first).chain(later);
            states.find(|(_, lock)| !lock.holders.is_empty() && fits(lock, word)).map(|(index, _)| index)
        } else {
            let revision = word.fence_floor.index();
            self.check_revision(name, revision, floor)?;
            let then = state_at(self.locks.get(name), revision).unwrap_or(&nothing);
            (then.holders.is_empty() && fits(then, word)).then_some(revision)
        };
        let Some(at) = at else {
            return violated(
                RULE,
                format!("{word:?} is said of {name}, asked for at {floor} or later, and it was never so"),
            );
        };
        self.on_acknowledged(at);
        Ok(())
    }

    /// A client was shown a session, likewise.
    ///
    /// # Errors
    /// It was not so at its revision, or the revision is too old or yet to come.
    pub fn on_session_read(
        &mut self,
        session: SessionId,
        revision: LogIndex,
        shown: &Claims,
        floor: LogIndex,
    ) -> Verdict {
        self.check_revision("a session", revision, floor)?;
        let then = state_at(self.sessions.get(&session), revision);
        if then != Some(shown) {
            return violated(
                RULE,
                format!("a read of session {session} at {revision} shows {shown:?}, and it was {then:?}"),
            );
        }
        self.on_acknowledged(revision);
        Ok(())
    }

    fn check_revision(&self, what: &str, revision: LogIndex, floor: LogIndex) -> Verdict {
        if revision < floor {
            return violated(
                RULE,
                format!(
                    "a read of {what} shows revision {revision}, and {floor} had been acknowledged before it"
                ),
            );
        }
        if revision > self.applied {
            return violated(
                RULE,
                format!(
                    "a read of {what} shows revision {revision}, and {} is the last that committed",
                    self.applied
                ),
            );
        }
        Ok(())
    }
}

fn state_at<T>(changes: Option<&Vec<(LogIndex, T)>>, index: LogIndex) -> Option<&T> {
    let changes = changes?;
    let count = changes.partition_point(|(changed, _)| *changed <= index);
    changes.get(count.checked_sub(1)?).map(|(_, state)| state)
}

fn fits(lock: &Lock, word: TokenWord) -> bool {
    let is_it = |holder: &Holder| holder.token == word.token && (word.of.0 == 0 || word.of == holder.session);
    let latest = lock.holders.iter().map(|holder| holder.token).max().unwrap_or_default();
    latest == word.latest && lock.holders.iter().any(is_it) == word.is_current
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Lock {
        let token = FencingToken(3);
        let holder =
            Holder { session: SessionId(1), owner: Owner(1), acquire_id: RequestId(1), token, fence: token };
        Lock { holders: vec![holder], waiters: Vec::new() }
    }

    /// The lock `n` is held from entry 3 on, and free again from entry 6 on; 9 entries were applied.
    fn readings() -> Readings {
        let mut readings = Readings::default();
        for (index, lock) in [(3, held()), (6, Lock::default()), (9, Lock::default())] {
            readings.on_entry(LogIndex(index));
            readings.on_lock("n", lock);
        }
        readings
    }

    fn word(is_current: bool, latest: u64, fence_floor: u64) -> TokenWord {
        TokenWord {
            token: FencingToken(3),
            of: SessionId(0),
            is_current,
            latest: FencingToken(latest),
            fence_floor: FencingToken(fence_floor),
        }
    }

    #[test]
    fn a_read_of_the_past_is_seen() {
        let read = |revision, floor, shown: &Lock, since| {
            let view = (LogIndex(revision), FencingToken(floor));
            readings().on_lock_read("n", view, shown, LogIndex(since))
        };
        let free = Lock::default();
        assert!(read(2, 2, &free, 0).is_ok());
        assert!(read(2, 2, &free, 3).is_err(), "3 had been acknowledged");
        assert!(read(4, 0, &held(), 3).is_ok());
        assert!(read(4, 4, &free, 3).is_err(), "it was held then");
        assert!(read(7, 7, &held(), 3).is_err(), "it was free then");
        assert!(read(10, 10, &free, 3).is_err(), "there is no entry 10");
    }

    #[test]
    fn holders_that_were_not_then_are_seen() {
        let read =
            |revision, shown: &[_]| readings().on_holders_read("n", LogIndex(revision), shown, LogIndex(3));
        let held = [(SessionId(1), RequestId(1), FencingToken(3))];
        assert!(read(4, &held).is_ok());
        assert!(read(4, &[]).is_err());
        assert!(read(7, &held).is_err());
        assert!(read(2, &[]).is_err());
    }

    #[test]
    fn a_floor_that_is_not_the_revision_of_a_free_lock_is_seen() {
        let free = Lock::default();
        assert!(readings().on_lock_read("n", (LogIndex(7), FencingToken(6)), &free, LogIndex(0)).is_err());
        assert!(readings().on_lock_read("n", (LogIndex(4), FencingToken(4)), &held(), LogIndex(0)).is_err());
    }

    #[test]
    fn what_was_never_so_of_a_token_is_seen() {
        let check = |word, since| readings().on_token_read("n", word, LogIndex(since));
        assert!(check(word(true, 3, 0), 0).is_ok());
        assert!(check(word(true, 3, 0), 5).is_ok());
        assert!(check(word(true, 3, 0), 6).is_err(), "6 had been acknowledged");
        assert!(check(word(false, 3, 0), 0).is_err());
        assert!(check(word(false, 4, 0), 0).is_err());
        assert!(check(word(false, 0, 7), 6).is_ok());
        assert!(check(word(false, 0, 4), 0).is_err(), "it was held then");
        assert!(check(word(true, 0, 7), 0).is_err());
    }

    #[test]
    fn a_read_raises_what_later_reads_must_know() {
        let mut readings = readings();
        readings.on_token_read("n", word(false, 0, 7), LogIndex(0)).unwrap();
        assert_eq!(readings.floor(), LogIndex(7));
    }

    #[test]
    fn a_session_that_was_never_so_is_seen() {
        let token = FencingToken(3);
        let claims = vec![(RequestId(1), Owner(1), Mode::Shared, token, token, "n".to_owned())];
        let mut readings = Readings::default();
        for (index, claims) in [(1, Vec::new()), (3, claims.clone())] {
            readings.on_entry(LogIndex(index));
            readings.on_session(SessionId(1), claims);
        }
        let mut read = |session, revision, shown: &Claims, floor| {
            readings.on_session_read(SessionId(session), LogIndex(revision), shown, LogIndex(floor))
        };
        assert!(read(1, 2, &Vec::new(), 0).is_ok());
        assert!(read(1, 2, &claims, 0).is_err());
        assert!(read(1, 2, &Vec::new(), 3).is_err());
        assert!(read(1, 3, &claims, 3).is_ok());
        assert!(read(2, 3, &claims, 3).is_err());
    }
}
