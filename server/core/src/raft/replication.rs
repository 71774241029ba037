//! Entries on their way to a majority, and beats (Raft, sections 5.3 and 5.4.2; ARCHITECTURE section 4.2).
//!
//! Invariant: an acknowledgement covers only what is durable here and known to be the leader's; a leader
//! commits by counting only entries of its own term, itself only once its disk has them; nothing committed
//! is ever truncated. Beats and their answers wait for no disk. Deliberately absent: what entries mean,
//! and the snapshots for followers whose entries are gone, which are in `install`.

use std::ops::Range;

use lockstep_wire::limit::{APPEND_BYTES_MAX, MEMBERS_MAX};
use lockstep_wire::mutant::{self, Mutant};
use lockstep_wire::peer::{Append, AppendOutcome, Beat, BeatKind, EntryRow, PeerMessage, PeerRefusal};
use lockstep_wire::{DecodeError, LogIndex, Members, NodeId, RoundId, Rows, Term};

use super::{Raft, RaftEvent, Role};
use crate::{Effect, Effects, Halt, Lane, LogRead, RecordHead, RecordKind, Report, Time};

/// What an entry takes in an append message beside its payload, rounded up.
const ENTRY_HEAD_BYTES: usize = 16;

/// An append message that was just encoded: followers at the same place get the same frame.
struct Encoded {
    next: LogIndex,
    through: LogIndex,
    bytes: usize,
    frame: Range<usize>,
}

impl Raft {
    pub(super) fn begin_to_lead(&mut self, now: Time, fx: &mut Effects) {
        let last = self.log.last_index();
        for peer in &mut self.peers {
            peer.progress.restart(last, now);
        }
        self.leading.rounds = super::Rounds::new(self.config.round_pace);
        self.leading.transfer = None;
        self.leading.installing = None;
        self.leading.is_serving = false;
        self.leading.is_wished = self.is_take_over_wished;
        self.leading.preferred_well_since = now;
        self.leading.commit_moved_at = now;
        self.begin_to_watch_space(now);
        let blank = std::mem::take(&mut self.config.blank);
        self.leading.blank_index = self.append_own(now, fx, |out| out.extend_from_slice(&blank));
        self.config.blank = blank;
        self.send_beats(now, fx);
    }

    pub(super) fn end_leading(&mut self) {
        self.leading.transfer = None;
        self.leading.installing = None;
        self.leading.is_serving = false;
        // What it held against them may have been said by its own list alone: they are asked again.
        for peer in self.peers.iter_mut().filter(|peer| peer.refused == Some(PeerRefusal::OtherIncarnation)) {
            peer.refused = None;
        }
    }

    pub(super) fn tick_leader(&mut self, now: Time, fx: &mut Effects) {
        self.step_down_if_unfit(now, fx);
        if self.role != Role::Leader {
            return;
        }
        self.tick_transfer(now);
        self.leave_if_short_of_space(now, fx);
        self.give_way(now, fx);
        self.begin_round_if_due(now, fx);
        if now >= self.leading.heartbeat_at {
            self.send_beats(now, fx);
        }
    }

    pub(super) fn leader_deadline(&self) -> Time {
        self.leading.heartbeat_at.min(self.leading.rounds.due_at()).min(self.transfer_deadline())
    }

    fn send_beats(&mut self, now: Time, fx: &mut Effects) {
        self.leading.heartbeat_at = now + self.config.heartbeat;
        let (cell, term, round) = (self.config.cell, self.term, self.leading.rounds.begun());
        for at in (0..self.peers.len()).filter(|at| self.is_followed_by(*at)) {
            let peer = &self.peers[at];
            let committed = self.committed.min(peer.progress.matched);
            let beat = Beat { cell, kind: BeatKind::Ask, term, round, committed, is_short_of_space: false };
            fx.push(Effect::Beat { to: peer.node, beat });
        }
    }

    pub(super) fn begin_round_if_due(&mut self, now: Time, fx: &mut Effects) {
        if self.leading.rounds.due_at() <= now {
            self.leading.rounds.begin(now);
            self.send_beats(now, fx);
            self.count_answers();
        }
    }

    pub(super) fn count_answers(&mut self) {
        let own = self.leading.rounds.begun();
        let answered = self.by_majority(own, |peer| peer.progress.answered);
        self.leading.rounds.on_answered(answered);
        self.announce_rounds();
    }

    /// Proofs of leadership are worth nothing before everything committed earlier was handed out.
    pub(super) fn announce_rounds(&mut self) {
        if (self.leading.is_serving || mutant::is(Mutant::ServeBeforeBlank))
            && let Some(round) = self.leading.rounds.announce()
        {
            self.events.push_back(RaftEvent::RoundConfirmed(round));
        }
    }

