//! A snapshot on its way to a follower whose entries are gone (Raft, section 7; ARCHITECTURE section 4.5).
//!
//! Invariant: one follower at a time gets a snapshot, with a bounded number of pieces on their way; as long as it is the
//! same snapshot, a follower goes on from the piece that its disk has, also after a broken link or under another leader.
//! What an installed snapshot replaces is truncated together with the mark that makes the snapshot count. Deliberately
//! absent: the bytes, and when a snapshot is taken.

use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::peer::PeerMessage;
use lockstep_wire::{LogIndex, NodeId, SnapshotAnswer, SnapshotId, SnapshotPiece, SnapshotReply, Term};

use super::durability::Deferred;
use super::{Raft, RaftEvent, Role};
use crate::members::Membership;
use crate::{Effect, Effects, Lane, RecordHead, RecordKind, Report, SnapshotRead, Time};

/// Pieces on their way to a follower.
const WINDOW: u32 = 8;
/// What a token has room for beside its epoch: no entry has this index, or a greater one.
const INDEX_LIMIT: u64 = 1 << 48;

/// The one install that a leader works on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Installing {
    to: NodeId,
    snapshot: SnapshotId,
    /// The piece that is read and sent next.
    next: u32,
    /// The follower has the pieces before this one.
    acknowledged: u32,
    /// Whether the follower has said where to go on; one piece goes out until then.
    is_answered: bool,
    is_reading: bool,
    is_last_sent: bool,
    heard_at: Time,
}

impl Installing {
    pub(super) fn to(&self) -> NodeId {
        self.to
    }

    fn has_room(&self) -> bool {
        let window = if self.is_answered { WINDOW } else { 1 };
        !self.is_reading && !self.is_last_sent && self.next < self.acknowledged.saturating_add(window)
    }
}

impl Raft {
    /// Notes which followers need entries that this leader no longer has, and sends one of them a snapshot.
    pub(super) fn install_for_laggards(&mut self, now: Time, fx: &mut Effects) {
        let election_max = self.config.election_max;
        if self.leading.installing.is_some_and(|installing| now.since(installing.heard_at) > election_max) {
            // It begins again where the follower is; others come first.
            self.leading.installing = None;
        }
        if self.leading.installing.is_none() {
            self.begin_install(now);
        }
        if let Some(installing) = self.leading.installing.as_mut().filter(|installing| installing.has_room())
        {
            installing.is_reading = true;
            let (snapshot, piece) = (installing.snapshot, installing.next);
            fx.push(Effect::ReadSnapshot { snapshot, piece });
        }
    }

    fn begin_install(&mut self, now: Time) {
        let count = self.peers.len();
        let turn = self.leading.install_turn;
        let needs = |at: &usize| {
            let progress = &self.peers[*at].progress;
            progress.waits_for_snapshot() && now >= progress.snapshot_at && self.is_followed_by(*at)
        };
        let Some(at) = (0..count).map(|offset| (turn + offset) % count).find(needs) else { return };
        let progress = &self.peers[at].progress;
        let kept = [self.snapshot, self.older_snapshot];
        let does = |snapshot: &SnapshotId| {
            kept.contains(&Some(*snapshot)) && snapshot.index >= progress.snapshot_least
        };
        // It may have half of the one that it was sent last.
        let tried = progress.snapshot_tried.filter(does);
        match tried.or(self.snapshot.filter(does)) {
            Some(snapshot) => {
                self.leading.install_turn = at + 1;
                self.peers[at].progress.snapshot_tried = Some(snapshot);
                self.leading.installing = Some(Installing {
                    to: self.peers[at].node,
                    snapshot,
                    next: 0,
                    acknowledged: 0,
                    is_answered: false,
                    is_reading: false,
                    is_last_sent: false,
                    heard_at: now,
                });
            }
            // Asked for again only after a while: taking one takes its time.
            None => {
                self.peers[at].progress.snapshot_at = now + self.config.election_min;
                self.events.push_back(RaftEvent::SnapshotWanted);
            }
        }
    }

    /// Gives up sending: the follower's link broke.
    pub(super) fn stop_installing(&mut self, to: NodeId) {
        self.leading.installing = self.leading.installing.filter(|installing| installing.to != to);
    }

