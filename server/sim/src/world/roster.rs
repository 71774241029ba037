//! What the judges are shown of members, and what the world must know of them.
//!
//! Invariant: whose disks may be harmed and whose processes may be left out goes by the lists in the entries, as
//! the judges read them, in every cell: those that may still count, committed or not. Deliberately absent: the rules; those
//! are in `oracle`.

use std::collections::BTreeSet;

use lockstep_core::{Cell, CellConfig, Member};
use lockstep_wire::peer::Manifest;
use lockstep_wire::{CellId, LogIndex, NodeId, Term};

use super::World;
use super::judge::{CellJudges, Judges, Mirror};
use super::machine::Harm;
use super::plan::Plan;
use crate::mark::Mark;
use crate::oracle::Verdict;
use crate::oracle::membership::{Claim, Roster};

impl CellJudges {
    /// An entry is taken to be committed by whoever has `mirror`; its newest list counts. A follower may have got a newer one
    /// since.
    pub(super) fn count_disks(
        &self,
        index: LogIndex,
        term: Term,
        is_leader: bool,
        mirror: &Mirror,
    ) -> Verdict {
        let mut lists = self.memberships.lists_in(mirror).take(if is_leader { 1 } else { 2 });
        let newest = lists.next().expect("there is the one of the birth");
        let verdict = self.disks.on_committed(index, term, newest.voters());
        verdict.or_else(|violation| {
            let mut verdicts = lists.map(|list| self.disks.on_committed(index, term, list.voters()));
            if verdicts.any(|verdict| verdict.is_ok()) { Ok(()) } else { Err(violation) }
        })
    }
}

fn decoded(manifest: &[u8]) -> Manifest<'_> {
    Manifest::decode(manifest).expect("a manifest in the log is whole")
}

impl Judges {
    /// A node's disk has the manifest of a cell.
    pub(super) fn on_bound(&mut self, id: CellId, node: NodeId, manifest: &[u8]) {
        self.cell(id).birth.on_stored(node, &decoded(manifest));
    }

    /// A node takes a cell for born, by this manifest.
    pub(super) fn on_born(&mut self, id: CellId, node: NodeId, manifest: &[u8]) {
        let manifest = decoded(manifest);
        let judges = self.cell(id);
        judges.is_born = true;
        judges.memberships.on_born(&manifest);
        let verdict = judges.birth.on_born(node, &manifest);
        self.take(verdict);
    }

    /// A replica appends an entry, which may be a list, to a log that was like `mirror`.
    pub(super) fn look_for_list(
        &mut self,
        id: CellId,
        node: NodeId,
        mirror: &Mirror,
        term: Term,
        payload: &[u8],
    ) {
        let judges = self.cell(id);
        let committed = judges.commitment.last();
        let verdict = judges.memberships.on_appended(node, mirror, term, payload, committed);
        self.take(verdict);
    }

    /// A replica is about to take the mark of a snapshot into its log.
    pub(super) fn on_marked(&mut self, id: CellId, mirror: &Mirror, index: LogIndex) {
        let judges = self.cell(id);
        judges.memberships.on_installed(mirror, judges.commitment.through(index));
    }

    /// A replica leads: by whose votes, and whom?
    pub(super) fn look_at_claim(&mut self, id: CellId, node: NodeId, cell: &Cell, mirror: &Mirror) {
        let voters: BTreeSet<NodeId> = cell.raft().membership().voters().collect();
        let claim = Claim { node, term: cell.raft().term(), log: mirror, voters: &voters };
        let verdict = self.cell(id).memberships.on_leading(&claim);
        self.take(verdict);
    }

    /// A replica ends because it was removed.
    pub(super) fn on_removed(&mut self, id: CellId, node: NodeId) {
        let verdict = self.cell(id).memberships.on_removed(node);
        self.take(verdict);
    }

    /// What the configuration of a node that was not there at the birth says: it joins, and where it finds members.
    pub(super) fn direct(&self, plan: &Plan, place: usize, config: &mut CellConfig) {
        if place < plan.nodes {
            return;
        }
        let known = self.each_cell().find(|(id, _)| *id == config.cell);
        let known: BTreeSet<NodeId> =
            known.into_iter().flat_map(|(_, judges)| judges.memberships.newest().members()).collect();
        let member = |place: usize| Member {
            node: Plan::node_id(place),
            client_address: Plan::address(place),
            peer_address: String::new(),
        };
        let others = (0..plan.places()).filter(|other| *other != place);
        config.is_joining = true;
        config.members = others.filter(|other| known.contains(&Plan::node_id(*other))).map(member).collect();
        if config.members.is_empty() {
            config.members = (0..plan.nodes).map(member).collect();
        }
    }
}

impl World {
    /// Whether all cells can do without these nodes, besides those whose disks were touched, for ever.
    pub(super) fn can_spare(&self, nodes: &BTreeSet<usize>) -> bool {
        let mut lists = self.judges.each_cell().flat_map(|(_, judges)| judges.memberships.countable());
        lists.all(|list| self.have_majority_without(list.voters(), nodes))
    }

    /// Whether those that are left of voters without these nodes, and without touched ones, are a majority.
    pub(super) fn have_majority_without(&self, voters: &BTreeSet<NodeId>, nodes: &BTreeSet<usize>) -> bool {
        let is_out = |place: &usize| {
            let is_touched = self.nodes.get(*place).is_none_or(|node| node.machine.is_touched());
            is_touched || nodes.contains(place)
        };
        let out = voters.iter().map(|voter| place_of(*voter)).filter(is_out).count();
        out * 2 < voters.len()
    }

