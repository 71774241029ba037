//! The operator who changes the members of cells: what he wants, what he asks for, and what he is told.
//!
//! Invariant: he knows what anybody can ask for, who the members are and which nodes run, and never asks for what would leave
//! a cell to disks that were harmed; nonsense, repetitions and changes that come too early are asked for like anything
//! else. What was not answered is unknown to him. Deliberately absent: transfers by themselves, which are faults; and what
//! the answers must be.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_core::{ConnectionId, Input, Time};
use lockstep_wire::frame::Assembler;
use lockstep_wire::limit::REPLY_FRAME_BYTES_MAX;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::Request;
use lockstep_wire::{CellId, Correlation, Incarnation, MemberChange, NodeId};

use super::World;
use super::fault::Fault;
use super::plan::Plan;
use super::process::{Process, Surroundings};
use super::roster::place_of;
use super::schedule::{Event, Moment};
use super::trace::number_of_shown;
use crate::mark::Mark;
use crate::random::{Concern, Stream};

/// The connection on which he asks; no wire has this number.
pub(super) const REGISTRAR: ConnectionId = ConnectionId(u64::MAX - 1);
/// Members that he lets a cell have.
const MEMBERS_MAX: usize = 7;

/// A change of the members that somebody asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node gets the log.
    Add {
        /// Which.
        node: NodeId,
        /// The incarnation of its directory.
        incarnation: Incarnation,
        /// Where it serves.
        address: String,
    },
    /// A learner gets its vote.
    Promote(NodeId),
    /// A member goes.
    Remove(NodeId),
    /// A member serves elsewhere.
    Move {
        /// Which.
        node: NodeId,
        /// Where.
        address: String,
    },
}

impl Change {
    pub(super) fn as_asked(&self) -> MemberChange<'_> {
        match self {
            Change::Add { node, incarnation, address } => MemberChange::AddLearner {
                node: *node,
                incarnation: *incarnation,
                peer_address: address,
                client_address: address,
            },
            Change::Promote(node) => MemberChange::Promote { node: *node },
            Change::Remove(node) => MemberChange::Remove { node: *node },
            Change::Move { node, address } => {
                MemberChange::SetAddresses { node: *node, peer_address: address, client_address: address }
            }
        }
    }
}

/// What a process was asked for and has not answered: the change, and how many lists of its cell were committed then.
#[derive(Debug, Default)]
pub(super) struct Changes {
    asked: u64,
    waiting: BTreeMap<Correlation, (CellId, Change, usize)>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Operator {
    stream: Stream,
    /// Which ids he leaves out.
    gaps: Stream,
    cells: u16,
    /// Between two things that he does; without spares he does nothing.
    gap_mean: Option<Moment>,
    moves: u64,
    last: Option<(CellId, Change)>,
    /// A leader that is to go as soon as it has handed over.
    leaving: Option<(CellId, NodeId)>,
}

impl Operator {
    pub(super) fn new(plan: &Plan) -> Operator {
        Operator {
            stream: Stream::new(plan.seed, Concern::Fault, 3),
            gaps: Stream::new(plan.seed, Concern::Fault, 4),
            cells: plan.cells,
            gap_mean: (plan.spares > 0).then_some(plan.operator_gap_mean),
            moves: 0,
            last: None,
            leaving: None,
        }
    }

    /// When he does the next thing, in ns from now; never without spares.
    pub(super) fn gap(&mut self) -> Option<Moment> {
        Some(self.stream.around(self.gap_mean?))
    }
}

impl World {
    pub(super) fn on_operate(&mut self) {
        if self.is_calm {
            return;
        }
        let cells: Vec<u16> = (0..self.operator.cells).collect();
        let cell = CellId(self.operator.stream.one_of(&cells));
        if let Some(leader) = self.leader(cell) {
            self.operate(cell, leader);
            // Two at once.
            if self.operator.stream.percent(10) {
                self.operate(cell, leader);
            }
        }
        if let Some(gap) = self.operator.gap() {
            self.fabric.schedule.after(gap, Event::Operate);
        }
    }

    fn operate(&mut self, cell: CellId, leader: usize) {
        let Some(change) = self.draw_change(cell, leader) else { return };
        let node = if self.operator.stream.percent(10) {
            self.operator.stream.place(self.nodes.len())
        } else {
            leader
        };
        self.operator.last = Some((cell, change.clone()));
        self.ask_for(node, cell, &change);
    }

    /// What he wishes next; whatever else that takes he does at once.
    fn draw_change(&mut self, cell: CellId, leader: usize) -> Option<Change> {
        if let Some((of, node)) = self.operator.leaving
            && of == cell
            && place_of(node) != leader
        {
            self.operator.leaving = None;
            return self.removal(cell, node);
        }
        match self.operator.stream.below(100) {
            0..12 => self.operator.last.clone().filter(|(of, _)| *of == cell).map(|(_, change)| change),
            12..24 => self.draw_nonsense(cell),
            24..60 => self.draw_growth(cell),
            60..90 => self.draw_removal(cell, leader),
            _ => {
                let members: Vec<NodeId> = self.members(cell);
                let node = self.operator.stream.one_of(&members);
                self.operator.moves += 1;
                let address = Plan::address_after(place_of(node), self.operator.moves);
                Some(Change::Move { node, address })
            }
        }
    }

