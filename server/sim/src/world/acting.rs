//! What a fault does to a world.
//!
//! Invariant: a fault changes machines, links and processes from outside; what it began is ended by another fault or by
//! the closing. Deliberately absent: which faults come when; `fault` draws them.

use lockstep_wire::CellId;

use lockstep_wal::Failure;

use super::World;
use super::client::Client;
use super::defect::Defect;
use super::fault::Fault;
use super::network::Site;
use super::plan::Plan;
use super::process::{Process, Surroundings};
use super::schedule::{Event, MS};
use super::trace::number_of_shown;
use crate::mark::Mark;

impl World {
    /// A process has ended by itself: by an orderly stop, or because its disk failed.
    pub(super) fn end_process(&mut self, node: usize) {
        let now = self.fabric.now();
        let state = &self.nodes[node];
        let failure = state.process.as_ref().and_then(Process::failure);
        let has_met_error = state.process.as_ref().is_some_and(Process::has_met_error);
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
        self.fabric.hang_up(Site::Node(node));
        self.fabric.schedule.after(500 * MS, Event::Fault(Fault::Start(node)));
    }

    pub(super) fn on_nemesis(&mut self) {
        if self.is_calm {
            return;
        }
        let leader = self.leader(CellId(0));
        if let Some((fault, end)) = self.nemesis.draw(leader) {
            self.faults += 1;
            self.act(&fault);
            if let Some((span, end)) = end {
                self.fabric.schedule.after(span, Event::Fault(end));
            }
        }
        if let Some(gap) = self.nemesis.gap(self.fabric.now()) {
            self.fabric.schedule.after(gap, Event::Nemesis);
        }
    }

    /// Makes a fault begin or end now.
    pub fn act(&mut self, fault: &Fault) {
        let now = self.fabric.now();
        self.fabric.trace.note(now, &[60, number_of_shown(fault)], || format!("fault: {fault:?}"));
        match fault {
            Fault::Kill(node) => {
                if self.nodes[*node].kill() {
                    self.fabric.hang_up(Site::Node(*node));
                }
            }
            Fault::PowerLoss(node) => {
                self.nodes[*node].lose_power();
                self.fabric.fall_silent(Site::Node(*node));
            }
            Fault::Start(node) => self.start(*node),
            Fault::Stop(node) => self.stop(*node),
            Fault::Pause { node, stops_clock } => self.nodes[*node].pause(now, *stops_clock),
            Fault::Resume(node) => {
                self.nodes[*node].resume(now);
                self.nodes[*node].turn_at(now, &mut self.fabric.schedule);
            }
            Fault::LateTurn(node, span) => {
                let state = &mut self.nodes[*node];
                if state.begin_late_turn(now, *span) {
                    state.turn_at(now + *span, &mut self.fabric.schedule);
                }
            }
            Fault::Cut(cuts) => cuts.iter().for_each(|(from, to)| self.fabric.cut(*from, *to)),
            Fault::Mend(cuts) => cuts.iter().for_each(|(from, to)| self.fabric.mend(*from, *to)),
            Fault::Reset(one, other) => {
                for wire in self.fabric.wires_between(*one, *other) {
                    self.fabric.reset(wire);
                }
            }
            Fault::SlowDisk(node, span, by) => self.nodes[*node].machine.slow_down(now + span, *by),
            Fault::Lag(cuts, span, by) => {
                cuts.iter().for_each(|(from, to)| self.fabric.network.lag(*from, *to, now + *span, *by));
            }
            Fault::FullDisk(node, bytes) => self.nodes[*node].machine.set_room(Some(*bytes)),
            Fault::Room(node) => self.nodes[*node].machine.set_room(None),
            Fault::Rot(node) => self.rot(*node),
            Fault::Wipe(node) => self.wipe(*node),
            Fault::ClockRate(site, drift_ppm) => self.change_clock(*site, *drift_ppm),
            Fault::ClientCrash(client) => self.clients[*client].crash(&mut self.fabric),
            Fault::ClientStart(client) => self.start_client(*client),
            Fault::ClientPause(client) => {
                let stands = self.plan.defect == Some(Defect::ClientClockStands);
                let state = &mut self.clients[*client];
                state.is_paused = true;
                if stands {
                    state.clock.stop(now);
                }
            }
            Fault::ClientResume(client) => {
                let state = &mut self.clients[*client];
                if std::mem::take(&mut state.is_paused) {
                    state.clock.go_on(now);
                    state.next_wake = None;
                    self.fabric.schedule.at(now, Event::Wake { client: *client });
                }
            }
        }
        self.look_at_leaders();
    }

    fn start(&mut self, node: usize) {
        let now = self.fabric.now();
        let state = &mut self.nodes[node];
        if state.process.is_some() {
            return;
        }
        match state.start(&self.plan, now) {
            Ok(()) => {
                if state.machine.must_be_refused() {
                    let place = format!("{:?}", state.machine.harm());
                    self.judges.on_rot_unnoticed(Plan::node_id(node), &place);
                }
                self.note_start(node);
                self.fabric.disown(Site::Node(node));
                self.nodes[node].turn_at(now, &mut self.fabric.schedule);
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
            }
        }
    }

    /// Whether one more machine may be harmed for good: a majority stays whole.
    fn may_harm(&self, node: usize) -> bool {
        let harmed = self.nodes.iter().filter(|node| node.machine.harm().is_some()).count();
        self.nodes[node].machine.harm().is_none() && harmed < (self.plan.nodes - 1) / 2
    }

    fn rot(&mut self, node: usize) {
        if !self.may_harm(node) {
            return;
        }
        if let Some(rot) = self.nodes[node].machine.rot() {
            let words = [61, node as u64, number_of_shown(&rot)];
            self.fabric.trace.note(self.fabric.schedule.now(), &words, || {
                format!("node {node} rots: {} at {}, {:?}", rot.file, rot.offset, rot.batch)
            });
        }
    }

    fn wipe(&mut self, node: usize) {
        if !self.may_harm(node) {
            return;
        }
        self.act(&Fault::PowerLoss(node));
        let born = self.judges.each_cell().filter(|(_, judges)| judges.is_born).map(|(cell, _)| cell);
        let state = &mut self.nodes[node];
        state.lost_cells = born.collect();
        state.machine.wipe(&self.plan, node);
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
            self.judges.on_recovered(*cell, Plan::node_id(node), mirror);
        }
        let found = process.found;
        if self.nodes[node].machine.is_full() {
            self.judges.set(Mark::StartedFull);
        }
        if found.is_torn {
            self.judges.set(Mark::TornBatchCut);
        }
        if found.newest > found.oldest {
            self.judges.set(Mark::SegmentsRotated);
        }
    }

    fn stop(&mut self, node: usize) {
        let now = self.fabric.now();
        let state = &mut self.nodes[node];
        let start = state.take_turn_start(now);
        if state.is_paused {
            return;
        }
        let Some(process) = &mut state.process else { return };
        let mut around =
            Surroundings { fabric: &mut self.fabric, judges: &mut self.judges, machine: &mut state.machine };
        process.stop(start.clock, &mut around);
        state.turn_at(now, &mut self.fabric.schedule);
    }

    fn start_client(&mut self, client: usize) {
        let now = self.fabric.now();
        let old = &self.clients[client];
        if old.is_running {
            return;
        }
        let (life, clock, cell) = (old.life + 1, old.clock.clone(), old.cell);
        self.clients[client] = Client::new(&self.plan, (client, cell), life, clock, now);
        if self.is_winding_down {
            self.clients[client].hands.wind_down();
        }
        self.fabric.schedule.at(now, Event::Wake { client });
    }
}
