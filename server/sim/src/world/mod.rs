//! A world: servers, clients, the network between them, true time, and what goes wrong.
//!
//! Invariant: everything that happens is an event of the schedule, handled one at a time; the same plan gives the same
//! events. After each event the judges have been shown all that matters of it. Deliberately absent: protocol.

mod acting;
mod client;
mod clock;
mod closing;
pub mod defect;
pub mod fault;
mod forger;
mod forgery;
mod hearing;
mod judge;
mod machine;
pub mod network;
mod node;
pub mod operator;
pub mod plan;
mod process;
mod promise;
mod reaction;
mod restoration;
mod roster;
pub mod schedule;
mod socket;
mod storage;
mod tap;
mod testimony;
pub mod trace;
mod visit;
mod workload;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use lockstep_core::Time;
use lockstep_wal::disk::SegmentSequence;
use lockstep_wire::reply::EndReason;
use lockstep_wire::{CellId, Epoch, LogIndex};

use crate::mark::{Mark, Marks};
use crate::oracle::exclusion::{Write, check_beliefs};
use crate::oracle::leadership::Serving;
use crate::oracle::{NO_PANIC, Verdict, violated, words_of_panic};
use crate::random::{Concern, Stream};
use client::{Client, ClientArrival, ClientSurroundings};
use clock::Clock;
use fault::{Fault, Nemesis};
use forger::Forger;
use judge::Judges;
use network::{End, Fabric, Network, Site, WireId};
use node::Node;
use operator::Operator;
use plan::Plan;
use process::{Arrival, Process, Surroundings};
use schedule::{Event, MS, Moment, Schedule};
use trace::{Trace, number_of, number_of_shown};

/// From the readiness of something to the turn that handles it.
const LOOP_LATENCY: u64 = 8_000;
/// Events in one second of true time beyond which nothing sensible can be going on.
const EVENTS_PER_SECOND_MAX: u64 = 3_000_000;

/// What a run amounted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// True time that passed, in ns.
    pub span: Moment,
    /// Faults that began.
    pub faults: u64,
    /// Events.
    pub events: u64,
    /// Entries that were committed.
    pub entries: u64,
    /// Elections that were won.
    pub elections: u64,
    /// Writes that the resources let through.
    pub writes: u64,
    /// Writes that newer fences kept out.
    pub stale_writes: u64,
    /// Sessions that ended.
    pub endings: u64,
    /// Rare things that happened.
    pub marks: Marks,
    /// The trace's hash.
    pub hash: u64,
}

/// See the module.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    fabric: Fabric,
    judges: Judges,
    /// Of every cell; raised whenever the cluster is restored.
    epoch: Epoch,
    nodes: Vec<Node>,
    /// Behind the ordinary ones, the visitor of each cell, who runs only at the end.
    clients: Vec<Client>,
    /// They have the places behind those of the clients.
    forgers: Vec<Forger>,
    nemesis: Nemesis,
    operator: Operator,
    /// No more faults are drawn.
    is_calm: bool,
    /// Nodes that stay out of order when everything else is mended.
    outcasts: BTreeSet<usize>,
    is_winding_down: bool,
    /// Cells that two nodes lead.
    contested: BTreeSet<CellId>,
    faults: u64,
    endings: u64,
    handled: u64,
    second: Moment,
    handled_before: u64,
}

