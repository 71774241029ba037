//! What the judges are shown, and the first thing they object to.
//!
//! Invariant: every entry that any replica applies is shown once, in order, together with what a table of the judges'
//! own makes of it, and the model agrees; a replica's table is compared with the model wherever both stand at the same entry. Deliberately absent:
//! the rules; those are in `oracle`.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::table::{Answer, Outcome, Table};
use lockstep_core::{Cell, RecordHead};
use lockstep_wire::entry::Command;
use lockstep_wire::reply::EndReason;
use lockstep_wire::request::Request;
use lockstep_wire::{CellId, Epoch, LogIndex, NodeId, Nonce, SessionId, Term};

use crate::mark::{Lookout, Mark, Marks};
use crate::oracle::beat::{Beats, ServerLife};
use crate::oracle::birth::Birth;
use crate::oracle::commitment::Commitment;
use crate::oracle::durability::Acknowledgements;
use crate::oracle::election::Elections;
use crate::oracle::exclusion::Resources;
use crate::oracle::lateness::Lateness;
use crate::oracle::leadership::Leadership;
use crate::oracle::line::Lines;
use crate::oracle::majority::{Ballot, Disks};
use crate::oracle::matching::Matching;
use crate::oracle::membership::Memberships;
use crate::oracle::nonce::Nonces;
use crate::oracle::once::Once;
use crate::oracle::orphan::Orphans;
use crate::oracle::reading::Readings;
use crate::oracle::refusal::Refusals;
use crate::oracle::space::Space;
use crate::oracle::token::Tokens;
use crate::oracle::wait::Waits;
use crate::oracle::{Verdict, Violation, violated};
use crate::reference::compare::{lock_of, session_of};
use crate::reference::twins::Twins;
use crate::world::hearing::{acknowledged_in, attached_in, kept_alive_by};
use crate::world::schedule::{MS, Moment};

use super::network::WireId;
use super::operator::Change;
use super::plan::Plan;
use super::tap::{Tap, wishes_of};
use super::trace::number_of;

/// Whoever's disk has been full for so long has said so to its leader, in ns.
const FULL_FOR_LONG: Moment = 1_000 * MS;

/// Whose digests those of the judges' own table are.
const JUDGE: NodeId = NodeId(0);

/// A replica's own log, as its driver has seen it grow: entry `i + 1` by term and payload.
pub(super) type Mirror = Vec<(Term, Vec<u8>)>;

/// The judges of one cell.
#[derive(Debug)]
pub(super) struct CellJudges {
    pub(super) commitment: Commitment,
    pub(super) elections: Elections,
    pub(super) acknowledgements: Acknowledgements,
    pub(super) readings: Readings,
    /// The last entry of the backup that the cell was restored from; 0 for a cell that began empty.
    pub(super) origin: LogIndex,
    pub(super) birth: Birth,
    /// Some member has said that the cell is born.
    pub(super) is_born: bool,
    /// Some client was told something that only a born cell can tell.
    pub(super) is_trusted: bool,
    pub(super) leadership: Leadership,
    pub(super) lateness: Lateness,
    pub(super) waits: Waits,
    /// Sessions, and the wires on which some leader has attached them.
    attached: BTreeSet<(SessionId, WireId)>,
    pub(super) nonces: Nonces,
    pub(super) once: Once,
    pub(super) refusals: Refusals,
    pub(super) orphans: Orphans,
    pub(super) beats: Beats,
    pub(super) disks: Disks,
    pub(super) memberships: Memberships,
    matching: Matching,
    lines: Lines,
    lookout: Lookout,
    twins: Twins,
}

/// The end of a session by a committed entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// Of which cell.
    pub cell: CellId,
    /// Which session.
    pub session: SessionId,
    /// Why.
    pub reason: EndReason,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Judges {
    cells: BTreeMap<CellId, CellJudges>,
    pub(super) resources: Resources,
    pub(super) tokens: Tokens,
    pub(super) space: Space,
    pub(super) tap: Tap,
    /// Sessions that have ended since somebody looked.
    pub(super) endings: Vec<Ending>,
    /// Members that were removed since somebody looked.
    pub(super) removals: Vec<(CellId, NodeId)>,
    /// Changes of members that an operator was told to be done since then, and how many lists were committed when he asked.
    pub(super) changes_done: Vec<(CellId, Change, usize)>,
    violation: Option<Violation>,
    /// What time it is.
    pub(super) now: Moment,
    /// Entries that any replica was the first to apply.
    pub(super) entries: u64,
    marks: Marks,
}