    fn members(&mut self, cell: CellId) -> Vec<NodeId> {
        self.judges.cell(cell).memberships.newest().members().collect()
    }

    /// Ids that are or were somebody's, in another incarnation, and ids that are nobody's.
    fn draw_nonsense(&mut self, cell: CellId) -> Option<Change> {
        let nobody = Plan::node_id(self.nodes.len() + self.operator.stream.place(3));
        let used: Vec<NodeId> = (0..self.nodes.len())
            .map(Plan::node_id)
            .filter(|node| {
                self.is_member(place_of(*node), cell) || self.judges.cell(cell).memberships.has_removed(*node)
            })
            .collect();
        let stream = &mut self.operator.stream;
        let node = stream.one_of(&used);
        Some(match stream.below(5) {
            0 => Change::Promote(nobody),
            1 => Change::Remove(nobody),
            2 => Change::Move { node, address: String::new() },
            _ => Change::Add {
                node,
                incarnation: Incarnation(stream.bytes_16()),
                address: Plan::address(place_of(node)),
            },
        })
    }

    /// A spare node is started, added, or promoted, whichever is next; or started when it has been added.
    fn draw_growth(&mut self, cell: CellId) -> Option<Change> {
        let members = self.members(cell);
        let memberships = &self.judges.cell(cell).memberships;
        let learners: Vec<NodeId> = members
            .iter()
            .copied()
            .filter(|node| memberships.newest().seat(*node).is_some_and(|seat| !seat.is_voter))
            .collect();
        let is_new = |place: &usize| {
            let node = Plan::node_id(*place);
            !members.contains(&node) && !memberships.has_removed(node)
        };
        let newcomers: Vec<usize> = (self.plan.nodes..self.nodes.len()).filter(is_new).collect();
        let newcomer = newcomers.first().copied();
        let unstarted = learners.iter().map(|node| place_of(*node)).find(|place| self.is_unstarted(*place));
        if let Some(place) = unstarted {
            self.join(place);
        }
        if !learners.is_empty() && (newcomer.is_none() || self.operator.stream.percent(60)) {
            let node = self.operator.stream.one_of(&learners);
            return self.is_sound(cell, |voters| voters.insert(node)).then_some(Change::Promote(node));
        }
        let place = newcomer.filter(|_| members.len() < MEMBERS_MAX)?;
        if self.is_unstarted(place) && self.operator.stream.percent(60) {
            self.join(place);
            if self.operator.stream.percent(50) {
                return None;
            }
        }
        // Whoever is passed over may run already, and be a member of another cell.
        let others = &newcomers[1..];
        let is_left_out = !others.is_empty() && self.operator.gaps.percent(25);
        let place = if is_left_out { self.operator.gaps.one_of(others) } else { place };
        Some(self.addition(place))
    }

    /// Somebody goes: rather one that is dead, if there is one and others are enough; and a leader only when it has handed
    /// over.
    fn draw_removal(&mut self, cell: CellId, leader: usize) -> Option<Change> {
        let members = self.members(cell);
        let is_dead = |node: &&NodeId| {
            let node = self.nodes.get(place_of(**node));
            node.is_some_and(|node| node.process.is_none() || node.machine.is_touched())
        };
        let dead: Vec<NodeId> = members.iter().filter(is_dead).copied().collect();
        let stream = &mut self.operator.stream;
        if members.len() < 3 || members.len() <= self.plan.nodes && stream.percent(70) {
            return None;
        }
        let node = if !dead.is_empty() && stream.percent(70) {
            stream.one_of(&dead)
        } else {
            stream.one_of(&members)
        };
        if place_of(node) == leader && stream.percent(70) {
            self.operator.leaving = Some((cell, node));
            self.act(&Fault::Transfer(leader, None));
            return None;
        }
        self.removal(cell, node)
    }

    fn removal(&mut self, cell: CellId, node: NodeId) -> Option<Change> {
        let is_sound = self.is_sound(cell, |voters| voters.remove(&node));
        is_sound.then_some(Change::Remove(node))
    }

    /// Whether whole disks are a majority of the voters after a change, whichever list counts when it is made.
    fn is_sound(&self, cell: CellId, change: impl Fn(&mut BTreeSet<NodeId>) -> bool) -> bool {
        let judges = self.judges.each_cell().find(|(id, _)| *id == cell);
        judges.into_iter().flat_map(|(_, judges)| judges.memberships.countable()).all(|list| {
            let mut voters = list.voters().clone();
            change(&mut voters);
            self.have_majority_without(&voters, &[].into())
        })
    }

