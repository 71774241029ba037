//! The table that comes of a snapshot's bytes, as they arrive.
//!
//! Every record goes through the step of the table that adds it, so that indexes and digest come of what was read.
//!
//! Invariant: whatever the bytes are, each is looked at once, nothing is allocated by a length that they claim, and the
//! answer is a table or a typed error. A table that is given has the digest that the snapshot says, and its records name
//! each other. Deliberately absent: where the bytes come from.

use std::collections::BTreeMap;
use std::hint::black_box;

use lockstep_wire::cursor::Reader;
use lockstep_wire::limit::REQUEST_ID_LIMIT;
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::{Epoch, FencingToken, LogIndex, RequestId, SessionId};

use super::SnapshotError;
use super::item::{Acquired, Header, HoldHead, LENGTH_BYTES, LockHead, WaitItem, read_members, read_session};
use crate::table::cell::{Candidate, Table};
use crate::table::digest;
use crate::table::freeing::ROWS;
use crate::table::limits::Limits;
use crate::table::lookahead::touch_session;
use crate::table::record::{LockSlot, Session, SessionSlot};

/// Makes a table of a snapshot that comes in pieces.
#[derive(Debug)]
pub struct TableLoader {
    table: Table,
    /// The table's digest as the header says.
    digest: u64,
    next: Next,
    sessions_left: u32,
    locks_left: u32,
    /// The sessions in their order: quicker to look through than their index.
    sessions: Vec<(SessionId, SessionSlot)>,
    last_lock: Option<LockSlot>,
    /// The ended sessions by their places in the reap queue.
    ended: BTreeMap<u64, SessionSlot>,
    /// The beginning of an item whose end has not come.
    partial: Vec<u8>,
    error: Option<SnapshotError>,
    /// How many of the next items have been looked at.
    looked_ahead: usize,
}

/// Sessions that are asked for together.
const SESSIONS_AHEAD: usize = 32;

/// What the next item is.
#[derive(Clone, Copy, Debug)]
enum Next {
    Header,
    Members,
    /// A session, a lock when no session is left, and nothing when no lock is left either.
    Record,
    /// A hold or wait of this lock.
    OfLock(OpenLock),
}

/// A lock whose holds and waits have not all come.
#[derive(Clone, Copy, Debug)]
struct OpenLock {
    lock: LockSlot,
    holds_left: u32,
    /// They come behind the holds.
    waits_left: u32,
    /// The token of the hold before.
    last_token: FencingToken,
    /// With which entry the wait before lined up.
    last_since: LogIndex,
}

type Loaded<T> = Result<T, SnapshotError>;

impl TableLoader {
    /// For the table of a cell with these limits.
    ///
    /// # Panics
    /// When the limits contradict each other.
    pub fn new(limits: Limits) -> TableLoader {
        TableLoader {
            table: Table::new(Epoch(0), limits),
            digest: 0,
            next: Next::Header,
            sessions_left: 0,
            locks_left: 0,
            sessions: Vec::new(),
            last_lock: None,
            ended: BTreeMap::new(),
            partial: Vec::new(),
            error: None,
            looked_ahead: 0,
        }
    }

