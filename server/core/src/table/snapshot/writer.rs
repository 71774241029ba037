//! A snapshot being written, a slice at a time, while entries change what it is of.
//!
//! Sessions go by id, then locks by name. A record that is about to change before it was written is encoded first, and
//! its copy is merged in where the record belonged; a record that is younger than the snapshot is passed over.
//!
//! Invariant: whenever the slices are asked for and whatever is applied between them, their bytes are those of the state
//! at the beginning. Deliberately absent: when snapshots are taken, and where the bytes go.

use std::collections::BTreeMap;
use std::ops::Bound;

use lockstep_wire::SessionId;

use super::copies::{Copied, Copies};
use super::item::{Header, put_hold, put_lock_head, put_members, put_session, put_wait};
use super::lookahead::Lookahead;
use crate::table::cell::Table;
use crate::table::chain::Linked;
use crate::table::names::Names;
use crate::table::record::{HoldSlot, LockSlot, SessionSlot, WaitSlot};

/// The snapshot that a table is being written to.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotWriter {
    /// Records that bear it have their copy, or are younger.
    number: u64,
    /// Sessions and locks that it has.
    records: usize,
    sessions: Sessions,
    locks: Locks,
    /// What the copies of both say.
    copies: Copies,
    /// The lock record that a slice ended in.
    open_lock: Option<LockItems>,
    /// What is encoded already and goes out next, from `rest_at` on.
    rest: Vec<u8>,
    rest_at: usize,
}

#[derive(Clone, Debug)]
struct Sessions {
    /// How many are still to be written.
    left: usize,
    /// The last one that was.
    last: Option<SessionId>,
    /// Those that have changed or vanished since, as they were.
    copies: BTreeMap<SessionId, Copied>,
}

/// Likewise.
#[derive(Clone, Debug)]
struct Locks {
    left: usize,
    /// Empty before the first.
    last: String,
    copies: Names<Copied>,
}

/// Copies of sessions, and nodes of copied locks, that are forgotten at once.
const FREED_AT_ONCE: usize = 512;

/// The holds and waits of a lock whose head was written.
#[derive(Clone, Copy, Debug)]
struct LockItems {
    lock: LockSlot,
    hold: Option<HoldSlot>,
    wait: Option<WaitSlot>,
}

impl Table {
    /// Begins a snapshot of the state as it is now.
    ///
    /// # Panics
    /// When one is under way.
    pub fn begin_snapshot(&mut self) {
        assert!(self.snapshot.is_none(), "one snapshot is taken at a time");
        self.snapshots_begun += 1;
        self.snapshot = Some(Box::new(SnapshotWriter::new(self)));
    }

    /// Gives up the snapshot that is under way, if there is one. [`Table::free_some`] frees what was copied for it.
    pub fn abandon_snapshot(&mut self) {
        self.given_up.extend(self.snapshot.take().map(|writer| *writer));
    }

    /// Frees a small part of what snapshots that are over have left behind; tells whether something is left.
    pub fn free_some(&mut self) -> bool {
        if let Some(writer) = self.given_up.last_mut()
            && !writer.free_some()
        {
            self.given_up.pop();
        }
        self.has_remains()
    }

    /// Whether there is something to be freed.
    pub fn has_remains(&self) -> bool {
        !self.given_up.is_empty()
    }

    /// Whether a snapshot was begun and is not at its end.
    pub fn is_snapshot_under_way(&self) -> bool {
        self.snapshot.is_some()
    }

    /// How many of its sessions and locks the snapshot that is under way has written, and how many it has.
    pub fn snapshot_progress(&self) -> Option<(usize, usize)> {
        let writer = self.snapshot.as_ref()?;
        let left = writer.sessions.left + writer.locks.left;
        Some((writer.records - left, writer.records))
    }

    /// Appends the next `bytes` bytes of the snapshot, fewer only at its end; tells whether this was the end, with
    /// which the snapshot is over. It costs what is written, and a step for each lock younger than the snapshot that
    /// is passed on the way.
    ///
    /// # Panics
    /// When no snapshot is under way.
    pub fn write_snapshot(&mut self, out: &mut Vec<u8>, bytes: usize) -> bool {
        let mut writer = self.snapshot.take().expect("a snapshot is under way");
        let end = out.len().saturating_add(bytes);
        writer.write(self, out, end);
        writer.copies.free_spent();
        let is_over = writer.is_over();
        if !is_over {
            self.snapshot = Some(writer);
        } else if writer.free_some() {
            self.given_up.push(*writer);
        }
        is_over
    }

