//! What a fault does to a world.
//!
//! Invariant: a fault changes machines, links and processes from outside; what it began is ended by another fault or by
//! the closing. Deliberately absent: which faults come when; `fault` draws them.

use lockstep_wal::Failure;
use lockstep_wal::disk::SegmentSequence;
use lockstep_wal::memory::Rot;
use lockstep_wire::LogIndex;

use super::World;
use super::client::Client;
use super::defect::Defect;
use super::fault::Fault;
use super::judge::CellJudges;
use super::network::Site;
use super::plan::Plan;
use super::process::{Process, Surroundings};
use super::schedule::{Event, MS, Moment};
use super::trace::number_of_shown;
use crate::mark::Mark;

impl World {
    /// A process has ended by itself: by an orderly stop, or because its disk failed.
    pub(super) fn end_process(&mut self, node: usize) {
        let now = self.fabric.now();
        let state = &self.nodes[node];
        let failure = state.process.as_ref().and_then(Process::failure);
        let has_met_error = state.process.as_ref().is_some_and(Process::has_met_error);
        let was_removed = state.process.as_ref().is_some_and(Process::was_removed);
        self.fabric.trace.note(now, &[21, node as u64, number_of_shown(&failure)], || match failure {
            Some(failure) => format!("node {node} ends: {failure}"),
            None => format!("node {node} ends by itself"),
        });
        match failure {
            Some(failure) if !state.machine.explains_failure(&failure, has_met_error) => {
                self.judges.on_log_stopped(Plan::node_id(node), &failure.to_string());
            }
            Some(Failure::Disk { .. }) => self.judges.set(Mark::DiskFailed),
            Some(Failure::Damaged(_)) | None => {}
        }
        self.nodes[node].kill();
        self.judges.space.on_ended(Plan::node_id(node));
        self.fabric.hang_up(Site::Node(node));
        if !was_removed {
            self.fabric.schedule.after(500 * MS, Event::Fault(Fault::Start(node)));
        }
    }

    pub(super) fn on_nemesis(&mut self) {
        if self.is_calm {
            return;
        }
        let cell = self.nemesis.draw_cell();
        let leader = self.leader(cell);
        if let Some((fault, end)) = self.nemesis.draw(leader) {
            self.faults += u64::from(self.act(&fault));
            if let Some((span, end)) = end {
                self.fabric.schedule.after(span, Event::Fault(end));
            }
        }
        if let Some(gap) = self.nemesis.gap(self.fabric.now()) {
            self.fabric.schedule.after(gap, Event::Nemesis);
        }
    }

    /// Makes a fault begin or end now. Says whether anything is different for it.
    pub fn act(&mut self, fault: &Fault) -> bool {
        let now = self.fabric.now();
        self.fabric.trace.note(now, &[60, number_of_shown(fault)], || format!("fault: {fault:?}"));
        let has_effect = match fault {
            Fault::Kill(_)
            | Fault::PowerLoss(_)
            | Fault::Start(_)
            | Fault::Stop(_)
            | Fault::Pause { .. }
            | Fault::Resume(_)
            | Fault::Snapshot(_)
            | Fault::Transfer(..)
            | Fault::LateTurn(..) => self.act_on_process(fault, now),
            Fault::Cut(cuts) => cuts.iter().filter(|(from, to)| self.fabric.cut(*from, *to)).count() > 0,
            Fault::Mend(cuts) => cuts.iter().filter(|(from, to)| self.fabric.mend(*from, *to)).count() > 0,
            Fault::Reset(one, other) => {
                let wires = self.fabric.wires_between(*one, *other);
                wires.iter().for_each(|wire| self.fabric.reset(*wire));
                !wires.is_empty()
            }
            Fault::Lag(cuts, span, by) => {
                cuts.iter().for_each(|(from, to)| self.fabric.network.lag(*from, *to, now + *span, *by));
                !cuts.is_empty()
            }
            Fault::SlowDisk(node, span, by) => {
                self.nodes[*node].machine.slow_down(now + span, *by);
                true
            }
            Fault::FullDisk(node, bytes) => {
                self.nodes[*node].machine.set_room(Some(*bytes));
                true
            }
            Fault::Room(node) => {
                self.nodes[*node].machine.set_room(None);
                true
            }
            Fault::Rot(node) => self.rot(*node),
            Fault::RotSnapshot(node) => self.rot_snapshot(*node),
            Fault::Wipe(node) => self.wipe(*node),
            Fault::Restore { node, is_older } => self.restore(*node, *is_older),
            Fault::ClockRate(site, drift_ppm) => {
                self.change_clock(*site, *drift_ppm);
                true
            }
            Fault::ClientCrash(client) => self.clients[*client].crash(&mut self.fabric),
            Fault::ClientStart(client) => self.start_client(*client),
            Fault::ClientPause(client) => self.pause_client(*client),
            Fault::ClientResume(client) => self.resume_client(*client),
        };
        self.look_at_leaders();
        has_effect
    }

