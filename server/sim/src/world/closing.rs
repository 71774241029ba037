//! The end of a run: faults cease, all or all but a minority is mended, and then there has to be progress.
//!
//! Invariant: what is demanded follows from the contract and from which machines are whole: a leader, every request
//! answered, every dead session gone, every whole replica the same; somebody new is served, and when everybody has gone, nothing is
//! left. Of a cell whose birth can no longer be completed
//! it is demanded instead that nothing was ever acknowledged. Deliberately absent: which faults there were before.

use std::collections::BTreeSet;

use lockstep_wire::peer::Manifest;
use lockstep_wire::{CellId, LogIndex, SessionId};

use super::World;
use super::client::{Client, ClientSurroundings};
use super::fault::{Cuts, Fault, cut_both};
use super::judge::CellJudges;
use super::network::Site;
use super::schedule::{Event, MS, Moment};
use super::visit;
use crate::mark::Mark;
use crate::oracle::orphan::Orphans;
use crate::oracle::{Verdict, Violation};
use crate::random::{Concern, Stream};

/// How long a world without faults may take to come to rest.
const CALM_MAX: Moment = 120_000 * MS;

impl World {
    /// No more faults; everything is mended, or all but a minority; and then all must come to an end.
    ///
    /// # Errors
    /// The first rule that did not hold, progress among them.
    pub fn come_to_rest(&mut self) -> Verdict {
        self.calm_down();
        self.run_for(2_000 * MS)?;
        self.is_winding_down = true;
        for client in 0..self.clients.len() {
            self.clients[client].hands.wind_down();
        }
        for forger in &mut self.forgers {
            forger.wind_down();
        }
        self.settle(World::unrest)?;
        self.receive_visitors();
        self.settle(World::unrest)?;
        self.see_clients_off();
        self.settle(|world| world.unrest().or_else(|| world.remainder().map(no_progress)))?;
        if self.is_somebody_missing() {
            self.judges.set(Mark::MinorityMissed);
        }
        if self.cells().any(|cell| self.is_unborn_for_good(cell)) {
            self.judges.set(Mark::BirthBroken);
        }
        Ok(())
    }

    fn settle(&mut self, unrest: impl Fn(&World) -> Option<Violation>) -> Verdict {
        let deadline = self.fabric.now() + CALM_MAX;
        while let Some(unrest) = unrest(self) {
            if self.fabric.now() >= deadline {
                return Err(unrest);
            }
            self.run_for(250 * MS)?;
        }
        Ok(())
    }

    /// Whoever has been there all along may be served by what is left of better times: somebody new comes to each cell.
    fn receive_visitors(&mut self) {
        let now = self.fabric.now();
        for cell in self.cells() {
            if self.is_unborn_for_good(cell) {
                continue;
            }
            let visitor = visit::arriving(&self.plan, cell, now);
            let client = visitor.place;
            self.clients[client] = visitor;
            self.fabric.schedule.at(now, Event::Wake { client });
        }
    }

    /// Whoever runs closes its sessions.
    fn see_clients_off(&mut self) {
        for client in 0..self.clients.len() {
            if self.is_unborn_for_good(self.clients[client].cell) {
                continue;
            }
            let mut around = ClientSurroundings { fabric: &mut self.fabric, judges: &mut self.judges };
            self.clients[client].leave(&mut around);
            self.after_client(client);
        }
    }

    /// What is left in a cell when everybody has gone.
    fn remainder(&self) -> Option<String> {
        let served = self.judges.each_cell().filter(|(cell, _)| !self.is_unborn_for_good(*cell));
        served.flat_map(|(id, judges)| self.nodes.iter().map(move |node| (id, judges, node))).find_map(
            |(id, judges, node)| {
                let is_asked = self.is_whole(node.place) && self.is_member(node.place, id);
                let table = node.cell(id).filter(|_| is_asked)?.table();
                let (sessions, locks) = (table.sessions_len(), table.locks_len());
                let open = judges.lateness.sessions().count();
                ((sessions, locks, open) != (0, 0, 0)).then(|| {
                    format!(
                        "everybody has left cell {id}, and node {} has {sessions} sessions and {locks} locks; {open} sessions have not ended",
                        node.place
                    )
                })
            },
        )
    }

    /// Ends all faults, but for those of the outcasts.
    pub fn calm_down(&mut self) {
        self.is_calm = true;
        self.fabric.network.calm_down();
        self.fabric.mend_all();
        self.draw_outcasts();
        for node in 0..self.nodes.len() {
            self.nodes[node].machine.set_error_rate(0);
            self.nodes[node].machine.set_room(None);
            self.join_if_expected(node);
            if self.outcasts.contains(&node) {
                continue;
            }
            self.act(&Fault::Resume(node));
            self.act(&Fault::Start(node));
        }
        for client in 0..self.clients.len() {
            self.act(&Fault::ClientResume(client));
        }
    }