    /// A piece of a snapshot came back from the disk.
    pub(super) fn send_piece(&mut self, read: &SnapshotRead<'_>, now: Time, fx: &mut Effects) {
        let Some(installing) = self.leading.installing.as_mut() else { return };
        if !installing.is_reading || installing.snapshot != read.snapshot {
            return;
        }
        installing.is_reading = false;
        if installing.next != read.piece {
            // The follower has said meanwhile where to go on.
            return self.install_for_laggards(now, fx);
        }
        let Some((bytes, is_last)) = read.found else {
            self.leading.installing = None;
            return self.forget_snapshot(read.snapshot);
        };
        installing.next += 1;
        installing.is_last_sent = is_last;
        let to = installing.to;
        let (term, snapshot, piece) = (self.term, read.snapshot, read.piece);
        let message = PeerMessage::SnapshotPiece(SnapshotPiece { term, snapshot, piece, is_last, bytes });
        fx.send(to, Lane::Bulk, self.config.cell, &message);
        self.install_for_laggards(now, fx);
    }

    /// The newest snapshot that has its mark and, as far as is known, is whole.
    pub fn newest_snapshot(&self) -> Option<SnapshotId> {
        self.snapshot
    }

    /// The snapshot before the newest, which the next one replaces, and whether it is on its way to a follower.
    pub fn older_snapshot(&self) -> Option<(SnapshotId, bool)> {
        let installing = self.leading.installing.as_ref().map(|installing| installing.snapshot);
        self.older_snapshot.map(|older| (older, installing == Some(older)))
    }

    /// A snapshot cannot be read: newer ones have replaced it; or it is damaged, and another must be taken.
    pub fn forget_snapshot(&mut self, snapshot: SnapshotId) {
        for kept in [&mut self.snapshot, &mut self.older_snapshot] {
            *kept = kept.filter(|kept| *kept != snapshot);
        }
    }

    pub(super) fn on_snapshot_reply(
        &mut self,
        from: NodeId,
        reply: &SnapshotReply,
        now: Time,
        fx: &mut Effects,
    ) {
        self.on_newer_term(reply.term, now, fx);
        let Some(at) = self.peer_at(from) else { return };
        if self.role != Role::Leader
            || reply.term != self.term
            || reply.snapshot.index > self.log.last_index()
        {
            return;
        }
        let progress = &mut self.peers[at].progress;
        progress.on_heard(now);
        let installing = self
            .leading
            .installing
            .as_mut()
            .filter(|installing| installing.to == from && installing.snapshot == reply.snapshot);
        match reply.answer {
            SnapshotAnswer::Missing => progress.lack_state(reply.snapshot.index),
            SnapshotAnswer::Installed => {
                progress.on_installed(reply.snapshot.index);
                self.stop_installing(from);
            }
            SnapshotAnswer::Refused => {
                progress.snapshot_at = now + self.config.election_max;
                self.stop_installing(from);
            }
            SnapshotAnswer::Wanted { piece } => {
                let Some(installing) = installing else { return };
                installing.heard_at = now;
                if installing.is_answered && piece > installing.next {
                    return;
                }
                // One that has begun anew, or that has more than this leader knew.
                if piece < installing.acknowledged || !installing.is_answered {
                    installing.is_last_sent &= piece >= installing.next;
                    installing.next = piece;
                }
                installing.is_answered = true;
                installing.acknowledged = piece;
            }
        }
        self.install_for_laggards(now, fx);
    }

    /// Whether a piece of a snapshot is for this node to take: it is from its leader, and has what it lacks.
    pub fn wants_piece(
        &mut self,
        from: NodeId,
        piece: &SnapshotPiece<'_>,
        now: Time,
        fx: &mut Effects,
    ) -> bool {
        if !self.accepts(from) {
            return false;
        }
        if piece.term < self.term {
            self.send_deposed(from, fx);
            return false;
        }
        let snapshot = piece.snapshot;
        let is_well_formed = snapshot.index > LogIndex(0)
            && snapshot.index.0 < INDEX_LIMIT
            && snapshot.term > Term(0)
            && snapshot.term <= piece.term;
        if !is_well_formed || !self.hear_leader(from, piece.term, now, fx) {
            return false;
        }
        let is_known = match self.missing {
            Some(missing) => snapshot.index < missing.index,
            None => snapshot.index <= self.committed,
        };
        if is_known && self.missing.is_none() {
            self.reply_about(snapshot, SnapshotAnswer::Installed, fx);
        }
        !is_known
    }

    /// Tells the leader about a snapshot.
    pub fn reply_about(&self, snapshot: SnapshotId, answer: SnapshotAnswer, fx: &mut Effects) {
        if let Some(leader) = self.leader.filter(|leader| *leader != self.config.node) {
            let reply = SnapshotReply { term: self.term, snapshot, answer };
            fx.send(leader, Lane::Control, self.config.cell, &PeerMessage::SnapshotReply(reply));
        }
    }

