//! A cell of real Raft nodes over a simulated network, disk and clock.
//!
//! Invariant: one seed decides everything, and whatever a node loses in a crash is what its disk had not
//! confirmed. [`super::oracle`] watches every step.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::PEER_FRAME_BYTES_MAX;
use lockstep_wire::peer::{Beat, PeerMessage};
use lockstep_wire::{BirthId, CellId, Incarnation, LogIndex, NodeId, RoundId, Term};

use super::super::{Raft, RaftConfig, RaftEvent, Restored, Urgency};
use super::oracle::Oracle;
use super::script::{describe, describe_beat, describe_record};
use crate::{AppendId, Effect, Effects, LogRead, RecordHead, RecordKind, Report, Span, Time};

pub(super) const CELL: CellId = CellId(7);
pub(super) const HEARTBEAT: Span = Span::from_ms(50);
pub(super) const ELECTION_MIN: Span = Span::from_ms(500);
pub(super) const ELECTION_MAX: Span = Span::from_ms(1_000);
const LATENCY: Span = Span(200_000);

/// A stream of random numbers of the test's own.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    pub(super) fn is_percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What the network does to a message, in percent.
#[derive(Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) drop: u64,
    pub(super) duplicate: u64,
    pub(super) delay: u64,
}

enum Happening {
    Frame { from: NodeId, to: NodeId, link: u64, bytes: Vec<u8> },
    Beat { from: NodeId, to: NodeId, link: u64, beat: Beat },
    Disk { node: NodeId, life: u64, append: AppendId, records: usize },
    LogRead { node: NodeId, life: u64, first: LogIndex, last: LogIndex, bytes_max: usize },
    LinkUp { node: NodeId, peer: NodeId, link: u64 },
    LinkDown { node: NodeId, peer: NodeId, link: u64, is_refused: bool },
}

impl Happening {
    /// Whom it happens to.
    fn node(&self) -> NodeId {
        match self {
            Happening::Frame { to, .. } | Happening::Beat { to, .. } => *to,
            Happening::Disk { node, .. }
            | Happening::LogRead { node, .. }
            | Happening::LinkUp { node, .. }
            | Happening::LinkDown { node, .. } => *node,
        }
    }
}

/// One member: its node while it runs, and its disk.
pub(super) struct Member {
    pub(super) node: NodeId,
    pub(super) raft: Option<Raft>,
    pub(super) incarnation: Incarnation,
    pub(super) disk_delay: Span,
    pub(super) is_disk_stuck: bool,
    pub(super) reports: BTreeSet<String>,
    pub(super) has_stopped: bool,
    /// Until then its process gets no turn, and everything for it waits.
    pub(super) paused_until: Time,
    pub(super) log_reads: usize,
    life: u64,
    pub(super) records: Vec<(RecordHead, Vec<u8>)>,
    pub(super) records_durable: usize,
    disk_free_at: Time,
    /// The entries that the disk has, as its records add up to.
    pub(super) disk_log: Vec<(Term, Vec<u8>)>,
    pub(super) applied: u64,
    pub(super) rounds: BTreeMap<RoundId, LogIndex>,
}

impl Member {
    fn new(node: u16) -> Member {
        Member {
            node: NodeId(node),
            raft: None,
            incarnation: Incarnation([u8::try_from(node).unwrap(); 16]),
            disk_delay: Span(100_000),
            is_disk_stuck: false,
            reports: BTreeSet::new(),
            has_stopped: false,
            paused_until: Time(0),
            log_reads: 0,
            life: 0,
            records: Vec::new(),
            records_durable: 0,
            disk_free_at: Time(0),
            disk_log: Vec::new(),
            applied: 0,
            rounds: BTreeMap::new(),
        }
    }
}

/// A copy of a member's directory.
pub(super) struct Disk {
    records: Vec<(RecordHead, Vec<u8>)>,
    log: Vec<(Term, Vec<u8>)>,
}