    /// Takes the next bytes of the snapshot. Once it has failed, it fails alike for ever.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.take(bytes).inspect_err(|error| self.error = Some(*error))
    }

    /// The table, when all bytes have come. Once it has been given, nothing is left here.
    pub fn finish(&mut self) -> Result<Table, SnapshotError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if !self.is_complete() || !self.partial.is_empty() {
            return Err(SnapshotError::Incomplete);
        }
        self.line_up(usize::MAX);
        let (recorded, loaded) = (self.digest, self.table.digest());
        if mutant::is(Mutant::WindowLostInSnapshot) {
            self.table.forget_windows();
        }
        if recorded != loaded {
            return Err(SnapshotError::OtherDigest { recorded, loaded });
        }
        let nothing = Table::new(Epoch(0), self.table.limits);
        Ok(std::mem::replace(&mut self.table, nothing))
    }

    /// Frees a part of what has been loaded, when nothing is wanted of it any more; tells whether something is left. What
    /// is left can be freed, and nothing else.
    pub fn free_part(&mut self) -> bool {
        let mut is_left = self.table.free_part();
        for _ in 0..ROWS {
            is_left |= self.ended.pop_first().is_some();
        }
        is_left
    }

    #[cfg(test)]
    pub(crate) fn ended_len(&self) -> usize {
        self.ended.len()
    }

    /// Lets so many of the ended sessions, all of which have come, join the reap queue.
    fn line_up(&mut self, sessions: usize) {
        let ended = std::iter::from_fn(|| self.ended.pop_first()).take(sessions);
        self.table.reap_queue.extend(ended.map(|(_, session)| session));
    }

    fn is_complete(&self) -> bool {
        matches!(self.next, Next::Record) && self.sessions_left == 0 && self.locks_left == 0
    }

    fn take(&mut self, mut bytes: &[u8]) -> Loaded<()> {
        while !bytes.is_empty() {
            if self.is_complete() {
                return Err(SnapshotError::Trailing);
            }
            if self.partial.is_empty()
                && let Some((item, rest)) = split_item(bytes)
            {
                if self.looked_ahead == 0 {
                    self.look_ahead(bytes);
                }
                self.looked_ahead = self.looked_ahead.saturating_sub(1);
                bytes = rest;
                self.take_item(item)?;
                continue;
            }
            let wanted = wanted_bytes(&self.partial) - self.partial.len();
            let (head, rest) = bytes.split_at(wanted.min(bytes.len()));
            self.partial.extend_from_slice(head);
            bytes = rest;
            if self.partial.len() == wanted_bytes(&self.partial) {
                let mut whole = std::mem::take(&mut self.partial);
                self.take_item(&whole[LENGTH_BYTES..])?;
                whole.clear();
                self.partial = whole;
            }
        }
        Ok(())
    }

    fn take_item(&mut self, item: &[u8]) -> Loaded<()> {
        self.next = match self.next {
            Next::Header => self.take_header(Header::read(item)?)?,
            Next::Members => {
                read_members(item)?.into_iter().for_each(|members| self.table.set_members(members));
                Next::Record
            }
            Next::Record if self.sessions_left > 0 => self.take_session(read_session(item)?)?,
            Next::Record => self.take_lock(&LockHead::read(item)?)?,
            Next::OfLock(mut open) => {
                // Not all at once in the end; what has ended and is not reaped has something, mostly.
                self.line_up(1);
                if open.holds_left > 0 {
                    self.take_hold(&mut open, item)?;
                } else {
                    self.take_wait(&mut open, &WaitItem::read(item)?)?;
                }
                open.next()
            }
        };
        Ok(())
    }

    fn take_header(&mut self, header: Header) -> Loaded<Next> {
        let limits = self.table.limits;
        if header.limits != limits.fields() {
            return Err(SnapshotError::OtherLimits);
        }
        check(header.sessions <= limits.sessions_max, "sessions")?;
        check(header.locks <= limits.locks_max, "locks")?;
        self.table = Table::without_records(limits, header.numbers);
        self.digest = header.digest;
        (self.sessions_left, self.locks_left) = (header.sessions, header.locks);
        Ok(Next::Members)
    }

    fn take_session(&mut self, session: Session) -> Loaded<Next> {
        let numbers = self.table.numbers();
        check(self.sessions.last().is_none_or(|(last, _)| *last < session.id), "session")?;
        check(session.id.0 <= self.table.token().0, "session")?;
        check(session.silence_ms <= session.ttl_ms, "silence_ms")?;
        check(session.highest.0 < REQUEST_ID_LIMIT, "highest")?;
        check(session.gaps.is_sorted_by(|one, next| one < next), "gaps")?;
        check(session.gaps.iter().all(|gap| RequestId(0) < *gap && *gap < session.highest), "gaps")?;
        check(session.kept.is_sorted_by(|one, next| one.id < next.id), "outcomes")?;
        check(session.kept.iter().all(|kept| is_consumed(&session, kept.id)), "outcomes")?;
        let (id, place, is_live) = (session.id, session.reap_place, session.is_live());
        if is_live {
            check(!self.table.sessions_by_nonce.contains_key(&session.nonce), "nonce")?;
        } else {
            let is_place = 0 < place && place <= numbers.reap_places;
            check(is_place && !self.ended.contains_key(&place), "reap_place")?;
        }
        let slot = self.table.add_session(session);
        if !is_live {
            self.ended.insert(place, slot);
        }
        self.sessions.push((id, slot));
        self.sessions_left -= 1;
        Ok(Next::Record)
    }

    fn take_lock(&mut self, head: &LockHead<'_>) -> Loaded<Next> {
        let last = self.last_lock.map(|last| &self.table.locks[last].name);
        check(last.is_none_or(|last| **last < *head.name), "name")?;
        check(head.holds > 0 || head.waits > 0, "holds")?;
        check(!self.table.is_quiet() || (head.holds == 0 && head.mark.is_some()), "quiet")?;
        let lock = self.table.add_last_lock(head.name, digest::bytes(head.name.as_bytes()));
        self.last_lock = Some(lock);
        if let Some(place) = head.mark {
            let is_place = place <= self.table.numbers().mark_places;
            check(is_place && !self.table.marks.contains_key(&place), "mark")?;
            self.table.put_mark(lock, place);
        }
        self.locks_left -= 1;
        let (last_token, last_since) = (FencingToken(0), LogIndex(0));
        let (holds_left, waits_left) = (head.holds, head.waits);
        Ok(OpenLock { lock, holds_left, waits_left, last_token, last_since }.next())
    }

    /// Adds a hold with its acquires.
    fn take_hold(&mut self, open: &mut OpenLock, item: &[u8]) -> Loaded<()> {
        let reader = &mut Reader::new(item);
        let hold = HoldHead::read(reader)?;
        check(hold.fence <= hold.token, "fence")?;
        check(open.last_token <= hold.token && hold.token <= self.table.token(), "token")?;
        check(hold.acquires > 0, "acquires")?;
        let session = self.session(hold.session)?;
        let first = Acquired::read(reader)?;
        let candidate = Candidate {
            session,
            lock: open.lock,
            owner: hold.owner,
            acquire_id: first.id,
            content: first.content,
            mode: hold.mode,
            data: Box::from(hold.data),
            data_hash: digest::bytes(hold.data),
        };
        let slot = self.table.put_hold(candidate, hold.token, hold.fence);
        let mut acquired = first;
        for left in (0..hold.acquires).rev() {
            self.check_claim(session, acquired.id)?;
            self.table.join_hold(slot, acquired.id, acquired.content, acquired.is_seen);
            if left > 0 {
                let last = acquired.id;
                acquired = Acquired::read(reader)?;
                check(last < acquired.id, "acquire_id")?;
            }
        }
        reader.finish()?;
        open.last_token = hold.token;
        open.holds_left -= 1;
        Ok(())
    }

    fn take_wait(&mut self, open: &mut OpenLock, wait: &WaitItem<'_>) -> Loaded<()> {
        check(open.last_since < wait.since && wait.since <= self.table.applied(), "since")?;
        let session = self.session(wait.session)?;
        self.check_claim(session, wait.acquire_id)?;
        let candidate = Candidate {
            session,
            lock: open.lock,
            owner: wait.owner,
            acquire_id: wait.acquire_id,
            content: wait.content,
            mode: wait.mode,
            data: Box::from(wait.data),
            data_hash: digest::bytes(wait.data),
        };
        self.table.put_wait(candidate, wait.wait_ms, wait.position, wait.since);
        open.last_since = wait.since;
        open.waits_left -= 1;
        Ok(())
    }

    fn session(&self, id: SessionId) -> Loaded<SessionSlot> {
        self.find_session(id).ok_or(SnapshotError::Contradiction("session"))
    }

    fn find_session(&self, id: SessionId) -> Option<SessionSlot> {
        place_of(&self.sessions, id).map(|at| self.sessions[at].1)
    }

    /// Asks for the sessions of the next holds and waits, which are anywhere in memory, before they are needed one by one.
    fn look_ahead(&mut self, mut bytes: &[u8]) {
        let mut of_lock = match self.next {
            Next::Header | Next::Members => return,
            Next::Record if self.sessions_left > 0 => return,
            Next::Record => 0,
            Next::OfLock(open) => open.holds_left + open.waits_left,
        };
        let mut sessions = [None; SESSIONS_AHEAD];
        let mut room = sessions.iter_mut();
        self.looked_ahead = 0;
        while room.len() > 0
            && let Some((item, rest)) = split_item(bytes)
        {
            if of_lock == 0 {
                let Ok(head) = LockHead::read(item) else { break };
                of_lock = head.holds.saturating_add(head.waits);
            } else if let Some(session) = room.next() {
                // What both of them begin with.
                *session = Reader::new(item).u64("session").ok().map(SessionId);
                of_lock -= 1;
            }
            self.looked_ahead += 1;
            bytes = rest;
        }
        let mut slots = [None; SESSIONS_AHEAD];
        for (slot, session) in slots.iter_mut().zip(sessions.iter().flatten()) {
            *slot = self.find_session(*session);
        }
        let slots = slots.iter().flatten().copied();
        black_box(slots.clone().fold(0, |seen, slot| seen ^ touch_session(&self.table.sessions[slot])));
        self.table.touch_claims(slots);
    }

    /// Whether a session can have another claim, and with this id. (Nothing has lowered the limit since it took them.)
    fn check_claim(&self, session: SessionSlot, id: RequestId) -> Loaded<()> {
        let limit = self.table.limits.locks_per_session_max as usize;
        let session = &self.table.sessions[session];
        check(session.claims.len() < limit, "acquires")?;
        let is_free = session.claim(id).is_none() && session.kept(id).is_none();
        check(is_free && is_consumed(session, id), "acquire_id")
    }
}