    /// Those that a node's process feels at once.
    fn act_on_process(&mut self, fault: &Fault, now: Moment) -> bool {
        match *fault {
            Fault::Kill(node) => {
                let was_running = self.nodes[node].kill();
                self.judges.space.on_ended(Plan::node_id(node));
                if was_running {
                    self.fabric.hang_up(Site::Node(node));
                }
                was_running
            }
            Fault::PowerLoss(node) => {
                let had_power = !self.nodes[node].is_without_power;
                self.nodes[node].lose_power();
                self.judges.space.on_ended(Plan::node_id(node));
                self.fabric.fall_silent(Site::Node(node));
                had_power
            }
            Fault::Start(node) => self.start(node),
            Fault::Stop(node) => self.stop(node),
            Fault::Transfer(node, to) => self.transfer(node, to),
            Fault::Pause { node, stops_clock } => {
                let has_gone_on = !self.nodes[node].is_paused && self.nodes[node].process.is_some();
                self.nodes[node].pause(now, stops_clock);
                has_gone_on
            }
            Fault::Resume(node) => {
                let was_paused = self.nodes[node].is_paused;
                self.nodes[node].resume(now);
                self.nodes[node].turn_at(now, &mut self.fabric.schedule);
                was_paused
            }
            Fault::Snapshot(node) => self.take_snapshots(node),
            Fault::LateTurn(node, span) => {
                let state = &mut self.nodes[node];
                let has_begun = state.begin_late_turn(now, span);
                if has_begun {
                    state.turn_at(now + span, &mut self.fabric.schedule);
                }
                has_begun
            }
            Fault::Cut(_)
            | Fault::Mend(_)
            | Fault::Reset(..)
            | Fault::SlowDisk(..)
            | Fault::Lag(..)
            | Fault::FullDisk(..)
            | Fault::Room(_)
            | Fault::Rot(_)
            | Fault::RotSnapshot(_)
            | Fault::Wipe(_)
            | Fault::Restore { .. }
            | Fault::ClockRate(..)
            | Fault::ClientCrash(_)
            | Fault::ClientStart(_)
            | Fault::ClientPause(_)
            | Fault::ClientResume(_) => false,
        }
    }

    fn pause_client(&mut self, client: usize) -> bool {
        let now = self.fabric.now();
        let stands = self.plan.defect == Some(Defect::ClientClockStands);
        let state = &mut self.clients[client];
        let has_gone_on = state.is_running && !state.is_paused;
        state.is_paused = true;
        if stands {
            state.clock.stop(now);
        }
        has_gone_on
    }

    fn resume_client(&mut self, client: usize) -> bool {
        let now = self.fabric.now();
        let state = &mut self.clients[client];
        let was_paused = std::mem::take(&mut state.is_paused);
        if was_paused {
            state.clock.go_on(now);
            state.next_wake = None;
            self.fabric.schedule.at(now, Event::Wake { client });
        }
        was_paused
    }