impl World {
    /// A world in which every node is about to start for the first time.
    pub fn new(plan: Plan, trace: Trace) -> World {
        let network =
            Network::new(Stream::new(plan.seed, Concern::Network, 0), plan.latency_mean, plan.late_permille);
        let mut fabric = Fabric { schedule: Schedule::default(), trace, network };
        let mut drifts = Stream::new(plan.seed, Concern::Plan, 1);
        let mut clock = || {
            let max = plan.drift_ppm_max;
            let drift = drifts.between(0, 2 * max).cast_signed() - max.cast_signed();
            Clock::new(drifts.below(1 << 40) + 1_000_000_000, drift)
        };
        let nodes: Vec<Node> = (0..plan.places()).map(|place| Node::new(&plan, place, clock())).collect();
        let clients: Vec<Client> = (0..plan.workload.clients)
            .map(|place| Client::new(&plan, (place, plan.cell_of(place)), 0, clock(), 0))
            .chain((0..plan.cells).map(|cell| visit::absent(&plan, CellId(cell))))
            .collect();
        let mut nemesis = Nemesis::new(&plan);
        let forger = |number| Forger::new(&plan, plan.workload.clients + number, plan.forger_place(number));
        let forgers: Vec<Forger> = (0..plan.forgers).map(forger).collect();
        for node in 0..plan.started() {
            let wait = if plan.start_mean > 0 { drifts.around(plan.start_mean) } else { 0 };
            fabric.schedule.at(node as u64 * MS + wait, Event::Fault(Fault::Start(node)));
        }
        for client in 0..clients.len() + forgers.len() {
            fabric.schedule.at(0, Event::Wake { client });
        }
        if let Some(gap) = nemesis.gap(0) {
            fabric.schedule.at(gap, Event::Nemesis);
        }
        let mut operator = Operator::new(&plan);
        if let Some(gap) = operator.gap() {
            fabric.schedule.at(gap, Event::Operate);
        }
        World {
            judges: Judges::new(&plan, Epoch(0)),
            epoch: Epoch(0),
            plan,
            fabric,
            nodes,
            clients,
            forgers,
            nemesis,
            operator,
            is_calm: false,
            outcasts: BTreeSet::new(),
            is_winding_down: false,
            contested: BTreeSet::new(),
            faults: 0,
            endings: 0,
            handled: 0,
            second: 0,
            handled_before: 0,
        }
    }

    /// Runs a plan to its end: faults, then calm, then rest. An assertion that fails inside the real parts is a broken
    /// rule as well; the world that is left then has only its trace and its counts to show.
    ///
    /// # Errors
    /// The first rule that did not hold.
    pub fn run(plan: Plan, trace: Trace) -> (World, Verdict) {
        let safety = plan.safety;
        let mut world = World::new(plan, trace);
        let ran =
            catch_unwind(AssertUnwindSafe(|| world.run_for(safety).and_then(|()| world.come_to_rest())));
        let verdict = ran.unwrap_or_else(|panic| violated(NO_PANIC, words_of_panic(panic.as_ref())));
        (world, verdict)
    }

    /// Lets so many ns pass.
    ///
    /// # Errors
    /// The first rule that did not hold.
    pub fn run_for(&mut self, span: Moment) -> Verdict {
        let until = self.fabric.now() + span;
        while let Some(event) = self.fabric.schedule.poll(until) {
            self.handle(event);
            self.look_after();
            if let Some(violation) = self.judges.violation() {
                return Err(violation.clone());
            }
        }
        Ok(())
    }

    /// The node that serves as the leader of a cell in the newest term.
    pub fn leader(&self, cell: CellId) -> Option<usize> {
        let serving = self.nodes.iter().filter(|node| !node.is_paused).filter_map(|node| {
            let raft = node.cell(cell)?.raft();
            (raft.is_leader() && raft.is_serving()).then_some((raft.term(), node.place))
        });
        serving.max().map(|(_, place)| place)
    }

    /// The replica that serves in the newest term.
    fn serving(&self, cell: CellId) -> Option<Serving> {
        let serving = self.nodes.iter().filter_map(|node| Some((node, node.cell(cell)?.raft())));
        let serving = serving.filter(|(_, raft)| raft.is_leader() && raft.is_serving());
        let (node, raft) = serving.max_by_key(|(_, raft)| raft.term())?;
        let is_leaving = node.process.as_ref().is_some_and(Process::is_stopping) || raft.is_transferring();
        let (confirmed, round) = raft.rounds();
        Some(Serving {
            node: Plan::node_id(node.place),
            term: raft.term(),
            committed: raft.committed(),
            last: raft.last_index(),
            confirmed,
            round,
            can_act: !node.is_standing() && !is_leaving,
        })
    }

    /// Whether a node's process runs and believes to lead a cell.
    pub fn claims_to_lead(&self, node: usize, cell: CellId) -> bool {
        self.nodes[node].cell(cell).is_some_and(|cell| cell.raft().is_leader())
    }

    /// Whether a process runs on a node.
    pub fn is_running(&self, node: usize) -> bool {
        self.nodes[node].process.is_some()
    }

    /// Elections that were won so far, over all cells.
    pub fn elections(&self) -> usize {
        self.judges.elections()
    }

    /// Whether a cell was restored and grants nothing yet, as its leader has applied it.
    pub fn is_quiet(&self, cell: CellId) -> bool {
        let leader = self.leader(cell).and_then(|leader| self.nodes[leader].cell(cell));
        leader.is_some_and(|cell| cell.table().is_quiet())
    }