pub(super) struct Cluster {
    pub(super) now: Time,
    pub(super) members: Vec<Member>,
    /// How many were there at the birth.
    pub(super) born: u16,
    pub(super) faults: Faults,
    pub(super) random: Random,
    pub(super) cache_bytes_max: usize,
    pub(super) preference: Span,
    /// Pairs between which packets vanish, in this direction.
    pub(super) cut: BTreeSet<(NodeId, NodeId)>,
    /// Kinds of frames that vanish from a node.
    pub(super) muted: BTreeSet<(NodeId, u16)>,
    pub(super) trace: Option<String>,
    pub(super) has_beats_in_trace: bool,
    queue: BTreeMap<(Time, u64), Happening>,
    sequence: u64,
    links: BTreeMap<(NodeId, NodeId), u64>,
    pub(super) oracle: Oracle,
    fx: Effects,
}

impl Cluster {
    /// Members 1 to `count`, not started.
    pub(super) fn new(count: u16, seed: u64) -> Cluster {
        Cluster {
            now: Time(0),
            members: (1..=count).map(Member::new).collect(),
            born: count,
            faults: Faults::default(),
            random: Random::new(seed + 1),
            cache_bytes_max: 1 << 20,
            preference: Span(0),
            cut: BTreeSet::new(),
            muted: BTreeSet::new(),
            trace: None,
            has_beats_in_trace: false,
            queue: BTreeMap::new(),
            sequence: 0,
            links: BTreeMap::new(),
            oracle: Oracle::default(),
            fx: Effects::new(),
        }
    }

    /// Members 1 to `count`, born, with a leader that serves.
    pub(super) fn serving(count: u16, seed: u64) -> Cluster {
        let mut cluster = Cluster::new(count, seed);
        cluster.start_all();
        cluster.run_until_serving(Span::from_ms(5_000));
        cluster.run_for(Span::from_ms(60));
        cluster
    }

    /// One more node, which was not there at the birth; it is started, and has yet to be added.
    pub(super) fn add_node(&mut self) -> NodeId {
        let member = Member::new(u16::try_from(self.members.len()).unwrap() + 1);
        let node = member.node;
        self.members.push(member);
        self.start(node);
        node
    }

    pub(super) fn start_all(&mut self) {
        for node in self.nodes() {
            self.start(node);
        }
    }

    pub(super) fn nodes(&self) -> Vec<NodeId> {
        self.members.iter().map(|member| member.node).collect()
    }

    pub(super) fn member(&mut self, node: u16) -> &mut Member {
        &mut self.members[usize::from(node) - 1]
    }

    pub(super) fn raft(&self, node: u16) -> &Raft {
        self.members[usize::from(node) - 1].raft.as_ref().expect("the member runs")
    }

    pub(super) fn oracle(&self) -> &Oracle {
        &self.oracle
    }

    /// Starts a member from what its disk has, and links it to those that run.
    pub(super) fn start(&mut self, node: NodeId) {
        let members: Vec<NodeId> = (1..=self.born).map(NodeId).collect();
        let is_joining = node.0 > self.born;
        let seed = self.random.below(u64::MAX);
        let (now, cache_bytes_max, preference) = (self.now, self.cache_bytes_max, self.preference);
        let member = self.member(node.0);
        assert!(member.raft.is_none());
        let mut restored = Restored::new();
        for (head, payload) in &member.records {
            restored.on_record(*head, payload);
        }
        member.life += 1;
        let config = RaftConfig {
            cell: CELL,
            node,
            members,
            is_joining,
            incarnation: member.incarnation,
            birth_id: BirthId([u8::try_from(member.life).unwrap_or(255); 16]),
            heartbeat: HEARTBEAT,
            election_min: ELECTION_MIN,
            election_max: ELECTION_MAX,
            seed,
            blank: b"blank".to_vec(),
            cache_bytes_max,
            inflight_bytes_max: 64 * 1024,
            round_pace: Span::from_ms(3),
            preference,
        };
        member.applied = 0;
        member.rounds.clear();
        member.disk_free_at = now;
        member.is_disk_stuck = false;
        member.has_stopped = false;
        member.paused_until = now;
        member.raft = Some(Raft::new(config, restored, now));
        for peer in self.nodes() {
            if peer != node && self.member(peer.0).raft.is_some() {
                self.connect(node, peer);
            }
        }
    }

    /// Kills a member: what its disk has not confirmed is lost, and its port refuses.
    pub(super) fn crash(&mut self, node: NodeId) {
        let member = self.member(node.0);
        let outstanding = (member.records.len() - member.records_durable) as u64;
        // Some of it may be on the disk although nobody has heard so.
        let survives = if self.faults.drop > 0 { self.random.below(outstanding + 1) } else { 0 };
        let member = self.member(node.0);
        member.on_disk(member.records_durable + usize::try_from(survives).unwrap());
        member.raft = None;
        member.records.truncate(member.records_durable);
        for peer in self.nodes() {
            self.disconnect(node, peer, true);
        }
    }

