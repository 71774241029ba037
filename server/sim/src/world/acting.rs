//! What a fault does to a world.
//!
//! Invariant: a fault changes machines, links and processes from outside; what it began is ended by another fault or by
//! the closing. Deliberately absent: which faults come when; `fault` draws them.

use lockstep_wire::CellId;

use super::World;
use super::client::Client;
use super::defect::Defect;
use super::fault::Fault;
use super::network::Site;
use super::plan::Plan;
use super::process::Surroundings;
use super::schedule::{Event, MS};
use crate::mark::Mark;

impl World {
    /// A process has ended by itself: by an orderly stop, or because its disk failed.
    pub(super) fn end_process(&mut self, node: usize) {
        let now = self.fabric.now();
        self.fabric.trace.note(now, &[21, node as u64], || format!("node {node} ends by itself"));
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
        if let Some(gap) = self.nemesis.gap() {
            self.fabric.schedule.after(gap, Event::Nemesis);
        }
    }

    /// Makes a fault begin or end now.
    pub fn act(&mut self, fault: &Fault) {
        let now = self.fabric.now();
        self.fabric.trace.note(now, &[60], || format!("fault: {fault:?}"));
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
    }

    fn start(&mut self, node: usize) {
        let now = self.fabric.now();
        let state = &mut self.nodes[node];
        if state.process.is_some() {
            return;
        }
        match state.start(&self.plan, now) {
            Ok(()) => {
                self.note_start(node);
                self.fabric.disown(Site::Node(node));
                self.nodes[node].turn_at(now, &mut self.fabric.schedule);
            }
            Err(reason) => self.judges.on_refused(Plan::node_id(node), &reason),
        }
    }

    fn note_start(&mut self, node: usize) {
        let Some(process) = &self.nodes[node].process else { return };
        let found = process.found;
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
        let (life, clock) = (old.life + 1, old.clock.clone());
        self.clients[client] = Client::new(&self.plan, client, life, clock, now);
        if self.is_winding_down {
            self.clients[client].hands.wind_down();
        }
        self.fabric.schedule.at(now, Event::Wake { client });
    }
}