    /// Copies a session that is about to change, if the snapshot under way needs it as it is.
    pub(crate) fn copy_session(&mut self, slot: SessionSlot) {
        let Some(writer) = &mut self.snapshot else { return };
        let session = &mut self.sessions[slot];
        if session.copied_for == writer.number {
            return;
        }
        session.copied_for = writer.number;
        if writer.sessions.last.is_none_or(|last| last < session.id) {
            let copied = writer.copies.add(|out| put_session(session, out));
            writer.sessions.copies.insert(session.id, copied);
        }
    }

    /// Likewise a lock with its holds and its line.
    pub(crate) fn copy_lock(&mut self, slot: LockSlot) {
        let Some(mut writer) = self.snapshot.take() else { return };
        if self.locks[slot].copied_for != writer.number {
            self.locks[slot].copied_for = writer.number;
            writer.copy_lock(self, slot);
        }
        self.snapshot = Some(writer);
    }
}

impl SnapshotWriter {
    fn new(table: &Table) -> SnapshotWriter {
        let (sessions, locks) = (table.sessions_len(), table.locks_len());
        let count = |len| u32::try_from(len).expect("the limits keep the records below 2^32");
        let header = Header {
            numbers: table.numbers(),
            digest: table.digest(),
            limits: table.limits.fields(),
            sessions: count(sessions),
            locks: count(locks),
        };
        let mut rest = Vec::new();
        header.put(&mut rest);
        put_members(table.members(), &mut rest);
        SnapshotWriter {
            number: table.snapshots_begun,
            records: sessions + locks,
            sessions: Sessions { left: sessions, last: None, copies: BTreeMap::new() },
            locks: Locks { left: locks, last: String::new(), copies: Names::new() },
            copies: Copies::default(),
            open_lock: None,
            rest,
            rest_at: 0,
        }
    }

    fn is_over(&self) -> bool {
        let is_written = self.sessions.left == 0 && self.locks.left == 0 && self.open_lock.is_none();
        is_written && self.rest_at == self.rest.len()
    }

    /// Appends what comes next until `out` has `end` bytes or nothing comes.
    fn write(&mut self, table: &Table, out: &mut Vec<u8>, end: usize) {
        self.write_rest(out, end);
        self.write_sessions(table, out, end);
        self.write_locks(table, out, end);
        if out.len() > end {
            self.rest.extend_from_slice(&out[end..]);
            out.truncate(end);
        }
    }

    fn write_rest(&mut self, out: &mut Vec<u8>, end: usize) {
        let room = end.saturating_sub(out.len());
        let stop = self.rest.len().min(self.rest_at.saturating_add(room));
        out.extend_from_slice(&self.rest[self.rest_at..stop]);
        self.rest_at = stop;
        if stop == self.rest.len() {
            self.rest.clear();
            self.rest_at = 0;
        }
    }

    fn write_copy(&mut self, copied: Copied, out: &mut Vec<u8>, end: usize) {
        let bytes = self.copies.bytes(copied);
        let (head, tail) = bytes.split_at(bytes.len().min(end.saturating_sub(out.len())));
        out.extend_from_slice(head);
        self.rest.extend_from_slice(tail);
        self.copies.forget(copied);
    }

    fn write_sessions(&mut self, table: &Table, out: &mut Vec<u8>, end: usize) {
        if out.len() >= end || self.sessions.left == 0 {
            return;
        }
        let number = self.number;
        let behind = self.sessions.last.map_or(Bound::Unbounded, Bound::Excluded);
        let sessions = table.sessions_by_id.range((behind, Bound::Unbounded));
        let mut sessions = sessions.map(|(id, slot)| (id, &table.sessions[*slot])).peekable();
        while out.len() < end && self.sessions.left > 0 {
            if let Some((id, copied)) = self.sessions.take_copy_through(sessions.peek().map(|(id, _)| **id)) {
                self.sessions.pass(id);
                self.write_copy(copied, out, end);
                continue;
            }
            let (id, session) = sessions.next().expect("every session of the snapshot is found");
            if session.copied_for != number {
                self.sessions.pass(*id);
                put_session(session, out);
            }
        }
    }

