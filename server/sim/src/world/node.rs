//! A node: a machine, its clock, and the process on it, if one runs.
//!
//! Invariant: a process that stands still does nothing, and its machine goes on: what arrives waits, what the disk was
//! given is done. Deliberately absent: what a process does.

use std::collections::BTreeSet;

use lockstep_core::{Cell, Time};
use lockstep_wal::Refusal;
use lockstep_wal::memory::{Completion, Ticket};
use lockstep_wire::CellId;

use super::clock::Clock;
use super::judge::Judges;
use super::machine::Machine;
use super::plan::Plan;
use super::process::Process;
use super::schedule::{Event, Moment, Schedule};

/// See the module.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: usize,
    pub(super) clock: Clock,
    pub(super) machine: Machine,
    pub(super) process: Option<Process>,
    pub(super) is_paused: bool,
    pub(super) is_without_power: bool,
    /// It is a spare that nobody has started yet.
    pub(super) is_spare: bool,
    /// Cells that were born when this node's disk was lost: it is no member of them any more.
    pub(super) lost_cells: BTreeSet<CellId>,
    lives: u64,
    next_turn: Option<Moment>,
    late: Option<LateTurn>,
}

/// A turn that has begun and comes no further for a while.
#[derive(Clone, Copy, Debug)]
struct LateTurn {
    /// What it is about: it began with this.
    began: TurnStart,
    until: Moment,
}

/// What a turn begins with: what the clock shows, and what has arrived by then.
#[derive(Clone, Copy, Debug)]
pub(super) struct TurnStart {
    pub(super) clock: Time,
    /// Counted since the process began.
    pub(super) arrived: u64,
}

impl Node {
    pub(super) fn new(plan: &Plan, place: usize, clock: Clock) -> Node {
        Node {
            place,
            clock,
            machine: Machine::new(plan, place),
            process: None,
            is_paused: false,
            is_without_power: false,
            is_spare: place >= plan.started(),
            lost_cells: BTreeSet::new(),
            lives: 0,
            next_turn: None,
            late: None,
        }
    }

    pub(super) fn cell(&self, cell: CellId) -> Option<&Cell> {
        self.process.as_ref()?.cells.get(&cell)
    }

    /// Starts the process over what the disk holds.
    pub(super) fn start(&mut self, plan: &Plan, now: Moment, judges: &Judges) -> Result<(), Refusal> {
        self.is_without_power = false;
        self.lives += 1;
        let local = Time(self.clock.read(now));
        let mut process = Process::start(plan, self.place, self.lives, local, &mut self.machine, judges)?;
        process.lost_cells.clone_from(&self.lost_cells);
        self.process = Some(process);
        Ok(())
    }

    /// The process is gone; its machine lives. Says whether there was one.
    pub(super) fn kill(&mut self) -> bool {
        let was_running = self.process.take().is_some();
        if was_running {
            self.machine.disk.kill(&mut self.machine.chance);
        }
        self.forget_process();
        was_running
    }

    /// The machine is gone, until it starts again.
    pub(super) fn lose_power(&mut self) {
        self.process = None;
        self.is_without_power = true;
        self.machine.disk.lose_power(&mut self.machine.chance);
        self.forget_process();
    }

    fn forget_process(&mut self) {
        self.next_turn = None;
        self.late = None;
    }

    pub(super) fn on_disk_done(&mut self, life: u64, ticket: Ticket) -> Option<Completion> {
        self.process.as_ref().filter(|process| process.life == life)?;
        Some(self.machine.disk.complete(ticket, &mut self.machine.chance))
    }

    /// Whether its process does nothing for the time being.
    pub(super) fn is_standing(&self) -> bool {
        self.is_paused || self.late.is_some()
    }

    pub(super) fn pause(&mut self, now: Moment, stops_clock: bool) {
        self.is_paused = true;
        if stops_clock {
            self.clock.stop(now);
        }
    }

    pub(super) fn resume(&mut self, now: Moment) {
        if std::mem::take(&mut self.is_paused) {
            self.clock.go_on(now);
        }
    }

    /// A turn begins, reads the clock, and comes no further for so long. Says whether there was one to begin.
    pub(super) fn begin_late_turn(&mut self, now: Moment, span: u64) -> bool {
        if self.is_paused || self.process.is_none() || self.late.is_some() {
            return false;
        }
        self.late = Some(LateTurn { began: self.turn_start(now), until: now + span });
        self.next_turn = None;
        true
    }

    /// Has the loop go around at a moment, if not before.
    pub(super) fn turn_at(&mut self, at: Moment, schedule: &mut Schedule) {
        if self.process.is_none() || self.is_paused {
            return;
        }
        let at = self.late.map_or(at, |late| at.max(late.until));
        if self.next_turn.is_none_or(|next| at < next) {
            self.next_turn = Some(at);
            schedule.at(at, Event::Turn { node: self.place });
        }
    }

    /// Whether the turn that was scheduled for this moment is still wanted.
    pub(super) fn takes_turn(&mut self, now: Moment) -> bool {
        if self.next_turn != Some(now) || self.process.is_none() {
            return false;
        }
        self.next_turn = None;
        !self.is_paused
    }

    /// What the turn of this moment began with, perhaps a while ago.
    pub(super) fn take_turn_start(&mut self, now: Moment) -> TurnStart {
        match self.late.take() {
            Some(late) => late.began,
            None => self.turn_start(now),
        }
    }

    fn turn_start(&self, now: Moment) -> TurnStart {
        let arrived = self.process.as_ref().map_or(0, Process::arrived);
        TurnStart { clock: Time(self.clock.read(now)), arrived }
    }
}