    /// How far a node's replica of a cell has applied its log; 0 while its process does not run.
    pub fn applied(&self, node: usize, cell: CellId) -> LogIndex {
        self.nodes[node].cell(cell).map_or(LogIndex(0), |cell| cell.applied())
    }

    /// The sessions of a cell that live, as its leader has applied them.
    pub fn live_sessions(&self, cell: CellId) -> usize {
        let leader = self.leader(cell).and_then(|leader| self.nodes[leader].cell(cell));
        leader.map_or(0, |cell| cell.table().sessions_len())
    }

    /// What clients believe to hold at the moment: client, name.
    pub fn held(&self) -> Vec<(usize, String)> {
        let now = self.fabric.now();
        let beliefs = self.clients.iter().flat_map(|client| client.beliefs(now));
        beliefs.map(|belief| (belief.holder.0, belief.resource.1)).collect()
    }

    /// The term of a node's replica of a cell, while its process runs.
    pub fn term(&self, node: usize, cell: CellId) -> Option<u64> {
        Some(self.nodes[node].cell(cell)?.raft().term().0)
    }

    /// The segments on a node's disk, those included that are ready for use or for recycling.
    pub fn segments(&mut self, node: usize) -> Vec<SegmentSequence> {
        self.nodes[node].machine.segments()
    }

    /// What time it is.
    pub fn now(&self) -> Moment {
        self.fabric.now()
    }

    /// The lines of the trace, if they are kept.
    pub fn lines(&self) -> &[String] {
        self.fabric.trace.lines()
    }

    /// What the run has amounted to so far.
    pub fn summary(&self) -> Summary {
        Summary {
            span: self.fabric.now(),
            faults: self.faults,
            events: self.fabric.trace.events(),
            entries: self.judges.entries,
            elections: self.judges.elections() as u64,
            writes: self.judges.resources.accepted,
            stale_writes: self.judges.resources.refused,
            endings: self.endings,
            marks: self.judges.marks(),
            hash: self.fabric.trace.hash(),
        }
    }

    fn handle(&mut self, event: Event) {
        self.handled += 1;
        self.judges.now = self.fabric.now();
        match event {
            Event::Arrive { wire, end, bytes } => self.on_arrive(wire, end, bytes),
            Event::Dial { wire } => self.on_dial(wire),
            Event::Answer { wire, is_refused } => self.on_answer(wire, is_refused),
            Event::Closed { wire, end } => self.on_closed(wire, end),
            Event::DiskDone { node, life, ticket } => {
                if let Some(completion) = self.nodes[node].on_disk_done(life, ticket) {
                    let words = [
                        40,
                        node as u64,
                        completion.op.0,
                        number_of_shown(&completion.result.as_ref().map(Vec::len)),
                    ];
                    self.fabric.trace.note(self.fabric.schedule.now(), &words, || {
                        let outcome = completion.result.as_ref().map(Vec::len);
                        format!("disk {node} op {} done: {outcome:?}", completion.op.0)
                    });
                    self.give(node, Arrival::Disk(completion));
                }
            }
            Event::Turn { node } => {
                self.on_turn(node);
                self.look_at_leaders();
            }
            Event::Wake { client } => self.on_wake(client),
            Event::ResourceWrite(write) => self.on_resource_write(&write),
            Event::Unacknowledged { wire, end, since } => {
                if self.fabric.on_unacknowledged(wire, end, since) {
                    self.judges.set(Mark::HalfOpen);
                }
            }
            Event::Fault(fault) => {
                if self.is_wanted(&fault) {
                    self.act(&fault);
                }
            }
            Event::Nemesis => self.on_nemesis(),
            Event::Operate => self.on_operate(),
        }
    }

    /// What has to be looked at after everything that may have changed who serves.
    fn look_at_leaders(&mut self) {
        let now = self.fabric.now();
        for cell in (0..self.plan.cells).map(CellId) {
            self.look_for_two_leaders(cell);
            let serving = self.serving(cell);
            self.judges.cell(cell).leadership.on_look(now, serving);
        }
    }

    /// An office that is held twice is noted when it becomes so.
    fn look_for_two_leaders(&mut self, cell: CellId) {
        let leads = |node: &&Node| {
            node.cell(cell).is_some_and(|cell| cell.raft().is_leader() && cell.raft().is_serving())
        };
        if self.nodes.iter().filter(leads).count() < 2 {
            self.contested.remove(&cell);
        } else if self.contested.insert(cell) {
            self.judges.set(Mark::TwoLeaders);
        }
    }