    /// The greatest value that a majority has reached, this node with `own`.
    fn by_majority<T: Ord + Copy>(&self, own: T, of: impl Fn(&super::Peer) -> T) -> T {
        let mut values = [own; MEMBERS_MAX];
        let mut count = 1;
        for (value, peer) in values[1..].iter_mut().zip(self.voters()) {
            *value = of(peer);
            count += 1;
        }
        values[..count].sort_unstable();
        values[count - self.majority()]
    }

    pub(super) fn on_ask(&mut self, from: NodeId, beat: Beat, now: Time, fx: &mut Effects) {
        if beat.term < self.term {
            return self.send_deposed(from, fx);
        }
        if self.hear_leader(from, beat.term, now, fx) {
            self.ask_for_snapshot(now, fx);
            self.commit_to(beat.committed, now);
            let is_short_of_space = self.is_short_of_space;
            let answer = Beat { kind: BeatKind::Answer, committed: LogIndex(0), is_short_of_space, ..beat };
            fx.push(Effect::Beat { to: from, beat: answer });
        }
    }

    pub(super) fn send_deposed(&self, to: NodeId, fx: &mut Effects) {
        let beat = Beat {
            cell: self.config.cell,
            kind: BeatKind::Deposed,
            term: self.term,
            round: RoundId(0),
            committed: LogIndex(0),
            is_short_of_space: false,
        };
        fx.push(Effect::Beat { to, beat });
    }

    pub(super) fn on_answer(&mut self, from: NodeId, beat: Beat, now: Time) {
        let Some(at) = self.peer_at(from) else { return };
        if self.role != Role::Leader || beat.term != self.term || beat.round > self.leading.rounds.begun() {
            return;
        }
        let progress = &mut self.peers[at].progress;
        progress.on_heard(now);
        progress.is_short_of_space = beat.is_short_of_space;
        progress.answered = progress.answered.max(beat.round);
        self.count_answers();
    }

    /// Appends an entry of this leader.
    pub(super) fn append_own(
        &mut self,
        now: Time,
        fx: &mut Effects,
        payload: impl FnOnce(&mut Vec<u8>),
    ) -> LogIndex {
        if self.committed == self.log.last_index() {
            self.leading.commit_moved_at = now;
        }
        let index = self.log.append(self.term, payload);
        self.record_entry(index, self.term, now, fx);
        index
    }

    fn record_entry(&mut self, index: LogIndex, term: Term, now: Time, fx: &mut Effects) {
        let append = self.durability.append_entry(index, now);
        let payload = self.log.payload(index).expect("an entry is in memory when it is made");
        let head = RecordHead { kind: RecordKind::Entry, term, index };
        fx.append(append, head, |out| out.extend_from_slice(payload));
        self.note_members(index, now);
    }

    /// Sends every follower what it has room for.
    pub(super) fn replicate(&mut self, now: Time, fx: &mut Effects) {
        let mut encoded: Option<Encoded> = None;
        for at in 0..self.peers.len() {
            if !self.is_followed_by(at) {
                continue;
            }
            self.peers[at].progress.probe_if_overdue(now, self.config.election_min);
            if self.log.term_at(self.peers[at].progress.next.prev()).is_none() {
                self.peers[at].progress.need_snapshot();
            }
            while self.peers[at].progress.has_room(self.config.inflight_bytes_max) {
                let (next, is_probing) = (self.peers[at].progress.next, self.peers[at].progress.is_probing());
                let is_in_memory = next >= self.log.cache_first();
                if !is_probing && (next > self.log.last_index() || !is_in_memory) {
                    break;
                }
                let sent = match encoded.take() {
                    Some(same) if same.next == next => same,
                    Some(_) | None => self.encode_append(next, is_in_memory, fx),
                };
                let (to, frame) = (self.peers[at].node, sent.frame.clone());
                fx.push(Effect::Send { to, lane: Lane::Bulk, frame });
                self.peers[at].progress.on_sent(sent.through, sent.bytes, now);
                encoded = Some(sent);
            }
        }
        self.read_for_laggards(fx);
        self.install_for_laggards(now, fx);
    }

    /// Encodes the entries from `next` on, or only a probe when they are not in memory.
    fn encode_append(&self, next: LogIndex, is_in_memory: bool, fx: &mut Effects) -> Encoded {
        let mut rows = Vec::new();
        let mut bytes = 0;
        let mut index = next;
        while is_in_memory && index <= self.log.last_index() {
            let payload = self.log.payload(index).expect("the cache has no gap");
            if !rows.is_empty() && bytes + payload.len() + ENTRY_HEAD_BYTES > APPEND_BYTES_MAX {
                break;
            }
            bytes += payload.len() + ENTRY_HEAD_BYTES;
            rows.push(EntryRow { term: self.log.term_at(index).expect("it is in the log"), payload });
            index = index.next();
        }
        let frame = self.encode_rows(next.prev(), &rows, fx);
        Encoded { next, through: index.prev(), bytes, frame }
    }