impl Judges {
    /// Judges of a plan's cells, which are numbered from 0 on.
    pub(super) fn new(plan: &Plan, epoch: Epoch) -> Judges {
        let limits = plan.limits;
        let judges = |_| CellJudges {
            commitment: Commitment::default(),
            elections: Elections::default(),
            acknowledgements: Acknowledgements::default(),
            readings: Readings::default(),
            origin: LogIndex(0),
            birth: Birth::default(),
            is_born: false,
            is_trusted: false,
            leadership: Leadership::default(),
            lateness: Lateness::default(),
            waits: Waits::default(),
            attached: BTreeSet::new(),
            lookout: Lookout::default(),
            nonces: Nonces::default(),
            once: Once::default(),
            refusals: Refusals::default(),
            orphans: Orphans::default(),
            beats: Beats::default(),
            disks: Disks::default(),
            memberships: Memberships::new((0..plan.nodes).map(Plan::node_id)),
            matching: Matching::default(),
            lines: Lines::new(limits.holders_per_lock_max),
            twins: Twins::new(epoch, limits, plan.is_model_asked),
        };
        Judges {
            cells: (0..plan.cells).map(|cell| (CellId(cell), judges(cell))).collect(),
            resources: Resources::default(),
            tokens: Tokens::default(),
            space: Space::default(),
            tap: Tap::default(),
            endings: Vec::new(),
            removals: Vec::new(),
            changes_done: Vec::new(),
            violation: None,
            now: 0,
            entries: 0,
            marks: Marks::default(),
        }
    }

    /// Keeps the first violation.
    pub(super) fn take(&mut self, verdict: Verdict) {
        if let Err(violation) = verdict {
            self.violation.get_or_insert(violation);
        }
    }

    /// The first violation.
    pub(super) fn violation(&self) -> Option<&Violation> {
        self.violation.as_ref()
    }

    pub(super) fn cell(&mut self, cell: CellId) -> &mut CellJudges {
        self.cells.get_mut(&cell).expect("cells are numbered from 0 on")
    }

    /// Whether there is such a cell.
    pub(super) fn has_cell(&self, cell: CellId) -> bool {
        self.cells.contains_key(&cell)
    }

    pub(super) fn each_cell(&self) -> impl Iterator<Item = (CellId, &CellJudges)> {
        self.cells.iter().map(|(cell, judges)| (*cell, judges))
    }

    /// A replica appends an entry to a log that was like `mirror`.
    pub(super) fn on_appended(
        &mut self,
        id: CellId,
        node: NodeId,
        mirror: &Mirror,
        term: Term,
        payload: &[u8],
    ) {
        let index = LogIndex(mirror.len() as u64 + 1);
        let prev_term = mirror.last().map_or(Term(0), |(term, _)| *term);
        let verdict = self.cell(id).matching.on_appended(node, index, term, prev_term, number_of(payload));
        self.take(verdict);
        self.look_for_list(id, node, mirror, term, payload);
    }

    /// A member's log has found that its disk is full, or that it has room again.
    pub(super) fn on_space(&mut self, node: NodeId, is_short: bool) {
        self.space.on_space(node, is_short, self.now);
    }

    /// What was committed of a cell through an entry.
    pub(super) fn committed(&self, cell: CellId, through: LogIndex) -> &[(Term, Vec<u8>)] {
        self.cells.get(&cell).map_or(&[], |judges| judges.commitment.through(through))
    }

    /// A snapshot that counts is not used, and nothing was done to it that would explain it.
    pub(super) fn on_snapshot_refused(&mut self, id: CellId, node: NodeId, complaint: &str) {
        self.take(violated(
            "a snapshot that counts can be loaded (contract 8)",
            format!("node {node}, cell {id}: {complaint}"),
        ));
    }

    /// A replica has started from a snapshot, or from nothing.
    pub(super) fn on_restored(&mut self, id: CellId, node: NodeId, cell: &Cell) {
        if cell.applied() > LogIndex(0) {
            self.set(Mark::StartedFromSnapshot);
            let verdict = self.cell(id).commitment.on_digest(node, cell.applied(), cell.table().digest());
            self.take(verdict);
        }
    }

    /// A cell is restored from a backup whose last entry is of this term; all members begin with this state.
    pub(super) fn on_cell_restored(&mut self, id: CellId, term: Term, table: Table) {
        self.set(Mark::CellRestored);
        self.cell(id).on_restored(term, table);
    }

