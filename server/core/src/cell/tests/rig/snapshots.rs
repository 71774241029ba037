//! The part of a member's disk that keeps snapshots, and the recycling of its log.
//!
//! Invariant: a snapshot that was stored is read back as it was, until a test damages it. Deliberately absent: which of
//! them count; their marks say so.

use std::collections::BTreeMap;

use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::PEER_FRAME_BYTES_MAX;
use lockstep_wire::peer::kind;
use lockstep_wire::{LogIndex, NodeId, SnapshotId};

use super::{Happening, Rig};
use crate::table::Table;
use crate::{Input, LogRead, RecordHead, RecordKind, SnapshotRead};

/// Snapshots under their names, piece by piece.
#[derive(Default)]
pub(super) struct Stored(BTreeMap<SnapshotId, Vec<Vec<u8>>>);

impl Stored {
    /// The newest one, whether it counts or not.
    pub(super) fn newest(&self) -> Option<SnapshotId> {
        self.0.keys().copied().max_by_key(|id| id.index)
    }

    /// Hands out the bytes of a snapshot in order.
    pub(super) fn read(&self, id: SnapshotId, visit: &mut dyn FnMut(&[u8])) -> Result<(), String> {
        let pieces = self.0.get(&id).ok_or("it is not there")?;
        pieces.iter().for_each(|piece| visit(piece));
        Ok(())
    }
}

/// What a member's disk has of snapshots.
#[derive(Default)]
pub(super) struct SnapshotDisk {
    staging: Vec<Vec<u8>>,
    pub(super) stored: Stored,
    /// Answers about pieces that a test holds back.
    held: Option<Vec<Happening>>,
    is_full: bool,
    /// What was wrong with snapshots at the last start.
    pub(super) complaints: Vec<String>,
}

impl SnapshotDisk {
    /// The snapshots that count, the newest first; the second only if the log goes on where it ends.
    pub(super) fn counting(&self, records: &[(RecordHead, Vec<u8>)]) -> Vec<SnapshotId> {
        let of = |kind| records.iter().map(|(head, _)| *head).filter(move |head| head.kind == kind);
        let marks: Vec<RecordHead> = of(RecordKind::SnapshotMark).collect();
        let first = of(RecordKind::Entry).map(|head| head.index).min();
        let is_reached = |mark: &&RecordHead| first.is_some_and(|first| first <= mark.index.next());
        let newest = marks.last().into_iter();
        let previous = marks.iter().rev().skip(1).take(1).filter(is_reached);
        newest.chain(previous).map(|head| SnapshotId { index: head.index, term: head.term }).collect()
    }

    pub(super) fn forget_staging(&mut self) {
        self.staging.clear();
        self.held = self.held.take().map(|_| Vec::new());
    }
}

impl Rig {
    pub(super) fn stage(
        &mut self,
        node: NodeId,
        snapshot: SnapshotId,
        piece: u32,
        is_last: bool,
        bytes: &[u8],
    ) {
        let disk = &mut self.node(node).snapshots;
        if piece == 0 {
            disk.staging.clear();
        }
        assert_eq!(disk.staging.len(), piece as usize, "pieces come in order, one at a time");
        disk.staging.push(bytes.to_vec());
        let staged = Happening::Staged { node, snapshot, piece, is_last };
        match &mut disk.held {
            Some(held) => held.push(staged),
            None => self.queue.push_back(staged),
        }
    }

    pub(super) fn drop_snapshot(&mut self, node: NodeId) {
        self.node(node).snapshots.forget_staging();
        self.queue
            .retain(|happening| !matches!(happening, Happening::Staged { node: of, .. } if *of == node));
    }