    fn encode_rows(&self, prev_index: LogIndex, rows: &[EntryRow<'_>], fx: &mut Effects) -> Range<usize> {
        let message = PeerMessage::Append(Append {
            term: self.term,
            prev_index,
            prev_term: self.log.term_at(prev_index).expect("what is sent follows an entry of the log"),
            committed: self.committed,
            entries: Rows::Slice(rows),
        });
        fx.encode(|out| message.encode(self.config.cell, out))
    }

    /// Asks for the entries that some follower needs and memory does not have, in turn.
    fn read_for_laggards(&mut self, fx: &mut Effects) {
        if self.reading.is_some() {
            return;
        }
        let count = self.peers.len();
        let cache_first = self.log.cache_first();
        for at in (0..count).map(|offset| (self.read_turn + offset) % count) {
            let progress = &self.peers[at].progress;
            let is_waiting = !progress.is_probing()
                && progress.next < cache_first
                && progress.has_room(self.config.inflight_bytes_max);
            if is_waiting && self.is_followed_by(at) {
                let (first, last) = (progress.next, cache_first.prev());
                self.reading = Some(first);
                self.read_turn = at + 1;
                return fx.push(Effect::ReadLog { first, last, bytes_max: APPEND_BYTES_MAX });
            }
        }
    }

    pub(super) fn send_read(&mut self, read: &LogRead<'_>, now: Time, fx: &mut Effects) {
        self.reading = None;
        let mut rows = Vec::with_capacity(read.entries.map_or(0, <[_]>::len));
        let mut bytes = 0;
        let mut index = read.first;
        for (term, payload) in read.entries.unwrap_or_default() {
            // This node may have followed another leader, and lost entries, since it asked.
            if self.log.term_at(index) != Some(*term) {
                break;
            }
            if !rows.is_empty() && bytes + payload.len() + ENTRY_HEAD_BYTES > APPEND_BYTES_MAX {
                break;
            }
            bytes += payload.len() + ENTRY_HEAD_BYTES;
            rows.push(EntryRow { term: *term, payload });
            index = index.next();
        }
        let prev_index = read.first.prev();
        if self.role != Role::Leader || self.log.term_at(prev_index).is_none() {
            return;
        }
        let is_recycled = read.entries.is_none();
        if rows.is_empty() && !is_recycled {
            return;
        }
        let frame = (!is_recycled).then(|| self.encode_rows(prev_index, &rows, fx));
        for at in 0..self.peers.len() {
            let progress = &self.peers[at].progress;
            let is_waiting = !progress.is_probing()
                && progress.next == read.first
                && progress.has_room(self.config.inflight_bytes_max);
            let Some(frame) = &frame else {
                if is_waiting {
                    // The log has recycled what it would need.
                    self.peers[at].progress.need_snapshot();
                }
                continue;
            };
            if is_waiting && self.is_followed_by(at) {
                let to = self.peers[at].node;
                fx.push(Effect::Send { to, lane: Lane::Bulk, frame: frame.clone() });
                self.peers[at].progress.on_sent(index.prev(), bytes, now);
            }
        }
    }

    pub(super) fn on_append(&mut self, from: NodeId, append: &Append<'_>, now: Time, fx: &mut Effects) {
        if append.term < self.term {
            return self.send_deposed(from, fx);
        }
        if !is_well_formed(append) || !self.hear_leader(from, append.term, now, fx) {
            return;
        }
        if let Some(error) = unreadable_members(append) {
            // It would count from here on, so that it must not be passed over.
            let cell = self.config.cell;
            let reason = format!(
                "cell {cell}: node {from}, which leads, has a list of members that this program cannot read ({error}); use \
                 the program that the other nodes have"
            );
            return fx.push(Effect::Halt(Halt { reason }));
        }
        self.ask_for_snapshot(now, fx);
        // What is committed is the same everywhere, also where this log has forgotten it.
        let is_committed = append.prev_index < self.committed;
        if !is_committed && self.log.term_at(append.prev_index) != Some(append.prev_term) {
            return self.send_conflict(from, append, fx);
        }
        let mut index = append.prev_index;
        for entry in append.entries.iter() {
            index = index.next();
            match self.log.term_at(index) {
                _ if index <= self.committed => continue,
                Some(term) if term == entry.term => continue,
                Some(_) => self.truncate_from(index, now, fx),
                None => {}
            }
            self.log.append(entry.term, |out| out.extend_from_slice(entry.payload));
            self.record_entry(index, entry.term, now, fx);
        }
        self.verified = self.verified.max(index);
        self.commit_to(append.committed.min(index), now);
        // What is not durable yet is acknowledged when it is; what was repeated is acknowledged again.
        self.is_ack_due |= index <= self.durability.durable_index();
    }

    fn send_conflict(&self, to: NodeId, append: &Append<'_>, fx: &mut Effects) {
        let prev_index = append.prev_index;
        let hint = self.log.last_at_most(prev_index, append.prev_term).min(prev_index.prev());
        let hint_term = self.log.term_at(hint).unwrap_or_default();
        let outcome = AppendOutcome::Conflict { prev_index, hint, hint_term };
        self.send_append_reply(to, outcome, fx);
    }

    fn truncate_from(&mut self, first: LogIndex, now: Time, fx: &mut Effects) {
        assert!(first > self.committed, "entry {first} is committed and would be truncated");
        self.append_truncation(first, now, fx);
        self.log.truncate_from(first);
        self.durability.on_truncated(first);
        self.truncate_members(first, now);
    }

    pub(super) fn append_truncation(&mut self, first: LogIndex, now: Time, fx: &mut Effects) {
        let append = self.durability.append(now);
        let head = RecordHead { kind: RecordKind::Truncate, term: self.term, index: first };
        fx.append(append, head, |_| {});
    }

    /// The leader says that the log is committed through here, as far as it matches.
    fn commit_to(&mut self, index: LogIndex, now: Time) {
        self.committed = self.committed.max(index.min(self.log.last_index()));
        self.commit_members(now);
    }

    /// Acknowledges what the disk has of this term's leader's log.
    pub(super) fn acknowledge(&mut self, fx: &mut Effects) {
        let Some(leader) = self.leader else { return };
        if self.is_ack_due && self.durability.is_hard_state_durable() {
            self.is_ack_due = false;
            let through = self.durability.durable_index().min(self.verified);
            self.send_append_reply(leader, AppendOutcome::Durable { through }, fx);
        }
    }

    fn send_append_reply(&self, to: NodeId, outcome: AppendOutcome, fx: &mut Effects) {
        let message = PeerMessage::AppendReply { term: self.term, outcome };
        fx.send(to, Lane::Control, self.config.cell, &message);
    }

    pub(super) fn on_append_reply(
        &mut self,
        from: NodeId,
        term: Term,
        outcome: AppendOutcome,
        now: Time,
        fx: &mut Effects,
    ) {
        self.on_newer_term(term, now, fx);
        let Some(at) = self.peer_at(from) else { return };
        if self.role != Role::Leader || term != self.term {
            return;
        }
        self.peers[at].progress.on_heard(now);
        match outcome {
            AppendOutcome::Durable { through } => {
                if through > self.log.last_index() {
                    return;
                }
                if self.peers[at].progress.on_durable(through, now) {
                    self.advance_commit(now);
                    self.hand_over_if_caught_up(fx);
                }
            }
            AppendOutcome::Conflict { prev_index, hint, hint_term } => {
                let next = self.log.last_at_most(hint, hint_term).next();
                if !self.peers[at].progress.on_conflict(prev_index, next) {
                    self.report_forgotten(from, prev_index, fx);
                }
            }
        }
    }

    fn report_forgotten(&self, peer: NodeId, index: LogIndex, fx: &mut Effects) {
        let reason = format!(
            "cell {}: node {peer} no longer has entry {index} that it had confirmed: its disk forgot it or its \
             data directory was rolled back; stop it, it cannot be trusted with what it promised",
            self.config.cell
        );
        fx.push(Effect::Report(Report::Refused { peer, reason }));
    }

    /// Commits what a majority of disks has, up to an entry of this leader's own term.
    pub(super) fn advance_commit(&mut self, now: Time) {
        let durable = self.durability.durable_index();
        let index = self.by_majority(durable, |peer| peer.progress.matched);
        let is_own = self.log.term_at(index) == Some(self.term);
        if index > self.committed && (is_own || mutant::is(Mutant::CommitOlderTerm)) {
            self.committed = index;
            self.leading.commit_moved_at = now;
            self.commit_members(now);
        }
    }
}

/// What is wrong with a list of members among the entries, if anything is.
fn unreadable_members(append: &Append<'_>) -> Option<DecodeError> {
    append.entries.iter().find_map(|entry| Members::in_entry(entry.payload)?.err())
}

/// Whether the terms are such as a leader's log can have.
fn is_well_formed(append: &Append<'_>) -> bool {
    let mut last = append.prev_term;
    append.entries.iter().all(|entry| {
        let is_rising = entry.term >= last && entry.term <= append.term;
        last = entry.term;
        is_rising
    })
}