/// Where a session is. Looks first where it would be if those in between had been opened at an even pace, then ever further
/// from there: halving all of a long list waits for memory at each step.
fn place_of(sessions: &[(SessionId, SessionSlot)], id: SessionId) -> Option<usize> {
    let (first, last) = (sessions.first()?.0, sessions.last()?.0);
    if id < first || last < id {
        return None;
    }
    let (above, range) = (u128::from(id.0 - first.0), u128::from(last.0 - first.0));
    let guess = above * (sessions.len() as u128 - 1) / range.max(1);
    let guess = usize::try_from(guess).expect("it is a place in the list");
    // What is at `low` is at most what is looked for, and what is at `high` is above it.
    let (mut low, mut high, mut step) = (guess, guess + 1, 1);
    while sessions[low].0 > id {
        (low, high) = (low.saturating_sub(step), low);
        step *= 2;
    }
    while sessions.get(high).is_some_and(|(other, _)| *other <= id) {
        (low, high) = (high, (high + step).min(sessions.len()));
        step *= 2;
    }
    sessions[low..high].binary_search_by_key(&id, |(id, _)| *id).ok().map(|at| low + at)
}

fn check(is_so: bool, field: &'static str) -> Loaded<()> {
    if is_so { Ok(()) } else { Err(SnapshotError::Contradiction(field)) }
}