    pub(super) fn on_staged(&mut self, node: NodeId, snapshot: SnapshotId, piece: u32, is_last: bool) {
        let disk = &mut self.node(node).snapshots;
        if disk.is_full {
            disk.staging.clear();
            return self.step(node.0, Input::SnapshotDropped { snapshot });
        }
        if is_last {
            disk.stored.0.insert(snapshot, std::mem::take(&mut disk.staging));
            self.step(node.0, Input::SnapshotStored { snapshot });
        } else {
            self.step(node.0, Input::SnapshotStaged { snapshot, piece });
        }
    }

    pub(super) fn read_snapshot(&mut self, node: NodeId, snapshot: SnapshotId, piece: u32) {
        let stored = self.node(node).snapshots.stored.0.get(&snapshot).cloned().unwrap_or_default();
        let bytes = stored.get(piece as usize);
        let found = bytes.map(|bytes| (&bytes[..], piece as usize + 1 == stored.len()));
        self.step(node.0, Input::SnapshotRead(SnapshotRead { snapshot, piece, found }));
    }

    /// A mark names a snapshot that is stored, and is ahead of the entries, and of the marks that stand for those that
    /// were recycled, only right behind a truncation.
    pub(super) fn check_mark(&mut self, node: NodeId, head: &RecordHead) {
        if head.kind != RecordKind::SnapshotMark {
            return;
        }
        let this = self.node(node);
        let id = SnapshotId { index: head.index, term: head.term };
        assert!(this.snapshots.stored.0.contains_key(&id), "snapshot {id} is marked and not stored");
        let last = this.records.last().map(|(head, _)| *head).expect("a cell is born before it is marked");
        let has_it = this.records.iter().any(|(other, _)| {
            let kinds = [RecordKind::Entry, RecordKind::SnapshotMark];
            kinds.contains(&other.kind) && (other.index, other.term) == (head.index, head.term)
        });
        assert!(has_it || last.kind == RecordKind::Truncate, "mark {id} follows {last:?}");
    }

    /// Answers a read of the log with what recycling has left of it.
    pub(super) fn read_log(&mut self, node: NodeId, first: LogIndex, bytes_max: usize) {
        let records = &self.node(node).records;
        let mut entries = Vec::new();
        let (mut next, mut bytes) = (first, 0);
        for (head, payload) in records.iter().filter(|(head, _)| head.kind == RecordKind::Entry) {
            if head.index == next && (entries.is_empty() || bytes + payload.len() <= bytes_max) {
                entries.push((head.term, payload.clone()));
                bytes += payload.len();
                next = next.next();
            }
        }
        let entries: Vec<_> = entries.iter().map(|(term, payload)| (*term, &payload[..])).collect();
        let entries = (!entries.is_empty()).then_some(&entries[..]);
        self.step(node.0, Input::LogRead(LogRead { first, entries }));
    }

    pub(super) fn count_piece(&mut self, mut frame: &[u8]) {
        let mut assembler = Assembler::default();
        let frame = assembler.next(&mut frame, PEER_FRAME_BYTES_MAX).unwrap().unwrap();
        self.pieces_sent += usize::from(frame.head.kind == kind::SNAPSHOT_PIECE);
    }

    /// How many pieces of snapshots members have sent each other.
    pub(in super::super) fn pieces_sent(&self) -> usize {
        self.pieces_sent
    }

    /// Breaks the link between two members, and loses what is on its way.
    pub(in super::super) fn break_link(&mut self, a: u16, b: u16) {
        for (node, peer) in [(a, b), (b, a)] {
            self.step(node, Input::LinkDown { peer: NodeId(peer), is_refused: false });
        }
        self.queue.retain(|happening| {
            let Happening::Frame { from, to, .. } = happening else { return true };
            ![(a, b), (b, a)].contains(&(from.0, to.0))
        });
        self.settle();
    }

    pub(in super::super) fn mend_link(&mut self, a: u16, b: u16) {
        for (node, peer) in [(a, b), (b, a)] {
            self.step(node, Input::LinkUp { peer: NodeId(peer) });
        }
        self.settle();
    }