    /// Kills a member and formats its directory again.
    pub(super) fn wipe(&mut self, node: NodeId) {
        self.crash(node);
        let member = self.member(node.0);
        member.records.clear();
        member.records_durable = 0;
        member.disk_log.clear();
        member.incarnation.0[0] ^= 0x80;
    }

    /// What a member's directory holds, while it does not run.
    pub(super) fn copy_disk(&mut self, node: NodeId) -> Disk {
        let member = self.member(node.0);
        Disk { records: member.records.clone(), log: member.disk_log.clone() }
    }

    /// Puts an older copy of a directory in its place.
    pub(super) fn restore_disk(&mut self, node: NodeId, disk: Disk) {
        let member = self.member(node.0);
        member.records_durable = disk.records.len();
        (member.records, member.disk_log) = (disk.records, disk.log);
    }

    pub(super) fn connect(&mut self, a: NodeId, b: NodeId) {
        self.sequence += 1;
        let link = self.sequence;
        self.links.insert((a.min(b), a.max(b)), link);
        for (node, peer) in [(a, b), (b, a)] {
            self.schedule(LATENCY, Happening::LinkUp { node, peer, link });
        }
    }

    pub(super) fn disconnect(&mut self, a: NodeId, b: NodeId, is_refused: bool) {
        if let Some(link) = self.links.remove(&(a.min(b), a.max(b))) {
            for (node, peer) in [(a, b), (b, a)] {
                self.schedule(LATENCY, Happening::LinkDown { node, peer, link, is_refused });
            }
        }
    }

    /// Lets packets between a node and all others vanish, both ways, while the links stay up.
    pub(super) fn isolate(&mut self, node: NodeId) {
        for peer in self.nodes() {
            self.cut.insert((node, peer));
            self.cut.insert((peer, node));
        }
    }

    pub(super) fn is_paused(&self, node: NodeId) -> bool {
        self.now < self.members[usize::from(node.0) - 1].paused_until
    }

    pub(super) fn unstick_disk(&mut self, node: u16) {
        let now = self.now;
        let member = self.member(node);
        member.is_disk_stuck = false;
        let (life, records) = (member.life, member.records.len());
        let append = member.raft.as_ref().map(|raft| raft.durability.last_append());
        member.disk_free_at = now;
        if let Some(append) = append {
            self.schedule(Span(1), Happening::Disk { node: NodeId(node), life, append, records });
        }
    }

    fn schedule(&mut self, span: Span, happening: Happening) {
        self.sequence += 1;
        self.queue.insert((self.now + span, self.sequence), happening);
    }

    pub(super) fn run_for(&mut self, span: Span) {
        let end = self.now + span;
        while self.advance(end) {}
        self.now = end;
    }

    /// Runs until `is_done`; fails when that takes longer than `span`.
    pub(super) fn run_until(&mut self, span: Span, what: &str, is_done: impl Fn(&Cluster) -> bool) {
        let end = self.now + span;
        while !is_done(self) {
            assert!(self.advance(end), "after {span}: {what}");
        }
    }

    pub(super) fn run_until_serving(&mut self, span: Span) -> NodeId {
        self.run_until(span, "nobody serves", |cluster| cluster.serving_leader().is_some());
        self.serving_leader().unwrap()
    }

    /// The serving leader of the highest term.
    pub(super) fn serving_leader(&self) -> Option<NodeId> {
        let rafts = self.members.iter().filter_map(|member| Some((member.node, member.raft.as_ref()?)));
        let serving = rafts.filter(|(_, raft)| raft.is_serving());
        serving.max_by_key(|(_, raft)| raft.term()).map(|(node, _)| node)
    }