    /// Whether a node is a member of a cell, as its newest committed list says.
    pub(super) fn is_member(&self, node: usize, cell: CellId) -> bool {
        let judges = self.judges.each_cell().find(|(id, _)| *id == cell);
        judges.is_some_and(|(_, judges)| judges.memberships.newest().seat(Plan::node_id(node)).is_some())
    }

    /// Nodes that vote in some cell, whose disks nothing was done to.
    pub(super) fn voters_with_whole_disks(&self) -> Vec<usize> {
        let votes = |node: &usize| {
            let id = Plan::node_id(*node);
            self.judges.each_cell().any(|(_, judges)| judges.memberships.newest().voters().contains(&id))
        };
        let is_whole = |node: &usize| !self.nodes[*node].machine.is_touched();
        (0..self.nodes.len()).filter(is_whole).filter(votes).collect()
    }

    /// Whether a node is no member of any cell and its disk was lost: nobody starts it any more, or those that were there at
    /// the birth could meet and give birth to the cells once more.
    pub(super) fn is_discarded(&self, node: usize) -> bool {
        let id = Plan::node_id(node);
        let mut cells = self.judges.each_cell().map(|(_, judges)| &judges.memberships);
        self.nodes[node].machine.harm() == Some(Harm::Wiped) && cells.all(|it| it.has_removed(id))
    }

    /// How many voters, whichever, all cells can do without, besides those whose disks were touched.
    pub(super) fn dispensable(&self) -> usize {
        let of_list = |list: &Roster| {
            let is_touched = |voter: &&NodeId| {
                self.nodes.get(place_of(**voter)).is_none_or(|node| node.machine.is_touched())
            };
            let touched = list.voters().iter().filter(is_touched).count();
            ((list.voters().len() - 1) / 2).saturating_sub(touched)
        };
        let lists = self.judges.each_cell().flat_map(|(_, judges)| judges.memberships.countable());
        lists.map(of_list).min().unwrap_or_default()
    }

    /// Whether some member of a cell is not whole.
    pub(super) fn is_somebody_missing(&self) -> bool {
        let cells = self.judges.each_cell().map(|(cell, _)| cell);
        cells
            .into_iter()
            .any(|cell| (0..self.nodes.len()).any(|node| self.is_member(node, cell) && !self.is_whole(node)))
    }

    /// A spare that cells have added, or will have, is started at the latest when everything is mended.
    pub(super) fn join_if_expected(&mut self, node: usize) {
        let id = Plan::node_id(node);
        let lists = self.judges.each_cell().flat_map(|(_, judges)| judges.memberships.countable());
        let is_expected = lists.into_iter().any(|list| list.seat(id).is_some());
        if is_expected {
            self.join(node);
        }
    }

    /// A node that is to join a cell, runs, and should know that it is born, whether anybody adds it or not.
    pub(super) fn stranded_joiner(&self, cell: CellId) -> Option<usize> {
        let (_, judges) = self.judges.each_cell().find(|(id, _)| *id == cell)?;
        (self.plan.nodes..self.nodes.len()).find(|node| {
            let is_free = !judges.memberships.has_removed(Plan::node_id(*node));
            let is_unborn = |cell: &Cell| !cell.raft().is_born();
            is_free && self.is_whole(*node) && self.nodes[*node].cell(cell).is_some_and(is_unborn)
        })
    }

    /// A node that was removed from a cell, runs, and should have heard of it: its log names a member that is there.
    pub(super) fn straggler(&self, cell: CellId) -> Option<usize> {
        let (_, judges) = self.judges.each_cell().find(|(id, _)| *id == cell)?;
        let memberships = &judges.memberships;
        (0..self.nodes.len()).find(|node| {
            let Some(process) = &self.nodes[*node].process else { return false };
            let is_removed = memberships.has_removed(Plan::node_id(*node));
            let is_told = process.removed.contains(&cell) || !process.manifests.contains_key(&cell);
            if !is_removed || is_told || !self.is_whole(*node) {
                return false;
            }
            let known = process.mirrors.get(&cell).map_or(&[][..], Vec::as_slice);
            let newest = memberships.lists_in(known).next();
            newest.into_iter().flat_map(Roster::members).any(|member| {
                let place = place_of(member);
                place < self.nodes.len() && self.is_member(place, cell) && self.is_whole(place)
            })
        })
    }

    /// What an operator was told, and members that were removed: was one of them dead, and is there another one in its place?
    pub(super) fn look_at_members(&mut self) {
        for (cell, change, count) in std::mem::take(&mut self.judges.changes_done) {
            let judges = self.judges.cell(cell);
            let newest = judges.elections.newest().map_or(Term(0), |(term, _)| term);
            let verdict = judges.memberships.on_done(&change.as_asked(), count, newest);
            self.judges.take(verdict);
        }
        for (cell, removed) in std::mem::take(&mut self.judges.removals) {
            let newest = self.judges.cell(cell).memberships.newest();
            let has_newcomer = newest.voters().iter().any(|voter| place_of(*voter) >= self.plan.nodes);
            let node = self.nodes.get(place_of(removed));
            let is_dead = node.is_some_and(|node| node.process.is_none() || node.machine.harm().is_some());
            if has_newcomer && is_dead {
                self.judges.set(Mark::DeadNodeReplaced);
            }
        }
    }
}

/// The place of a node.
pub(super) fn place_of(node: NodeId) -> usize {
    usize::from(node.0) - 1
}