fn is_consumed(session: &Session, id: RequestId) -> bool {
    RequestId(0) < id && !session.is_new(id)
}

impl OpenLock {
    fn next(self) -> Next {
        if self.holds_left == 0 && self.waits_left == 0 { Next::Record } else { Next::OfLock(self) }
    }
}

/// How many bytes an item has with its length, as far as it begins with one; otherwise how many the length has.
fn wanted_bytes(bytes: &[u8]) -> usize {
    let length = bytes.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
    LENGTH_BYTES + length as usize
}

/// The first item without its length, if all of it is here, and what follows.
fn split_item(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (item, rest) = bytes.split_at_checked(wanted_bytes(bytes))?;
    Some((&item[LENGTH_BYTES..], rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::slab::Slot;

    #[test]
    fn a_session_is_found_however_unevenly_they_were_opened() {
        let even = |number: u64| 7 + number;
        let ever_faster = |number: u64| number * number * number;
        let in_two_crowds = |number: u64| if number < 90 { number } else { u64::MAX - 100 + number };
        let alone_behind_a_crowd = |number: u64| if number < 99 { number } else { u64::MAX };
        let paces: [&dyn Fn(u64) -> u64; 4] = [&even, &ever_faster, &in_two_crowds, &alone_behind_a_crowd];
        for pace in paces {
            for len in [0, 1, 2, 3, 100] {
                let ids: Vec<SessionId> = (0..len).map(|number| SessionId(pace(number))).collect();
                let sessions: Vec<_> = ids.iter().map(|id| (*id, SessionSlot::new(0))).collect();
                let around = |id: &SessionId| [id.0.saturating_sub(1), id.0, id.0.saturating_add(1)];
                let asked = ids.iter().flat_map(around).chain([0, 1 << 40, u64::MAX]).map(SessionId);
                for id in asked {
                    assert_eq!(place_of(&sessions, id), ids.binary_search(&id).ok(), "{id} of {ids:?}");
                }
            }
        }
    }
}