    /// Lets the next thing happen, unless it is behind `end`.
    fn advance(&mut self, end: Time) -> bool {
        let queued = self.queue.first_key_value().map(|(key, _)| key.0).unwrap_or(Time::NEVER);
        let running = self.members.iter().filter_map(|member| {
            Some((member.raft.as_ref()?.deadline().max(member.paused_until), member.node))
        });
        let (deadline, node) = running.min().unwrap_or((Time::NEVER, NodeId(0)));
        if queued.min(deadline) > end {
            return false;
        }
        if queued <= deadline {
            self.now = self.now.max(queued);
            let ((_, sequence), happening) = self.queue.pop_first().expect("something is queued");
            let paused_until = self.member(happening.node().0).paused_until;
            if self.now < paused_until {
                // After the pause what waited comes first, or a timer does.
                let at = paused_until + Span(u64::from(happening.node().0) % 2);
                self.queue.insert((at, sequence), happening);
            } else {
                self.happen(happening);
            }
        } else {
            self.now = self.now.max(deadline);
            self.step(node, |raft, now, fx| raft.on_tick(now, fx));
            let next = self.members[usize::from(node.0) - 1].raft.as_ref().map(Raft::deadline);
            assert!(next.is_none_or(|next| next > self.now), "node {node} wants to be woken for ever");
        }
        true
    }