    fn start(&mut self, node: usize) -> bool {
        let now = self.fabric.now();
        let state = &self.nodes[node];
        if state.process.is_some() || state.is_spare || self.is_discarded(node) {
            return false;
        }
        let state = &mut self.nodes[node];
        match state.start(&self.plan, now, &self.judges) {
            Ok(()) => {
                let oldest = state.process.as_ref().map(|process| process.found.oldest);
                if oldest.is_some_and(|oldest| state.machine.must_be_refused(oldest)) {
                    let place = format!("{:?}", state.machine.harm());
                    self.judges.on_rot_unnoticed(Plan::node_id(node), &place);
                }
                self.note_start(node);
                self.fabric.disown(Site::Node(node));
                self.nodes[node].turn_at(now, &mut self.fabric.schedule);
                true
            }
            Err(refusal) => {
                let is_explained = state.machine.explains_refusal(&refusal);
                let words = [22, node as u64, number_of_shown(&refusal)];
                self.fabric.trace.note(now, &words, || format!("node {node} does not start: {refusal}"));
                if is_explained {
                    self.judges.set(Mark::RotRefused);
                } else {
                    self.judges.on_refused(Plan::node_id(node), &refusal.to_string());
                }
                false
            }
        }
    }

    /// Whether something may be done to one more disk: those of a majority stay whole, whichever list of members counts, and
    /// all of them until a restored cell is born.
    fn may_harm(&self, node: usize) -> bool {
        if self.judges.each_cell().any(|(_, judges)| judges.origin > LogIndex(0) && !judges.is_born) {
            return false;
        }
        let is_member = self
            .judges
            .each_cell()
            .any(|(_, judges)| judges.memberships.newest().seat(Plan::node_id(node)).is_some());
        is_member && !self.nodes[node].machine.is_touched() && self.can_spare(&[node].into())
    }

    fn rot(&mut self, node: usize) -> bool {
        if !self.may_harm(node) {
            return false;
        }
        let rot = self.nodes[node].machine.rot();
        self.note_rot(node, rot)
    }

    /// More than one snapshot of a machine may rot, and those of a member that is alone.
    fn rot_snapshot(&mut self, node: usize) -> bool {
        let is_alone = self.plan.places() == 1;
        if !is_alone && !self.nodes[node].machine.has_rotten_snapshot() && !self.may_harm(node) {
            return false;
        }
        let rot = self.nodes[node].machine.rot_snapshot();
        self.note_rot(node, rot)
    }

    fn note_rot(&mut self, node: usize, rot: Option<Rot>) -> bool {
        if let Some(rot) = rot {
            let words = [61, node as u64, number_of_shown(&rot)];
            self.fabric.trace.note(self.fabric.schedule.now(), &words, || {
                format!("node {node} rots: {} at {}, {:?}", rot.file, rot.offset, rot.extent)
            });
        }
        rot.is_some()
    }

    fn wipe(&mut self, node: usize) -> bool {
        // By its configuration one that was born alone would be born alone once more; nobody starts it like that.
        let is_born_alone = self.plan.nodes == 1 && node == 0;
        if is_born_alone || !self.may_harm(node) {
            return false;
        }
        self.act(&Fault::PowerLoss(node));
        let id = Plan::node_id(node);
        let is_of = |judges: &CellJudges| {
            let is_known = judges.memberships.countable().any(|list| list.seat(id).is_some());
            judges.is_born && (is_known || judges.memberships.has_removed(id))
        };
        let born = self.judges.each_cell().filter(|(_, judges)| is_of(judges)).map(|(cell, _)| cell);
        let state = &mut self.nodes[node];
        state.lost_cells = born.collect();
        state.machine.wipe(&self.plan, node);
        self.judges.on_disk_lost(Plan::node_id(node));
        true
    }

    fn change_clock(&mut self, site: Site, drift_ppm: i64) {
        let now = self.fabric.now();
        match site {
            Site::Node(node) => {
                self.nodes[node].clock.set_drift(now, drift_ppm);
                self.nodes[node].turn_at(now, &mut self.fabric.schedule);
            }
            Site::Client(client) => {
                let state = &mut self.clients[client];
                state.clock.set_drift(now, drift_ppm);
                state.next_wake = None;
                self.fabric.schedule.at(now, Event::Wake { client });
            }
        }
    }