    /// The state of the leader's snapshot, with its members, has replaced this node's: the log goes on behind it. What of
    /// the log does not match goes together with the mark.
    pub fn install(
        &mut self,
        snapshot: SnapshotId,
        members: Option<Membership>,
        now: Time,
        fx: &mut Effects,
    ) {
        assert!(self.role != Role::Leader, "a leader has what it sends");
        assert!(snapshot.index > self.handed_out, "a state is replaced by a newer one");
        let SnapshotId { index, term } = snapshot;
        let matches = self.log.term_at(index) == Some(term);
        if !matches {
            // Also of an empty log: only behind a truncation may a mark be ahead of the entries.
            let first = self.log.base().next();
            if !mutant::is(Mutant::InstallWithoutTruncation) {
                self.append_truncation(first, now, fx);
            }
            self.durability.on_truncated(first);
            self.log.restart_at(index, term);
        }
        self.install_members(index, members, matches, now);
        self.committed = self.committed.max(index);
        self.commit_members(now);
        self.handed_out = index;
        self.verified = self.verified.max(index);
        self.missing = None;
        let append = match matches {
            true => self.durability.append(now),
            // Once the disk has the mark it has everything through here.
            false => self.durability.append_entry(index, now),
        };
        self.append_mark(append, snapshot, fx);
        self.durability.defer(append, Deferred::Installed(snapshot));
    }

    /// A snapshot of this node's own state is durable: its mark makes it count.
    pub fn mark(&mut self, snapshot: SnapshotId, now: Time, fx: &mut Effects) {
        let append = self.durability.append(now);
        self.append_mark(append, snapshot, fx);
        self.durability.defer(append, Deferred::Marked(snapshot));
    }

    fn append_mark(&mut self, append: crate::AppendId, snapshot: SnapshotId, fx: &mut Effects) {
        self.marked = snapshot.index;
        let head = RecordHead { kind: RecordKind::SnapshotMark, term: snapshot.term, index: snapshot.index };
        fx.append(append, head, |_| {});
    }

    pub(super) fn on_marked(&mut self, snapshot: SnapshotId) {
        self.keep_snapshot(snapshot);
        self.events.push_back(RaftEvent::SnapshotTaken(snapshot));
    }

    fn keep_snapshot(&mut self, snapshot: SnapshotId) {
        if self.snapshot != Some(snapshot) {
            self.older_snapshot = self.snapshot.replace(snapshot);
        }
    }

    pub(super) fn on_installed(&mut self, snapshot: SnapshotId, fx: &mut Effects) {
        self.keep_snapshot(snapshot);
        self.events.push_back(RaftEvent::SnapshotInstalled(snapshot));
        self.is_ack_due = true;
        self.reply_about(snapshot, SnapshotAnswer::Installed, fx);
    }

    /// The name of a snapshot of the state after the last entry that was handed out; none when there is nothing that
    /// the newest one does not have.
    pub fn next_snapshot(&self) -> Option<SnapshotId> {
        let index = self.handed_out;
        let term = self.log.term_at(index)?;
        let newest = self.snapshot.map_or(LogIndex(0), |snapshot| snapshot.index);
        // Marks never go back; the newest one may be of a snapshot that is damaged.
        (index > newest && index >= self.marked).then_some(SnapshotId { index, term })
    }

    /// Says to whoever leads, now and again, that this node's own snapshot is damaged.
    pub(super) fn ask_for_snapshot(&mut self, now: Time, fx: &mut Effects) {
        let Some(missing) = self.missing.filter(|_| now >= self.missing_asked_at + self.config.election_max)
        else {
            return;
        };
        self.missing_asked_at = now;
        self.reply_about(missing, SnapshotAnswer::Missing, fx);
    }

    /// Tells a person that the state was lost and that nobody leads who could send it.
    pub(super) fn report_missing(&self, fx: &mut Effects) {
        let Some(missing) = self.missing else { return };
        let (cell, node) = (self.config.cell, self.config.node);
        let reason = format!(
            "cell {cell}: snapshot {missing} of node {node} is damaged, and no leader is heard that could send its own; \
             check that the other members run. If none of them has the state, restore the cell from a backup"
        );
        fx.push(Effect::Report(Report::Refused { peer: node, reason }));
    }

    /// Whether this node must not lead: it has no state to lead from.
    pub(super) fn lacks_state(&self) -> bool {
        self.missing.is_some()
    }
}