    /// What has to be looked at after every event.
    fn look_after(&mut self) {
        let now = self.fabric.now();
        for ending in std::mem::take(&mut self.judges.endings) {
            self.endings += 1;
            let is_expired = ending.reason == EndReason::Expired;
            let judges = self.judges.cell(ending.cell);
            let verdict = judges.lateness.on_ended(ending.session, is_expired, &judges.leadership);
            self.judges.take(verdict);
            for client in self.clients.iter().filter(|client| client.cell == ending.cell) {
                client.on_ended(ending.session, now, reaction::how(ending.reason), &mut self.judges);
            }
        }
        self.look_at_members();
        if now / (1_000 * MS) != self.second {
            self.second = now / (1_000 * MS);
            let verdict = self.judges.each_cell().try_for_each(|(_, judges)| {
                judges.lateness.check_all(&judges.leadership)?;
                judges.waits.check_all(&judges.leadership)
            });
            self.judges.take(verdict);
            if self.handled - self.handled_before > EVENTS_PER_SECOND_MAX {
                let count = self.handled - self.handled_before;
                self.judges.take(violated("turns come to an end", format!("{count} events in a second")));
            }
            self.handled_before = self.handled;
        }
    }

    fn on_arrive(&mut self, wire: WireId, end: End, bytes: Vec<u8>) {
        if !self.fabric.is_deliverable(wire, end) {
            let site = self.fabric.network.site(wire, end);
            let is_up = match site {
                Some((Site::Node(node), _)) => !self.nodes[node].is_without_power,
                Some((Site::Client(_), _)) | None => true,
            };
            self.fabric.on_undeliverable(wire, end, is_up);
            return;
        }
        let now = self.fabric.now();
        self.fabric.trace.note(now, &[11, wire.0, end as u64, number_of(&bytes)], || {
            format!("wire {} {end:?} gets {} bytes", wire.0, bytes.len())
        });
        match self.fabric.network.site(wire, end) {
            Some((Site::Node(node), _)) => self.give(node, Arrival::Bytes { wire, bytes }),
            Some((Site::Client(client), _)) => self.give_client(client, ClientArrival::Bytes(wire, bytes)),
            None => {}
        }
    }

    fn on_dial(&mut self, wire: WireId) {
        let Some((Site::Node(node), door)) = self.fabric.network.site(wire, End::Acceptor) else { return };
        if !self.fabric.network.is_open(wire, End::Dialer) {
            return;
        }
        if node >= self.nodes.len() {
            // A machine that does not exist.
            return;
        }
        let is_listening = self.nodes[node].process.is_some();
        if is_listening {
            self.fabric.answer_dial(wire, true);
            self.give(node, Arrival::Accepted { wire, door });
        } else if !self.nodes[node].is_without_power {
            self.fabric.answer_dial(wire, false);
        }
    }

    fn on_answer(&mut self, wire: WireId, is_refused: bool) {
        if !self.fabric.network.is_open(wire, End::Dialer) {
            return;
        }
        let Some((site, _)) = self.fabric.network.site(wire, End::Dialer) else { return };
        self.fabric.trace.note(self.fabric.schedule.now(), &[12, wire.0, u64::from(is_refused)], || {
            format!("wire {} from {site:?} {}", wire.0, if is_refused { "is refused" } else { "stands" })
        });
        if is_refused {
            self.fabric.on_closed(wire, End::Dialer);
        }
        match (site, is_refused) {
            (Site::Node(node), false) => self.give(node, Arrival::Connected { wire }),
            (Site::Node(node), true) => self.give(node, Arrival::Refused { wire }),
            (Site::Client(client), false) => self.give_client(client, ClientArrival::Connected(wire)),
            (Site::Client(client), true) => self.give_client(client, ClientArrival::Refused(wire)),
        }
    }

    fn on_closed(&mut self, wire: WireId, end: End) {
        if !self.fabric.network.is_open(wire, end) {
            return;
        }
        let Some((site, _)) = self.fabric.network.site(wire, end) else { return };
        self.fabric.trace.note(self.fabric.schedule.now(), &[13, wire.0, end as u64], || {
            format!("wire {} is gone for {site:?}", wire.0)
        });
        self.fabric.on_closed(wire, end);
        match site {
            Site::Node(node) => self.give(node, Arrival::Closed { wire }),
            Site::Client(client) => self.give_client(client, ClientArrival::Closed(wire)),
        }
    }