    /// Whether a node is a spare that nobody has started yet.
    fn is_unstarted(&self, place: usize) -> bool {
        self.nodes.get(place).is_some_and(|node| node.is_spare)
    }

    /// Starts a spare for the first time: it looks for the cells that it is to join. Says whether it was one.
    pub fn join(&mut self, place: usize) -> bool {
        if !std::mem::take(&mut self.nodes[place].is_spare) {
            return false;
        }
        self.act(&Fault::Start(place))
    }

    /// The wish that the cell adds a node as it is formatted now.
    pub fn addition(&self, place: usize) -> Change {
        let incarnation = self.nodes[place].machine.incarnation();
        Change::Add { node: Plan::node_id(place), incarnation, address: Plan::address(place) }
    }

    /// Asks whoever leads a cell for a change. Says whether somebody does.
    pub fn change_members(&mut self, cell: CellId, change: &Change) -> bool {
        let leader = self.leader(cell);
        leader.is_some_and(|leader| self.ask_for(leader, cell, change))
    }

    /// Asks a node for a change; says whether it could hear it.
    pub fn ask_for(&mut self, node: usize, cell: CellId, change: &Change) -> bool {
        let now = self.fabric.now();
        let words = [62, node as u64, u64::from(cell.0), number_of_shown(change)];
        self.fabric
            .trace
            .note(now, &words, || format!("node {node} is asked by cell {cell}'s operator: {change:?}"));
        let count = self.judges.cell(cell).memberships.count();
        let state = &mut self.nodes[node];
        if state.is_paused || state.process.is_none() {
            return false;
        }
        let start = state.take_turn_start(now);
        let Some(process) = &mut state.process else { return false };
        let mut around =
            Surroundings { fabric: &mut self.fabric, judges: &mut self.judges, machine: &mut state.machine };
        process.change_members(cell, change, count, start.clock, &mut around);
        state.turn_at(now, &mut self.fabric.schedule);
        true
    }

    /// The members of a cell, as its newest committed list says: the places of voters, and those of learners.
    pub fn roster(&mut self, cell: CellId) -> (Vec<usize>, Vec<usize>) {
        let newest = self.judges.cell(cell).memberships.newest();
        let (voters, learners): (Vec<NodeId>, Vec<NodeId>) =
            newest.members().partition(|node| newest.voters().contains(node));
        let places = |nodes: Vec<NodeId>| nodes.into_iter().map(place_of).collect();
        (places(voters), places(learners))
    }
}

impl Process {
    fn change_members(
        &mut self,
        cell: CellId,
        change: &Change,
        count: usize,
        now: Time,
        around: &mut Surroundings<'_>,
    ) {
        self.now = now;
        self.changes.asked += 1;
        let correlation = Correlation(self.changes.asked);
        self.changes.waiting.insert(correlation, (cell, change.clone(), count));
        let request = Request::ChangeMembers(change.as_asked());
        self.step(cell, Input::Request { connection: REGISTRAR, correlation, request }, around);
    }

    /// What becomes of a change.
    pub(super) fn on_change_told(&mut self, bytes: &[u8], around: &mut Surroundings<'_>) {
        let mut rest = bytes;
        let mut assembler = Assembler::default();
        let frame = assembler.next(&mut rest, REPLY_FRAME_BYTES_MAX);
        let frame = frame.expect("a reply is a frame").expect("a reply is whole");
        let Some((cell, change, count)) = self.changes.waiting.remove(&frame.head.correlation) else {
            return;
        };
        let reply = Reply::decode(&frame).expect("a reply can be read");
        let (node, now) = (self.identity.node, around.fabric.now());
        let words = [24, u64::from(node.0), frame.head.correlation.0, number_of_shown(&reply)];
        around.fabric.trace.note(now, &words, || format!("node {node} answers {change:?} with {reply:?}"));
        match reply {
            // Its entry is shown to the judges when this step is done.
            Reply::Done => around.judges.changes_done.push((cell, change, count)),
            Reply::Refused(refusal) if refusal.detail.contains("is no majority") => {
                around.judges.set(Mark::ChangeLacksMajority);
            }
            _ => {}
        }
    }

    /// It was removed from a cell; when that is so of all of them, there is nothing left to serve.
    pub(super) fn on_removed(&mut self, cell: CellId, around: &mut Surroundings<'_>) {
        let (node, now) = (self.identity.node, around.fabric.now());
        let words = [25, u64::from(node.0), u64::from(cell.0)];
        around.fabric.trace.note(now, &words, || format!("node {node} was removed from cell {cell}"));
        around.judges.on_removed(cell, node);
        self.removed.insert(cell);
        self.is_over |= self.was_removed();
    }

    /// Whether it is a member of no cell any more.
    pub(super) fn was_removed(&self) -> bool {
        self.removed.len() == self.cells.len()
    }
}