    fn write_locks(&mut self, table: &Table, out: &mut Vec<u8>, end: usize) {
        self.write_open_lock(table, out, end);
        if out.len() >= end || self.locks.left == 0 {
            return;
        }
        let number = self.number;
        let last = self.locks.last.clone();
        let locks = table.locks_by_name.from(&last).skip_while(|(name, _)| *name == last);
        let mut locks = Lookahead::new(table, locks).peekable();
        while out.len() < end && self.locks.left > 0 {
            if let Some(copied) = self.locks.take_copy_through(locks.peek().map(|(name, _)| *name)) {
                self.write_copy(copied, out, end);
                continue;
            }
            let (name, slot) = locks.next().expect("every lock of the snapshot is found");
            if table.locks[slot].copied_for != number {
                self.locks.pass(name);
                self.open_lock = Some(LockItems::open(table, name, slot, out));
                self.write_open_lock(table, out, end);
            }
        }
    }

    fn write_open_lock(&mut self, table: &Table, out: &mut Vec<u8>, end: usize) {
        while out.len() < end
            && let Some(items) = &mut self.open_lock
        {
            items.put_next(table, out);
            if items.is_at_end() {
                self.open_lock = None;
            }
        }
    }

    fn copy_lock(&mut self, table: &Table, slot: LockSlot) {
        if let Some(items) = self.open_lock.take_if(|items| items.lock == slot) {
            return items.put_all(table, &mut self.rest);
        }
        let name = &table.locks[slot].name;
        if *self.locks.last < **name {
            let copied = self.copies.add(|out| LockItems::open(table, name, slot, out).put_all(table, out));
            self.locks.copies.insert(name, copied);
        }
    }

    /// Frees a small part of what is left of a snapshot that is over; tells whether something is left.
    fn free_some(&mut self) -> bool {
        for _ in 0..FREED_AT_ONCE {
            self.sessions.copies.pop_first();
            self.locks.copies.free_some();
        }
        let is_indexed = !self.sessions.copies.is_empty() || self.locks.copies.len() > 0;
        self.copies.free_any() || is_indexed
    }
}

#[cfg(test)]
impl Table {
    /// How many records are held as they were for the snapshot that is under way.
    pub(crate) fn snapshot_copies_len(&self) -> Option<usize> {
        self.snapshot.as_ref().map(|writer| writer.sessions.copies.len() + writer.locks.copies.len())
    }
}

impl Sessions {
    /// The next record is this one.
    fn pass(&mut self, id: SessionId) {
        self.last = Some(id);
        self.left -= 1;
    }

    /// The first copy, unless this record comes before it. The record has to be the very next one, copied or not: whoever
    /// looked for the next that is not copied would walk past all that are, in every slice anew.
    fn take_copy_through(&mut self, record: Option<SessionId>) -> Option<(SessionId, Copied)> {
        let copy = self.copies.first_entry()?;
        if record.is_some_and(|record| record < *copy.key()) { None } else { Some(copy.remove_entry()) }
    }
}

impl Locks {
    fn pass(&mut self, name: &str) {
        name.clone_into(&mut self.last);
        self.left -= 1;
    }

    /// The first copy and passes on to it, unless this record comes before it; see [`Sessions::take_copy_through`].
    fn take_copy_through(&mut self, record: Option<&str>) -> Option<Copied> {
        let (name, _) = self.copies.first()?;
        if record.is_some_and(|record| record < name) {
            return None;
        }
        name.clone_into(&mut self.last);
        self.left -= 1;
        self.copies.remove_first()
    }
}

impl LockItems {
    /// Puts the head of a lock.
    fn open(table: &Table, name: &str, lock: LockSlot, out: &mut Vec<u8>) -> LockItems {
        let record = &table.locks[lock];
        put_lock_head(name, record, out);
        LockItems { lock, hold: record.holds.first(), wait: record.waits.first() }
    }

    fn is_at_end(&self) -> bool {
        self.hold.is_none() && self.wait.is_none()
    }

    /// Puts the next hold or wait, if one is left.
    fn put_next(&mut self, table: &Table, out: &mut Vec<u8>) {
        if let Some(hold) = self.hold {
            put_hold(table, hold, out);
            self.hold = table.holds[hold].links().after();
        } else if let Some(wait) = self.wait {
            let record = &table.waits[wait];
            put_wait(table, record, out);
            self.wait = record.links().after();
        }
    }

    fn put_all(mut self, table: &Table, out: &mut Vec<u8>) {
        while !self.is_at_end() {
            self.put_next(table, out);
        }
    }
}