    /// The cluster was restored: what is still on its way to clients is of the one that is no more.
    pub(super) fn on_cluster_restored(&mut self) {
        self.tap.forget_conversations();
    }

    /// A node's disk is lost.
    pub(super) fn on_disk_lost(&mut self, node: NodeId) {
        self.cells.values_mut().for_each(|judges| judges.disks.on_lost(node));
    }

    /// A replica has started over what its disk held.
    pub(super) fn on_recovered(&mut self, id: CellId, node: NodeId, mirror: &Mirror, ballot: Ballot) {
        let terms = mirror.iter().map(|(term, _)| *term);
        let verdict = self.cell(id).disks.on_recovered(node, terms, ballot);
        self.take(verdict);
        let mut prev_term = Term(0);
        for ((term, payload), index) in mirror.iter().zip(1..) {
            let payload = number_of(payload);
            let matching = &mut self.cell(id).matching;
            let verdict = matching.on_appended(node, LogIndex(index), *term, prev_term, payload);
            self.take(verdict);
            prev_term = *term;
        }
    }

    /// A replica may know of more that is committed, and have applied more than `before`.
    pub(super) fn on_stepped(
        &mut self,
        id: CellId,
        node: NodeId,
        before: LogIndex,
        cell: &Cell,
        mirror: &Mirror,
    ) {
        let CellJudges { memberships, disks, .. } = self.cell(id);
        memberships.on_certain(mirror, cell.raft().committed(), |term, roster| {
            disks.on_committed(roster.index, term, roster.voters()).is_ok()
        });
        let applied = cell.applied();
        if applied == before || self.violation.is_some() {
            return;
        }
        let verdict = self.look_at(id, node, before, cell, mirror);
        self.take(verdict);
    }

    fn look_at(
        &mut self,
        id: CellId,
        node: NodeId,
        before: LogIndex,
        cell: &Cell,
        mirror: &Mirror,
    ) -> Verdict {
        let applied = cell.applied();
        for index in (before.0 + 1..=applied.0).map(LogIndex) {
            let at = usize::try_from(index.0 - 1).expect("a run is short");
            let Some((term, payload)) = mirror.get(at) else {
                return violated(
                    "what is applied is in the log (contract 8)",
                    format!("node {node} applies entry {index} of cell {id} and has never appended it"),
                );
            };
            let judges = self.cell(id);
            let newest = judges.elections.newest().map_or(Term(0), |(term, _)| term);
            if judges.commitment.on_applied(node, index, *term, payload, newest)? {
                judges.count_disks(index, *term, cell.raft().is_leader(), mirror)?;
                let removed = judges.memberships.on_committed(index, payload, newest)?;
                let outcomes = judges.on_committed(index, (*term, newest), payload)?;
                judges.commitment.on_digest(JUDGE, index, judges.twins.table().digest())?;
                self.entries += 1;
                self.note_endings(id, &outcomes);
                self.removals.extend(removed.map(|node| (id, node)));
                if is_granted_at_once(payload, &outcomes) && self.space.is_one_full(self.now, FULL_FOR_LONG) {
                    self.set(Mark::GrantedBesideFullDisk);
                }
            }
        }
        let judges = self.cell(id);
        judges.commitment.on_digest(node, applied, cell.table().digest())?;
        if judges.twins.table().applied() == applied {
            judges.compare(node, id, cell)?;
        }
        Ok(())
    }

    fn note_endings(&mut self, cell: CellId, outcomes: &[Outcome]) {
        for outcome in outcomes {
            if let Outcome::SessionEnded { session, reason, .. } = outcome {
                self.endings.push(Ending { cell, session: *session, reason: *reason });
            }
        }
    }

    /// A replica leads.
    pub(super) fn on_leading(&mut self, id: CellId, by: ServerLife, cell: &Cell, mirror: &Mirror) {
        let term = cell.raft().term();
        let judges = self.cell(id);
        let own = |index: LogIndex| {
            let at = usize::try_from(index.0 - 1).ok()?;
            mirror.get(at).map(|(term, _)| *term)
        };
        let verdict = judges.elections.on_leading(by, term, &judges.commitment, own);
        self.take(verdict);
        self.look_at_claim(id, by.0, cell, mirror);
    }