    /// Hands something to a node's process, which looks at it in its next turn.
    fn give(&mut self, node: usize, arrival: Arrival) {
        let now = self.fabric.now();
        let clock = Time(self.nodes[node].clock.read(now));
        if let Some(process) = &mut self.nodes[node].process {
            process.take_in(arrival, clock);
            let at = now + LOOP_LATENCY;
            self.nodes[node].turn_at(at, &mut self.fabric.schedule);
        }
    }

    fn give_client(&mut self, client: usize, arrival: ClientArrival) {
        let mut around = ClientSurroundings { fabric: &mut self.fabric, judges: &mut self.judges };
        match client.checked_sub(self.clients.len()) {
            Some(forger) => {
                self.forgers[forger].on_arrival(arrival, &mut around);
                self.after_forger(forger);
            }
            None => {
                self.clients[client].on_arrival(arrival, &mut around);
                self.after_client(client);
            }
        }
    }

    fn on_wake(&mut self, client: usize) {
        let now = self.fabric.now();
        if let Some(forger) = client.checked_sub(self.clients.len()) {
            return self.on_forger_wake(forger);
        }
        let state = &mut self.clients[client];
        if state.next_wake.is_some_and(|at| at > now) {
            return;
        }
        state.next_wake = None;
        let mut around = ClientSurroundings { fabric: &mut self.fabric, judges: &mut self.judges };
        state.look_around(&mut around);
        self.after_client(client);
    }

    fn after_client(&mut self, client: usize) {
        let now = self.fabric.now();
        let state = &mut self.clients[client];
        if state.is_running
            && !state.is_paused
            && let Some(due) = state.due()
        {
            let at = due.max(now + 1_000);
            if state.next_wake.is_none_or(|wake| at < wake) {
                state.next_wake = Some(at);
                self.fabric.schedule.at(at, Event::Wake { client });
            }
        }
        self.check_beliefs(client);
    }

    fn on_forger_wake(&mut self, forger: usize) {
        let state = &mut self.forgers[forger];
        if state.next_wake.is_some_and(|at| at > self.fabric.now()) {
            return;
        }
        state.next_wake = None;
        let mut around = ClientSurroundings { fabric: &mut self.fabric, judges: &mut self.judges };
        state.look_around(&mut around);
        self.after_forger(forger);
    }

    fn after_forger(&mut self, forger: usize) {
        let state = &mut self.forgers[forger];
        if let Some(at) = state.due(self.fabric.now())
            && state.next_wake.is_none_or(|wake| at < wake)
        {
            state.next_wake = Some(at);
            self.fabric.schedule.at(at, Event::Wake { client: self.clients.len() + forger });
        }
    }

    /// What a client newly believes must go with what the others believe.
    fn check_beliefs(&mut self, client: usize) {
        let now = self.fabric.now();
        let state = &mut self.clients[client];
        if !state.hands.take_news() {
            return;
        }
        let cell = state.cell;
        let beliefs: Vec<_> =
            self.clients.iter().filter(|it| it.cell == cell).flat_map(|it| it.beliefs(now)).collect();
        self.judges.take(check_beliefs(&beliefs));
    }

    fn on_resource_write(&mut self, write: &Write) {
        let now = self.fabric.now();
        let (client, life, call) = write.holder;
        let by_right = self.clients[client].holds_by_right(life, call, now);
        let words = [50, client as u64, call, number_of_shown(write), u64::from(by_right)];
        self.fabric.trace.note(now, &words, || format!("{write:?} by right: {by_right}"));
        match self.judges.resources.on_write(write, by_right) {
            Ok(_) => {}
            Err(violation) => self.judges.take(Err(violation)),
        }
    }

    fn on_turn(&mut self, node: usize) {
        let now = self.fabric.now();
        let state = &mut self.nodes[node];
        if !state.takes_turn(now) {
            return;
        }
        let start = state.take_turn_start(now);
        let Some(process) = &mut state.process else { return };
        let mut around =
            Surroundings { fabric: &mut self.fabric, judges: &mut self.judges, machine: &mut state.machine };
        let end = process.turn(start, &mut around);
        if end.is_over {
            self.end_process(node);
            return;
        }
        let due = state.clock.moment_of(end.due.0);
        let soonest = now + LOOP_LATENCY;
        let next = if end.is_unfinished { Some(soonest) } else { due.map(|due| due.max(soonest)) };
        if let Some(next) = next {
            state.turn_at(next, &mut self.fabric.schedule);
        }
    }
}