    /// Has a member take a snapshot, and everything that follows from it happen.
    pub(in super::super) fn take_snapshot(&mut self, node: u16) {
        self.step(node, Input::SnapshotDue);
        self.settle();
    }

    /// The snapshots that a member's disk has, the newest last.
    pub(in super::super) fn snapshots(&self, node: u16) -> Vec<SnapshotId> {
        self.nodes[usize::from(node) - 1].snapshots.stored.0.keys().copied().collect()
    }

    /// The bytes of a member's snapshot.
    pub(in super::super) fn snapshot_bytes(&self, node: u16, snapshot: SnapshotId) -> Vec<u8> {
        self.nodes[usize::from(node) - 1].snapshots.stored.0[&snapshot].concat()
    }

    /// Has a member that was not started yet begin with this state: a snapshot, its mark behind the truncation that makes room
    /// for it, and an empty log.
    pub(in super::super) fn begin_with(&mut self, node: u16, snapshot: SnapshotId, table: &mut Table) {
        let mut bytes = Vec::new();
        table.begin_snapshot();
        assert!(table.write_snapshot(&mut bytes, usize::MAX), "all of it fits");
        let this = self.node(NodeId(node));
        this.snapshots.stored.0.insert(snapshot, vec![bytes]);
        let SnapshotId { index, term } = snapshot;
        let heads = [(RecordKind::Truncate, LogIndex(1)), (RecordKind::SnapshotMark, index)];
        this.records = heads.map(|(kind, index)| (RecordHead { kind, term, index }, Vec::new())).to_vec();
        this.records_durable = this.records.len();
    }

    /// Forgets the entries of a member through `through`, as the log does once a snapshot has them.
    pub(in super::super) fn recycle(&mut self, node: u16, through: LogIndex) {
        let this = self.node(NodeId(node));
        assert_eq!(this.records_durable, this.records.len(), "what is on its way is not recycled");
        this.records.retain(|(head, _)| head.kind != RecordKind::Entry || head.index > through);
        this.records_durable = this.records.len();
    }

    /// Removes a snapshot of a member, as newer ones make the log do.
    pub(in super::super) fn remove_snapshot(&mut self, node: u16, snapshot: SnapshotId) {
        self.node(NodeId(node)).snapshots.stored.0.remove(&snapshot).expect("it is there");
    }

    /// Flips a bit in a snapshot of a member.
    pub(in super::super) fn damage_snapshot(&mut self, node: u16, snapshot: SnapshotId) {
        let pieces = self.node(NodeId(node)).snapshots.stored.0.get_mut(&snapshot).expect("it is there");
        let piece = pieces.last_mut().expect("a snapshot has a piece");
        *piece.last_mut().expect("a piece has a byte") ^= 1;
    }

    /// Keeps a member's disk from answering about pieces of snapshots.
    pub(in super::super) fn hold_snapshots(&mut self, node: u16) {
        self.node(NodeId(node)).snapshots.held = Some(Vec::new());
    }

    /// Lets the disk answer about the next piece; says whether there was one.
    pub(in super::super) fn release_piece(&mut self, node: u16) -> bool {
        let held = self.node(NodeId(node)).snapshots.held.as_mut().expect("the disk is held");
        if held.is_empty() {
            return false;
        }
        let staged = held.remove(0);
        self.queue.push_back(staged);
        self.settle();
        true
    }

    pub(in super::super) fn release_snapshots(&mut self, node: u16) {
        let held = self.node(NodeId(node)).snapshots.held.take().expect("the disk is held");
        self.queue.extend(held);
        self.settle();
    }

    /// Leaves a member's disk without room for snapshots, or gives it room.
    pub(in super::super) fn fill_disk(&mut self, node: u16, is_full: bool) {
        self.node(NodeId(node)).snapshots.is_full = is_full;
    }

    /// What a member complained of about its snapshots when it was last started.
    pub(in super::super) fn complaints(&self, node: u16) -> &[String] {
        &self.nodes[usize::from(node) - 1].snapshots.complaints
    }
}