    /// A replica wants to stop although nothing was done to its disk.
    pub(super) fn on_halted(&mut self, node: NodeId, reason: &str) {
        self.take(violated("a replica goes on (contract 8)", format!("node {node} halts: {reason}")));
    }

    /// A replica's log cannot be used, and nothing was done to it that would explain it.
    pub(super) fn on_refused(&mut self, node: NodeId, reason: &str) {
        self.take(violated(
            "a log can be used after any crash (contract 8)",
            format!("node {node} does not start: {reason}"),
        ));
    }

    /// Something rare has happened.
    pub(super) fn set(&mut self, mark: Mark) {
        self.marks.set(mark);
    }

    /// What rare things have happened.
    pub(super) fn marks(&self) -> Marks {
        let mut marks = self.marks;
        for judges in self.cells.values() {
            marks.add(judges.lookout.marks());
            marks.add(judges.memberships.marks());
        }
        marks
    }

    /// A replica starts over a log in which a batch is not whole.
    pub(super) fn on_rot_unnoticed(&mut self, node: NodeId, place: &str) {
        self.take(violated(
            "damage inside a log is noticed (contract 8)",
            format!("node {node} starts although its log is rotten: {place}"),
        ));
    }

    /// A replica whose disk was lost writes down what would be a promise.
    pub(super) fn on_forgotten_promise(&mut self, cell: CellId, node: NodeId, head: RecordHead) {
        self.take(violated(
            "whoever has lost what it promised does not vote (contract 8)",
            format!("node {node} was formatted after the birth of cell {cell} and appends {head:?}"),
        ));
    }

    /// A replica's log has stopped, and nothing was done to the disk that would explain it.
    pub(super) fn on_log_stopped(&mut self, node: NodeId, reason: &str) {
        self.take(violated(
            "a log goes on while its disk does (contract 8)",
            format!("node {node}: {reason}"),
        ));
    }

    /// A replica goes on although its disk has failed to keep something.
    pub(super) fn on_failure_ignored(&mut self, node: NodeId) {
        self.take(violated(
            "whoever cannot keep what it promises stops (contract 8)",
            format!("a write or a sync of node {node} has failed, and it goes on"),
        ));
    }

    /// A replica that leads is handed a request that came on this wire.
    pub(super) fn on_asked(&mut self, cell: CellId, wire: WireId, request: &Request<'_>) {
        let now = self.now;
        let judges = self.cell(cell);
        let by_nonce = |nonce: &Nonce| judges.twins.model().session_by_nonce(nonce);
        judges.attached.extend(attached_in(request, by_nonce).into_iter().map(|session| (session, wire)));
        let is_attached = |session| judges.attached.contains(&(session, wire));
        for session in kept_alive_by(request, by_nonce, is_attached) {
            judges.lateness.on_heard(session, now);
        }
    }

    /// The live session that a nonce has opened, as far as anybody has applied.
    pub(super) fn session_by_nonce(&self, cell: CellId, nonce: &Nonce) -> Option<SessionId> {
        self.cells.get(&cell)?.twins.model().session_by_nonce(nonce)
    }

    /// A replica sends a frame to a client on this wire.
    pub(super) fn on_said(&mut self, cell: CellId, wire: WireId, frame: &[u8]) {
        let now = self.now;
        for session in acknowledged_in(frame) {
            let judges = self.cell(cell);
            let verdict = judges.acknowledgements.on_kept_alive(session);
            judges.attached.insert((session, wire));
            judges.lateness.on_heard(session, now);
            self.take(verdict);
        }
    }

    /// Elections that were won, over all cells.
    pub(super) fn elections(&self) -> usize {
        self.cells.values().map(|judges| judges.elections.count()).sum()
    }
}

/// Whether an entry is an acquire that is granted by it.
fn is_granted_at_once(payload: &[u8], outcomes: &[Outcome]) -> bool {
    let Ok(Command::Acquire(acquire)) = Command::decode(payload) else { return false };
    let own = (acquire.mutation.session, acquire.mutation.request_id);
    outcomes.iter().any(|outcome| match outcome {
        Outcome::Reply { session, request_id, answer: Answer::Granted(_) } => (*session, *request_id) == own,
        _ => false,
    })
}