    /// Chooses the nodes that stay out of order, together with those whose disks were touched at most a minority, and puts each
    /// of them out of order in a way of its own.
    fn draw_outcasts(&mut self) {
        let mut stream = Stream::new(self.plan.seed, Concern::Fault, 1);
        let whole = self.voters_with_whole_disks();
        let count = self.plan.outcasts_max.min(self.dispensable());
        while self.outcasts.len() < count {
            self.outcasts.insert(whole[stream.place(whole.len())]);
        }
        for node in self.outcasts.clone() {
            let has_effect = match stream.below(5) {
                0 => self.act(&Fault::Kill(node)),
                1 => self.act(&Fault::PowerLoss(node)),
                2 => self.act(&Fault::Pause { node, stops_clock: stream.percent(30) }),
                _ => {
                    self.act(&Fault::Resume(node));
                    self.act(&Fault::Start(node));
                    let cuts = self.exile(node, &mut stream);
                    self.act(&Fault::Cut(cuts))
                }
            };
            self.faults += u64::from(has_effect);
        }
    }

    /// Cuts a node off from all other nodes, in one direction or in both, and perhaps from clients.
    fn exile(&self, node: usize, stream: &mut Stream) -> Cuts {
        let mut cuts = Cuts::new();
        let shape = stream.below(3);
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let (own, other) = (Site::Node(node), Site::Node(other));
            match shape {
                0 => cuts.push((own, other)),
                1 => cuts.push((other, own)),
                _ => cut_both(&mut cuts, own, other),
            }
        }
        if stream.percent(50) {
            for client in 0..self.clients.len() {
                cut_both(&mut cuts, Site::Node(node), Site::Client(client));
            }
        }
        cuts
    }

    /// Whether a fault that was to come at this time still may: once all is calm nothing else goes wrong, and
    /// outcasts stay what they are.
    pub(super) fn is_wanted(&self, fault: &Fault) -> bool {
        let is_of_outcast = |node: &usize| self.outcasts.contains(node);
        match fault {
            Fault::Start(node) | Fault::Resume(node) => !is_of_outcast(node),
            // Everything is mended already, but for the outcasts.
            Fault::Mend(_) => !self.is_calm,
            Fault::Kill(_)
            | Fault::PowerLoss(_)
            | Fault::Stop(_)
            | Fault::Pause { .. }
            | Fault::LateTurn(..)
            | Fault::Snapshot(_)
            | Fault::Cut(_)
            | Fault::Reset(..)
            | Fault::SlowDisk(..)
            | Fault::Lag(..)
            | Fault::FullDisk(..)
            | Fault::Room(_)
            | Fault::Rot(_)
            | Fault::RotSnapshot(_)
            | Fault::Wipe(_)
            | Fault::Restore { .. }
            | Fault::Transfer(..)
            | Fault::ClockRate(..)
            | Fault::ClientCrash(_)
            | Fault::ClientStart(_)
            | Fault::ClientPause(_)
            | Fault::ClientResume(_) => true,
        }
    }

    fn cells(&self) -> impl Iterator<Item = CellId> + use<> {
        (0..self.plan.cells).map(CellId)
    }

    /// Whether a node is there, mended and was never harmed.
    pub(super) fn is_whole(&self, node: usize) -> bool {
        let state = &self.nodes[node];
        state.machine.harm().is_none() && !self.outcasts.contains(&node) && !state.is_spare
    }

    /// What keeps the world from being at rest.
    fn unrest(&self) -> Option<Violation> {
        self.standstill().map(no_progress).or_else(|| self.stranger())
    }

    /// Somebody who holds or waits although no client knows of it. At rest the tasks of clients hold nothing, so that
    /// whatever there is, is one.
    fn stranger(&self) -> Option<Violation> {
        self.judges.each_cell().filter(|(cell, _)| !self.is_unborn_for_good(*cell)).find_map(
            |(cell, judges)| {
                judges.orphans.claims().find_map(|(request, name)| {
                    let is_known = self.clients.iter().any(|it| it.cell == cell && it.claims(request));
                    (!is_known).then(|| Orphans::orphan(request, name))
                })
            },
        )
    }

    /// What there is no progress with.
    fn standstill(&self) -> Option<String> {
        let is_served = |cell| !self.is_unborn_for_good(cell);
        if let Some(forger) = self.forgers.iter().find(|it| !it.is_settled() && is_served(it.cell)) {
            return Some(format!("the forger of cell {} has not closed its session", forger.cell));
        }
        for client in &self.clients {
            if !client.is_settled() && !self.is_unborn_for_good(client.cell) {
                let trouble = client.core.trouble();
                return Some(format!(
                    "client {} waits: {} ({trouble})",
                    client.place,
                    client.hands.occupation()
                ));
            }
        }
        let is_visiting =
            |it: &&Client| it.is_running && it.hands.visit.as_ref().is_some_and(|it| !it.is_over());
        if let Some(visitor) = self.clients.iter().find(is_visiting) {
            return Some(format!("cell {} is still visited: {:?}", visitor.cell, visitor.hands.visit));
        }
        self.judges.each_cell().find_map(|(cell, judges)| {
            let committed = judges.commitment.last();
            if !self.is_unborn_for_good(cell) {
                let orphan = || self.orphan(cell, judges);
                return self.unrest_of(cell, committed).or_else(|| {
                    orphan().map(|it| format!("session {it} of cell {cell} lives, and nobody keeps it alive"))
                });
            }
            let is_promised = committed > judges.origin || judges.is_trusted;
            is_promised.then(|| format!("cell {cell} is unborn, and {committed} entries were committed; a client was told something: {}", judges.is_trusted))
        })
    }

    fn unrest_of(&self, cell: CellId, committed: LogIndex) -> Option<String> {
        if self.leader(cell).is_none_or(|leader| self.outcasts.contains(&leader)) {
            return Some(format!("cell {cell} has no leader"));
        }
        if self.is_quiet(cell) {
            return Some(format!("cell {cell} was restored, and grants nothing yet"));
        }
        if let Some(node) = self.straggler(cell) {
            return Some(format!("node {node} was removed from cell {cell} and has not ended"));
        }
        if let Some(node) = self.stranded_joiner(cell) {
            return Some(format!("node {node} waits to join cell {cell}, which is born, and has not met it"));
        }
        let is_whole = |node: &usize| self.is_whole(*node) && self.is_member(*node, cell);
        for node in (0..self.nodes.len()).filter(is_whole) {
            let applied = self.nodes[node].cell(cell).map(|cell| cell.applied());
            if applied != Some(committed) {
                return Some(format!(
                    "node {node} has applied {applied:?} of cell {cell}, of which {committed} is committed"
                ));
            }
        }
        let digest = |node: usize| self.nodes[node].cell(cell).map(|cell| cell.table().digest());
        let whole = (0..self.nodes.len()).filter(is_whole);
        let digests: Vec<_> = whole.map(digest).collect();
        digests
            .iter()
            .any(|digest| *digest != digests[0])
            .then(|| format!("the replicas of cell {cell} differ: {digests:?}"))
    }

    /// A session that lives and that no client that runs keeps alive.
    fn orphan(&self, cell: CellId, judges: &CellJudges) -> Option<SessionId> {
        let now = self.fabric.now();
        let clients = self.clients.iter().filter(|client| client.is_running && client.cell == cell);
        let owned: BTreeSet<SessionId> =
            clients.flat_map(|client| client.leases(now)).map(|(_, lease)| lease.session).collect();
        judges.lateness.sessions().find(|session| !owned.contains(session))
    }

    /// Whether a cell is not born and cannot be any more, because a member is missing, or is not the one that the
    /// others have stored. Then nothing was acknowledged.
    fn is_unborn_for_good(&self, cell: CellId) -> bool {
        let is_born = |node: usize| self.nodes[node].cell(cell).is_some_and(|cell| cell.raft().is_born());
        if (0..self.nodes.len()).any(|node| self.is_whole(node) && is_born(node)) {
            return false;
        }
        let is_gone = |node: usize| self.nodes[node].process.is_none() && !self.is_whole(node);
        (0..self.plan.nodes).any(|node| self.outcasts.contains(&node) || is_gone(node))
            || self.is_member_replaced(cell)
    }

    /// Whether a stored list of members names an incarnation of a member that is over.
    fn is_member_replaced(&self, cell: CellId) -> bool {
        let mut manifests = self.nodes.iter().filter_map(|node| node.process.as_ref()?.manifests.get(&cell));
        manifests.any(|payload| {
            let manifest = Manifest::decode(payload).expect("a manifest in the log is whole");
            let incarnations = self.nodes.iter().take(self.plan.nodes).map(|node| node.machine.incarnation());
            !manifest.members.iter().map(|member| member.incarnation).eq(incarnations)
        })
    }
}

fn no_progress(detail: String) -> Violation {
    Violation { rule: "without faults there is progress", detail }
}