    fn is_linked(&self, a: NodeId, b: NodeId, link: u64) -> bool {
        self.links.get(&(a.min(b), a.max(b))) == Some(&link)
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Frame { from, to, link, bytes } if self.is_linked(from, to, link) => {
                let mut assembler = Assembler::default();
                let mut input = &bytes[..];
                let frame = assembler.next(&mut input, PEER_FRAME_BYTES_MAX).unwrap().unwrap();
                let message = PeerMessage::decode(&frame).unwrap();
                self.step(to, |raft, now, fx| raft.on_message(from, &message, now, fx));
            }
            Happening::Beat { from, to, link, beat } if self.is_linked(from, to, link) => {
                self.step(to, |raft, now, fx| raft.on_beat(from, beat, now, fx));
            }
            Happening::Frame { .. } | Happening::Beat { .. } => {}
            Happening::Disk { node, life, append, records } => {
                let member = self.member(node.0);
                if member.life == life && member.raft.is_some() && !member.is_disk_stuck {
                    member.on_disk(records);
                    self.note_bound();
                    self.step(node, |raft, now, fx| raft.on_durable(append, now, fx));
                }
            }
            Happening::LogRead { node, life, first, last, bytes_max } => {
                let member = self.member(node.0);
                if member.life == life && member.raft.is_some() {
                    self.read_log(node, first, last, bytes_max);
                }
            }
            Happening::LinkUp { node, peer, link } if self.is_linked(node, peer, link) => {
                self.step(node, |raft, now, fx| raft.on_link_up(peer, now, fx));
            }
            Happening::LinkUp { .. } => {}
            Happening::LinkDown { node, peer, link, is_refused } => {
                let current = self.links.get(&(node.min(peer), node.max(peer)));
                if current.is_none_or(|current| *current < link) {
                    self.step(node, |raft, now, _| raft.on_link_down(peer, is_refused, now));
                }
            }
        }
    }

    fn read_log(&mut self, node: NodeId, first: LogIndex, last: LogIndex, bytes_max: usize) {
        let mut bytes = 0;
        let mut entries: Vec<(Term, Vec<u8>)> = Vec::new();
        for index in first.0..=last.0 {
            let entry = self.member(node.0).disk_log[usize::try_from(index - 1).unwrap()].clone();
            bytes += entry.1.len();
            if !entries.is_empty() && bytes > bytes_max {
                break;
            }
            entries.push(entry);
        }
        let borrowed: Vec<(Term, &[u8])> = entries.iter().map(|(term, bytes)| (*term, &bytes[..])).collect();
        let read = LogRead { first, entries: Some(&borrowed) };
        self.step(node, |raft, now, fx| raft.on_log_read(&read, now, fx));
    }

    /// One turn of a member's loop.
    pub(super) fn step<T>(
        &mut self,
        node: NodeId,
        turn: impl FnOnce(&mut Raft, Time, &mut Effects) -> T,
    ) -> Option<T> {
        let now = self.now;
        let mut fx = std::mem::take(&mut self.fx);
        let mut raft = self.member(node.0).raft.take()?;
        let result = turn(&mut raft, now, &mut fx);
        self.take_committed(node, &mut raft);
        raft.on_end_of_turn(now, &mut fx);
        self.take_committed(node, &mut raft);
        self.member(node.0).raft = Some(raft);
        for effect in fx.list() {
            self.carry_out(node, effect, fx.bytes());
        }
        fx.clear();
        self.fx = fx;
        Some(result)
    }

    fn take_committed(&mut self, node: NodeId, raft: &mut Raft) {
        let term_now = raft.term();
        let member = &mut self.members[usize::from(node.0) - 1];
        while let Some(entry) = raft.poll_committed() {
            member.applied += 1;
            assert_eq!(entry.index.0, member.applied, "entries come in order, each once");
            let at = usize::try_from(entry.index.0 - 1).unwrap();
            let own = (entry.term, entry.payload.to_vec());
            match self.oracle.committed.get(at) {
                Some(known) => assert_eq!(*known, own, "state machine safety at {}", entry.index),
                None => {
                    self.oracle.committed.push(own);
                    self.oracle.committed_in.push(term_now);
                }
            }
        }
        while let Some(event) = raft.poll_event() {
            self.on_event(node, raft, event);
        }
        if raft.is_leader() {
            self.check_commit(raft);
        }
    }

    fn on_event(&mut self, node: NodeId, raft: &Raft, event: RaftEvent) {
        let text = match event {
            RaftEvent::Elected { term } => {
                let known = self.oracle.leaders.insert(term, node);
                assert!(known.is_none(), "election safety: term {term} has {known:?} and {node}");
                self.check_completeness(raft);
                format!("elected in term {term}")
            }
            RaftEvent::Serving { term } => format!("serves in term {term}"),
            RaftEvent::Deposed { term, reason, is_planned } => {
                self.oracle.deposed += 1;
                format!("deposed in term {term}{}: {reason}", if is_planned { " as planned" } else { "" })
            }
            RaftEvent::LeaderChanged { leader } => format!("follows {leader}"),
            RaftEvent::RoundConfirmed(round) => {
                self.check_round(node, raft, round);
                format!("round {round} confirmed")
            }
            RaftEvent::SnapshotWanted | RaftEvent::SnapshotTaken(_) | RaftEvent::SnapshotInstalled(_) => {
                panic!("nobody takes snapshots here")
            }
            RaftEvent::Born => {
                self.check_birth();
                "born".to_string()
            }
            RaftEvent::WaitsToBeAdded => "waits to be added".to_string(),
            RaftEvent::MembersChanged => return,
            RaftEvent::Removed => "removed".to_string(),
        };
        if !matches!(event, RaftEvent::RoundConfirmed(_)) || self.has_beats_in_trace {
            self.say(format_args!("{node}    {text}"));
        }
    }

    pub(super) fn ask_round(&mut self, node: NodeId, urgency: Urgency) -> Option<RoundId> {
        let seen = LogIndex(self.oracle.committed.len() as u64);
        let round = self.step(node, |raft, _, _| raft.ask_round(urgency)).flatten()?;
        let rounds = &mut self.member(node.0).rounds;
        if rounds.last_key_value().is_some_and(|(last, _)| *last > round) {
            rounds.clear();
        }
        rounds.insert(round, seen);
        Some(round)
    }

    pub(super) fn propose(&mut self, node: NodeId, payload: &[u8]) -> Option<LogIndex> {
        self.step(node, |raft, now, fx| raft.propose(now, fx, |out| out.extend_from_slice(payload))).flatten()
    }

    fn carry_out(&mut self, node: NodeId, effect: &Effect, bytes: &[u8]) {
        match effect {
            Effect::Append { append, head, payload } => {
                self.oracle.truncations += usize::from(head.kind == RecordKind::Truncate);
                let record = describe_record(head, &bytes[payload.clone()]);
                self.say(format_args!("{node}    log {}: {record}", append.0));
                let member = &mut self.members[usize::from(node.0) - 1];
                member.records.push((*head, bytes[payload.clone()].to_vec()));
                let (life, records) = (member.life, member.records.len());
                let done_at = (self.now + member.disk_delay).max(member.disk_free_at);
                member.disk_free_at = done_at;
                let happening = Happening::Disk { node, life, append: *append, records };
                if !member.is_disk_stuck {
                    self.schedule(done_at.since(self.now), happening);
                }
            }
            Effect::Send { to, lane: _, frame } => self.send(node, *to, &bytes[frame.clone()]),
            Effect::Beat { to, beat } => {
                if self.has_beats_in_trace {
                    self.say(format_args!("{node}>{to}  {}", describe_beat(beat)));
                }
                let Some(link) = self.link(node, *to) else { return };
                for span in self.fates() {
                    self.schedule(span, Happening::Beat { from: node, to: *to, link, beat: *beat });
                }
            }
            Effect::ReadLog { first, last, bytes_max } => {
                let member = &mut self.members[usize::from(node.0) - 1];
                member.log_reads += 1;
                assert!(last.0 <= member.disk_log.len() as u64, "only what is durable is read");
                let (life, first, last, bytes_max) = (member.life, *first, *last, *bytes_max);
                self.schedule(Span(300_000), Happening::LogRead { node, life, first, last, bytes_max });
            }
            Effect::Report(report) => {
                let reason = match report {
                    Report::Refused { peer: _, reason } => reason.clone(),
                    Report::GivingWay { to } => format!("giving way to {to}"),
                    other => panic!("the cell reports {other:?}"),
                };
                self.say(format_args!("{node}    reports: {reason}"));
                self.member(node.0).reports.insert(reason.clone());
            }
            Effect::Stopped => {
                self.say(format_args!("{node}    stopped"));
                self.member(node.0).has_stopped = true;
            }
            Effect::Halt(halt) => panic!("node {node} halts: {}", halt.reason),
            Effect::StageSnapshot { .. } | Effect::DropSnapshot | Effect::ReadSnapshot { .. } => {
                panic!("nobody takes snapshots here")
            }
            Effect::PeersChanged | Effect::Removed => panic!("the cell says that"),
            Effect::Reply { .. } | Effect::Drain(_) => panic!("Raft knows no clients"),
        }
    }

    fn send(&mut self, from: NodeId, to: NodeId, frame: &[u8]) {
        let mut assembler = Assembler::default();
        let mut input = frame;
        let read = assembler.next(&mut input, PEER_FRAME_BYTES_MAX).unwrap().unwrap();
        let message = PeerMessage::decode(&read).unwrap();
        self.say(format_args!("{from}>{to}  {}", describe(&message)));
        self.check_promise(from, to, &message);
        if self.muted.contains(&(from, message.kind())) {
            return;
        }
        let Some(link) = self.link(from, to) else { return };
        for span in self.fates() {
            self.schedule(span, Happening::Frame { from, to, link, bytes: frame.to_vec() });
        }
    }

    fn link(&self, from: NodeId, to: NodeId) -> Option<u64> {
        if self.cut.contains(&(from, to)) {
            return None;
        }
        self.links.get(&(from.min(to), from.max(to))).copied()
    }

    /// When the copies of a message arrive.
    fn fates(&mut self) -> Vec<Span> {
        let Faults { drop, duplicate, delay } = self.faults;
        if drop + duplicate + delay == 0 {
            return vec![LATENCY];
        }
        if self.random.is_percent(drop) {
            return Vec::new();
        }
        let copies = if self.random.is_percent(duplicate) { 2 } else { 1 };
        (0..copies)
            .map(|_| {
                let slow = if self.random.is_percent(delay) { 40_000_000 } else { 1_000_000 };
                Span(LATENCY.0 + self.random.below(slow))
            })
            .collect()
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            let at = format!("{}.{}", now.0 / 1_000_000, now.0 / 100_000 % 10);
            writeln!(trace, "{at:<6} {line}").unwrap();
        }
    }

    pub(super) fn begin_trace(&mut self) {
        self.trace = Some(String::new());
    }

    pub(super) fn note(&mut self, text: &str) {
        self.say(format_args!("-- {text}"));
    }

    pub(super) fn end_trace(&mut self) -> String {
        self.trace.take().expect("a trace was begun")
    }
}

impl Member {
    /// The disk has the first `records` records.
    fn on_disk(&mut self, records: usize) {
        while self.records_durable < records {
            let (head, payload) = &self.records[self.records_durable];
            match head.kind {
                RecordKind::Entry => self.disk_log.push((head.term, payload.clone())),
                RecordKind::Truncate => self.disk_log.truncate(usize::try_from(head.index.0 - 1).unwrap()),
                RecordKind::HardState
                | RecordKind::SnapshotMark
                | RecordKind::Manifest
                | RecordKind::Born => {}
            }
            self.records_durable += 1;
        }
    }
}