    fn note_start(&mut self, node: usize) {
        let Some(process) = &self.nodes[node].process else { return };
        for (cell, mirror) in &process.mirrors {
            let ballot = process.ballots.get(cell).copied().unwrap_or_default();
            self.judges.on_recovered(*cell, Plan::node_id(node), mirror, ballot);
        }
        for (cell, manifest) in &process.manifests {
            self.judges.on_bound(*cell, Plan::node_id(node), manifest);
        }
        for (id, cell) in &process.cells {
            self.judges.on_restored(*id, Plan::node_id(node), cell);
        }
        for complaint in &process.complaints {
            if self.nodes[node].machine.explains_complaint(complaint.refusal) {
                self.judges.set(Mark::RottenSnapshotMet);
            } else {
                self.judges.on_snapshot_refused(complaint.cell, Plan::node_id(node), &complaint.words);
            }
        }
        if process.is_joining && self.judges.each_cell().any(|(_, judges)| !judges.is_born) {
            self.judges.set(Mark::JoinerBeforeBirth);
        }
        if process.has_hard_state {
            self.judges.set(Mark::HardStateRead);
        }
        let found = process.found.clone();
        if self.nodes[node].machine.is_full() {
            self.judges.set(Mark::StartedFull);
        }
        if found.is_torn {
            self.judges.set(Mark::TornBatchCut);
        }
        if found.newest > found.oldest {
            self.judges.set(Mark::SegmentsRotated);
        }
        if found.oldest > SegmentSequence(1) {
            self.judges.set(Mark::SegmentsRecycled);
        }
    }

    fn stop(&mut self, node: usize) -> bool {
        let now = self.fabric.now();
        let state = &mut self.nodes[node];
        if state.is_paused || state.process.as_ref().is_none_or(Process::is_stopping) {
            return false;
        }
        let start = state.take_turn_start(now);
        let Some(process) = &mut state.process else { return false };
        let mut around =
            Surroundings { fabric: &mut self.fabric, judges: &mut self.judges, machine: &mut state.machine };
        process.stop(start.clock, &mut around);
        state.turn_at(now, &mut self.fabric.schedule);
        true
    }

    /// A node takes a snapshot of each of its cells now, as if its log wished for it.
    fn take_snapshots(&mut self, node: usize) -> bool {
        let now = self.fabric.now();
        let state = &mut self.nodes[node];
        if state.is_standing() || state.process.is_none() {
            return false;
        }
        let start = state.take_turn_start(now);
        let Some(process) = &mut state.process else { return false };
        let mut around =
            Surroundings { fabric: &mut self.fabric, judges: &mut self.judges, machine: &mut state.machine };
        process.take_snapshots(start.clock, &mut around);
        state.turn_at(now, &mut self.fabric.schedule);
        true
    }

    fn transfer(&mut self, node: usize, to: Option<usize>) -> bool {
        let now = self.fabric.now();
        let state = &mut self.nodes[node];
        if state.is_paused || state.process.is_none() {
            return false;
        }
        let start = state.take_turn_start(now);
        let Some(process) = &mut state.process else { return false };
        let mut around =
            Surroundings { fabric: &mut self.fabric, judges: &mut self.judges, machine: &mut state.machine };
        let has_begun = process.transfer(to.map(Plan::node_id), start.clock, &mut around);
        state.turn_at(now, &mut self.fabric.schedule);
        has_begun
    }

    fn start_client(&mut self, client: usize) -> bool {
        let now = self.fabric.now();
        let old = &self.clients[client];
        if old.is_running {
            return false;
        }
        let (life, clock, cell) = (old.life + 1, old.clock.clone(), old.cell);
        self.clients[client] = Client::new(&self.plan, (client, cell), life, clock, now);
        if self.is_winding_down {
            self.clients[client].hands.wind_down();
        }
        self.fabric.schedule.at(now, Event::Wake { client });
        true
    }
}
