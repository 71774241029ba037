//! A snapshot being written, a slice at a time, while entries change what it is of.
//!
//! Sessions go by id, then locks by name. A record that is about to change before it was written is encoded first, and
//! its copy is merged in where the record belonged; a record that is younger than the snapshot is passed over.
//!
//! Invariant: whenever the slices are asked for and whatever is applied between them, their bytes are those of the state
//! at the beginning. Deliberately absent: when snapshots are taken, and where the bytes go.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use lockstep_wire::SessionId;

use super::item::{Header, put_hold, put_lock_head, put_members, put_session, put_wait};
use super::lookahead::Lookahead;
use crate::table::cell::Table;
use crate::table::chain::Linked;
use crate::table::record::{HoldSlot, LockSlot, SessionSlot, WaitSlot};

/// The snapshot that a table is being written to.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotWriter {
    /// Records that bear it have their copy, or are younger.
    number: u64,
    sessions: Section<SessionId>,
    locks: Section<Arc<str>>,
    /// The lock record that a slice ended in.
    open_lock: Option<LockItems>,
    /// What is encoded already and goes out next, from `rest_at` on.
    rest: Vec<u8>,
    rest_at: usize,
    /// Where copies are encoded, before their length is known.
    scratch: Vec<u8>,
}

/// The records of one kind.
#[derive(Clone, Debug)]
struct Section<K> {
    /// How many are still to be written.
    left: usize,
    /// The last one that was.
    last: Option<K>,
    /// Those that have changed or vanished since, as they were.
    copies: BTreeMap<K, Box<[u8]>>,
}

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

    /// Gives up the snapshot that is under way, if there is one. It costs the freeing of what was copied for it.
    pub fn abandon_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Whether a snapshot was begun and is not at its end.
    pub fn is_snapshot_under_way(&self) -> bool {
        self.snapshot.is_some()
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
        let is_over = writer.is_over();
        if !is_over {
            self.snapshot = Some(writer);
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
        if !writer.sessions.has_written(&session.id) {
            writer.scratch.clear();
            put_session(session, &mut writer.scratch);
            writer.sessions.copies.insert(session.id, Box::from(&writer.scratch[..]));
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
            sessions: Section::new(sessions),
            locks: Section::new(locks),
            open_lock: None,
            rest,
            rest_at: 0,
            scratch: Vec::new(),
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

    fn write_copy(&mut self, copy: Box<[u8]>, out: &mut Vec<u8>, end: usize) {
        self.rest = copy.into_vec();
        self.write_rest(out, end);
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
            if let Some((id, copy)) = self.sessions.take_copy_through(sessions.peek().map(|(id, _)| *id)) {
                self.sessions.pass(id);
                self.write_copy(copy, out, end);
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
        let behind = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let locks = table.locks_by_name.range::<str, _>((behind, Bound::Unbounded));
        let mut locks = Lookahead::new(table, locks).peekable();
        while out.len() < end && self.locks.left > 0 {
            if let Some((name, copy)) = self.locks.take_copy_through(locks.peek().map(|(name, _)| *name)) {
                self.locks.pass(name);
                self.write_copy(copy, out, end);
                continue;
            }
            let (name, slot) = locks.next().expect("every lock of the snapshot is found");
            if table.locks[slot].copied_for != number {
                self.locks.pass(Arc::clone(name));
                self.open_lock = Some(LockItems::open(table, slot, out));
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
        if !self.locks.has_written(name) {
            self.scratch.clear();
            LockItems::open(table, slot, &mut self.scratch).put_all(table, &mut self.scratch);
            self.locks.copies.insert(Arc::clone(name), Box::from(&self.scratch[..]));
        }
    }
}

#[cfg(test)]
impl SnapshotWriter {
    /// How many records are held as they were.
    pub(crate) fn copies_len(&self) -> usize {
        self.sessions.copies.len() + self.locks.copies.len()
    }
}

impl<K: Ord> Section<K> {
    fn new(left: usize) -> Section<K> {
        Section { left, last: None, copies: BTreeMap::new() }
    }

    fn has_written(&self, key: &K) -> bool {
        self.last.as_ref().is_some_and(|last| key <= last)
    }

    /// The next record is this one.
    fn pass(&mut self, key: K) {
        self.last = Some(key);
        self.left -= 1;
    }

    /// The first copy, unless this record comes before it. The record has to be the very next one, copied or not: whoever
    /// looked for the next that is not copied would walk past all that are, in every slice anew.
    fn take_copy_through(&mut self, record: Option<&K>) -> Option<(K, Box<[u8]>)> {
        let copy = self.copies.first_entry()?;
        if record.is_some_and(|record| record < copy.key()) { None } else { Some(copy.remove_entry()) }
    }
}

impl LockItems {
    /// Puts the head of a lock.
    fn open(table: &Table, lock: LockSlot, out: &mut Vec<u8>) -> LockItems {
        let record = &table.locks[lock];
        put_lock_head(record, out);
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