impl CellJudges {
    /// What the cell has told since the backup is void, and everything of its epoch is over; what clients have is not
    /// forgotten: tokens stay given, and whoever believes to hold something believes it still.
    fn on_restored(&mut self, term: Term, table: Table) {
        let (epoch, through) = (table.epoch(), table.applied());
        self.commitment.on_restored(through, term);
        self.elections.on_restored();
        self.acknowledgements.on_restored(epoch, through);
        self.readings.on_restored(through);
        self.origin = through;
        self.birth.on_restored();
        (self.is_born, self.is_trusted) = (false, false);
        self.leadership.on_restored();
        self.lateness = Lateness::default();
        self.waits = Waits::default();
        self.attached.clear();
        self.nonces.on_restored();
        self.orphans.on_restored();
        self.disks.on_restored();
        self.memberships.on_restored();
        self.matching.on_restored(through);
        self.lines.on_restored();
        self.lookout.on_restored();
        self.twins.restore(table);
    }

    /// The entry is of the first term; leaders up to the second have been elected.
    fn on_committed(
        &mut self,
        index: LogIndex,
        (term, newest): (Term, Term),
        payload: &[u8],
    ) -> Result<Vec<Outcome>, Violation> {
        let command = match Command::decode(payload) {
            Ok(command) => command,
            Err(error) => {
                return violated("what is accepted replays (contract 8)", format!("entry {index}: {error}"));
            }
        };
        wishes_of(&command).into_iter().try_for_each(|wish| self.refusals.on_entry(index, wish))?;
        let outcomes =
            self.twins.apply(index, &command).or_else(|it| differs(format!("entry {index}: {it}")))?;
        self.acknowledgements.on_entry(index, &outcomes);
        self.lines.on_entry(index, &command, &outcomes)?;
        for outcome in &outcomes {
            if let Outcome::Opened { session, ttl_ms, is_new: true } = outcome {
                self.lateness.on_opened(*session, *ttl_ms, &self.leadership);
            }
        }
        self.waits.on_entry(&command, &outcomes, &self.leadership)?;
        self.lookout.on_entry(term, newest, &command, &outcomes);
        self.nonces.on_entry(index, &command, &outcomes)?;
        if self.once.is_settled(&command) {
            self.lookout.on_settled_again(&command);
        }
        self.once.on_entry(index, &command, &outcomes)?;
        self.orphans.on_entry(&command, &outcomes)?;
        self.readings.on_entry(index);
        for name in self.touched(&command) {
            self.readings.on_lock(&name, lock_of(self.twins.table(), &name).as_seen());
        }
        for session in sessions_of(&command, &outcomes) {
            if let Ok(state) = session_of(self.twins.table(), session) {
                self.readings.on_session(session, state.claims);
            }
        }
        Ok(outcomes)
    }

    /// Names whose holders or waiters a command may have changed.
    fn touched(&self, command: &Command<'_>) -> Vec<String> {
        match command {
            Command::Blank
            | Command::OpenSession { .. }
            | Command::SessionsSilent { .. }
            | Command::SessionsReturned { .. }
            | Command::EndQuiet
            | Command::Members(_) => Vec::new(),
            Command::Acquire(acquire) => acquire.names.iter().map(str::to_owned).collect(),
            Command::Release { name, .. } => vec![(*name).to_owned()],
            Command::Cancel { .. }
            | Command::CancelWait { .. }
            | Command::EndSessions { .. }
            | Command::Reap => self.readings.names().map(str::to_owned).collect(),
        }
    }

    fn compare(&self, node: NodeId, id: CellId, cell: &Cell) -> Verdict {
        let verdict = self.twins.compare(cell.table());
        verdict.or_else(|it| differs(format!("cell {id} at node {node}, entry {}: {it}", cell.applied())))
    }
}

fn differs<T>(detail: String) -> Result<T, Violation> {
    violated("the table does what docs/SEMANTICS.md says", detail)
}

/// Sessions that an entry may have changed, some of them more than once.
fn sessions_of(command: &Command<'_>, outcomes: &[Outcome]) -> Vec<SessionId> {
    let own = match command {
        Command::Acquire(acquire) => Some(acquire.mutation.session),
        Command::Cancel { mutation, .. } | Command::Release { mutation, .. } => Some(mutation.session),
        _ => None,
    };
    let told = outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Reply { session, .. }
        | Outcome::Opened { session, .. }
        | Outcome::WaitEnded { session, .. }
        | Outcome::HoldEnded { session, .. } => Some(*session),
        _ => None,
    });
    let mut sessions: Vec<SessionId> = own.into_iter().chain(told).collect();
    sessions.sort_unstable();
    sessions.dedup();
    sessions
}
