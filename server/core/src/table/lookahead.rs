//! What the next entries will look at, asked for from memory before the first of them is applied.
//!
//! A session, its claims, a hold, its lock and the lock's name lie in as many places. In a large table each of them has to
//! be waited for, one after the other, entry after entry; that takes longer than all else about an entry. Asked for by
//! the batch, the waits overlap. It pays where entries come by the batch: under load, and most of all after a restart.
//!
//! Invariant: nothing is changed, and nothing depends on what is found. Deliberately absent: commands of which there are
//! few.

use std::hint::black_box;

use lockstep_wire::entry::Command;
use lockstep_wire::{RequestId, SessionId};

use super::cell::Table;
use super::names::LOOKED_UP_AT_ONCE;
use super::record::{ClaimState, HoldSlot, LockSlot, Session, SessionSlot};

/// How many entries are looked at together.
pub const ENTRIES_AHEAD: usize = LOOKED_UP_AT_ONCE;

/// Sessions and locks that a table has before it is worth looking ahead: fewer lie in a core's own caches anyway.
const LARGE: usize = 16_384;

/// What an entry says that it is about.
#[derive(Clone, Copy, Debug)]
struct Subject<'a> {
    session: SessionId,
    /// The acquire that is to end.
    acquire_id: Option<RequestId>,
    name: &'a str,
}

impl<'a> Subject<'a> {
    fn of(command: &Command<'a>) -> Option<Subject<'a>> {
        match command {
            Command::Acquire(acquire) => Some(Subject {
                session: acquire.mutation.session,
                acquire_id: None,
                name: acquire.names.iter().next().unwrap_or_default(),
            }),
            Command::Release { mutation, acquire_id, name, .. } => {
                Some(Subject { session: mutation.session, acquire_id: Some(*acquire_id), name })
            }
            Command::Blank
            | Command::OpenSession { .. }
            | Command::Cancel { .. }
            | Command::CancelWait { .. }
            | Command::EndSessions { .. }
            | Command::Reap
            | Command::SessionsSilent { .. }
            | Command::SessionsReturned { .. }
            | Command::EndQuiet
            | Command::Members(_) => None,
        }
    }
}

/// A fixed number of what was found, so that nothing is allocated.
type Batch<T> = [Option<T>; ENTRIES_AHEAD];

fn each<T: Copy, U: Copy>(batch: &Batch<T>, mut find: impl FnMut(T) -> Option<U>) -> Batch<U> {
    let mut found = [None; ENTRIES_AHEAD];
    for (found, known) in found.iter_mut().zip(batch) {
        *found = known.and_then(&mut find);
    }
    found
}

impl Table {
    /// Whether it pays to look ahead.
    pub fn is_large(&self) -> bool {
        self.sessions.len() + self.locks.len() >= LARGE
    }

    /// Asks for what entries with these payloads will look at: the first [`ENTRIES_AHEAD`] of them.
    pub fn look_ahead<'a>(&self, payloads: impl Iterator<Item = &'a [u8]>) {
        let mut subjects: Batch<Subject<'a>> = [None; ENTRIES_AHEAD];
        for (subject, payload) in subjects.iter_mut().zip(payloads) {
            *subject = Command::decode(payload).ok().and_then(|command| Subject::of(&command));
        }
        // Each pass asks for what the pass before has found, for all of the batch.
        let found = each(&subjects, |subject| Some((subject, self.slot_of(subject.session)?)));
        let mut seen = 0;
        each(&found, |(_, slot)| {
            seen ^= touch_session(&self.sessions[slot]);
            None::<()>
        });
        self.touch_claims(found.iter().flatten().map(|(_, slot)| *slot));
        let holds: Batch<HoldSlot> =
            each(&found, |(subject, slot)| match self.sessions[slot].claim(subject.acquire_id?)?.state {
                ClaimState::Holds { hold, .. } => Some(hold),
                ClaimState::Waits(_) => None,
            });
        let locks: Batch<LockSlot> = each(&holds, |hold| Some(self.holds[hold].lock));
        each(&locks, |lock| {
            seen ^= u64::from(self.locks[lock].holds.len());
            None::<()>
        });
        each(&locks, |lock| {
            seen ^= u64::from(*self.locks[lock].name.as_bytes().first()?);
            None::<()>
        });
        black_box(seen);
        let mut names = [""; ENTRIES_AHEAD];
        let named = names
            .iter_mut()
            .zip(subjects.iter().flatten())
            .map(|(name, subject)| *name = subject.name)
            .count();
        self.locks_by_name.look_up(&names[..named]);
    }

    /// Asks for the claims and the kept outcomes of sessions.
    pub(super) fn touch_claims(&self, sessions: impl Iterator<Item = SessionSlot>) {
        let seen = sessions.map(|slot| &self.sessions[slot]).fold(0, |seen, session| {
            let claim = session.claims.last().map_or(0, |claim| claim.content);
            let kept = session.kept.last().map_or(0, |kept| kept.content);
            seen ^ claim ^ kept
        });
        black_box(seen);
    }
}

/// Looks at fields that are not beside each other.
pub(super) fn touch_session(session: &Session) -> u64 {
    session.id.0
        ^ session.highest.0
        ^ session.identity
        ^ session.copied_for
        ^ session.claims.len() as u64
        ^ session.kept.len() as u64
}
