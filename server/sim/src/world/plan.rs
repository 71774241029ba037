//! Everything about a run that its seed decides before it begins.
//!
//! Invariant: swarm style, each run draws which faults exist at all, so that rare combinations meet. Deliberately
//! absent: when faults come; that is drawn as the run goes.

use lockstep_core::table::Limits;
use lockstep_core::{APPLY_PER_TURN, CACHE_BYTES_MAX, CellConfig, Member, SNAPSHOT_SLICE_BYTES, Span};
use lockstep_wire::limit::NAME_BYTES_MAX;
use lockstep_wire::{BirthId, CellId, ClusterId, Epoch, Incarnation, NodeId};

use super::defect::Defect;
use super::schedule::{MS, Moment};
use crate::random::{Concern, Stream};

/// Which faults exist, and how often they come.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// The mean time between two faults; without one there are none.
    pub gap_mean: Option<Moment>,
    /// Processes die, their machines live.
    pub kills: bool,
    /// Machines lose power.
    pub power_losses: bool,
    /// Processes or whole machines stand still for a while.
    pub pauses: bool,
    /// Links are cut.
    pub cuts: bool,
    /// Connections are reset.
    pub resets: bool,
    /// Disks are slow for a while.
    pub slow_disks: bool,
    /// Clients die, and others come in their place.
    pub client_crashes: bool,
    /// Clients stand still for a while.
    pub client_pauses: bool,
    /// Processes stop in an orderly way.
    pub stops: bool,
    /// A turn is late after it has read its clock.
    pub late_turns: bool,
    /// Links are slow for a while.
    pub lags: bool,
    /// Disks are full for a while.
    pub full_disks: bool,
    /// Bits flip on the disks of a minority.
    pub rot: bool,
    /// Disks of a minority are lost and formatted anew.
    pub wipes: bool,
    /// Clocks change their rates.
    pub clock_rates: bool,
    /// Nodes take snapshots although their logs do not wish for any yet.
    pub snapshots: bool,
    /// They come thick and fast in the first moments, when cells are born.
    pub births: bool,
    /// An operator has leaders hand over.
    pub transfers: bool,
    /// The cluster is lost and restored from a backup.
    pub restores: bool,
}

/// What clients do.
#[derive(Clone, Debug)]
pub struct Workload {
    /// How many.
    pub clients: usize,
    /// Owners in each client that act at the same time.
    pub tasks: usize,
    /// Sessions of each client.
    pub sessions: usize,
    /// Locks of each cell.
    pub names: usize,
    /// The shortest and the longest TTL, in ms.
    pub ttl_ms: (u32, u32),
    /// The mean pause of a task between two things, in ns.
    pub think_mean: u64,
    /// The mean time for which a lock is held, in ns.
    pub hold_mean: u64,
    /// How many in a hundred acquires are shared.
    pub shared_percent: u64,
    /// How many in a hundred acquires are withdrawn.
    pub cancel_percent: u64,
    /// How many in a hundred rounds of a task end its session.
    pub close_percent: u64,
    /// How many in a hundred rounds of a task only look at the lock.
    pub read_percent: u64,
    /// How many in a hundred looks of a holder at its hold acquire it again.
    pub again_percent: u64,
    /// How many in a hundred holds are dropped by a cancel instead of released.
    pub drop_percent: u64,
    /// How many in a hundred rounds of a task are something out of the ordinary.
    pub odd_percent: u64,
    /// Names are prefixes of each other, or as long as they may be.
    pub has_odd_names: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What everything is drawn from.
    pub seed: u64,
    /// Servers; each has a replica of each cell.
    pub nodes: usize,
    /// Servers beside them that are not there when the cells are born: an operator has them join and changes the members.
    pub spares: usize,
    /// How many of them are started with the others all the same, and wait until they are added.
    pub early_spares: usize,
    /// The mean time between two things that the operator does about the members.
    pub operator_gap_mean: Moment,
    /// Cells on one log.
    pub cells: u16,
    /// Of the replicated tables.
    pub limits: Limits,
    /// The mean of one way, in ns.
    pub latency_mean: u64,
    /// Pieces that are late, in a thousand.
    pub late_permille: u64,
    /// The mean of a disk operation, in ns.
    pub disk_latency_mean: u64,
    /// Disk operations that fail, in a million.
    pub disk_error_ppm: u32,
    /// Of the logs.
    pub segment_bytes: u64,
    /// The most arrivals that a turn of a server hands out; the others wait for the next one.
    pub arrivals_max: u64,
    /// Bytes of entries that a replica keeps in memory for its followers.
    pub cache_bytes_max: usize,
    /// What a replica applies in one turn at most.
    pub apply_per_turn: usize,
    /// What it makes of a snapshot in one go, in bytes.
    pub snapshot_slice_bytes: usize,
    /// Heartbeat, shortest and longest election timeout, in ms.
    pub timing_ms: (u64, u64, u64),
    /// The greatest drift of a clock, in millionths.
    pub drift_ppm_max: u64,
    /// What clients do.
    pub workload: Workload,
    /// Clients that send what the client library never would.
    pub forgers: usize,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// How long faults may come.
    pub safety: Moment,
    /// How many nodes at most, and never more than a minority, stay out of order to the end.
    pub outcasts_max: usize,
    /// The mean time between two faults in the first moments, where they come thick and fast.
    pub birth_gap_mean: Moment,
    /// The mean time after which a node starts for the first time.
    pub start_mean: u64,
    /// Whether the reference model may object; otherwise the other judges have to see for themselves.
    pub is_model_asked: bool,
    /// What the drivers do wrong on purpose.
    pub defect: Option<Defect>,
}

impl Plan {
    /// A plan with everything drawn.
    pub fn drawn(seed: u64) -> Plan {
        let mut stream = Stream::new(seed, Concern::Plan, 0);
        let nodes = stream.one_of(&[1, 3, 3, 3, 5, 5, 5, 5]);
        let cells = if stream.percent(30) { 2 } else { 1 };
        let mut plan = Plan::quiet(seed);
        plan.nodes = nodes;
        plan.cells = cells;
        plan.latency_mean = stream.one_of(&[20_000, 100_000, 500_000, 5 * MS]);
        plan.late_permille = stream.one_of(&[0, 0, 2, 20]);
        plan.disk_latency_mean = stream.one_of(&[100_000, 300_000, 2 * MS, 10 * MS]);
        plan.disk_error_ppm = stream.one_of(&[0, 0, 0, 20]);
        plan.arrivals_max = stream.one_of(&[1, 4, u64::MAX]);
        plan.drift_ppm_max = stream.one_of(&[0, 50, 500]);
        plan.workload = Workload::drawn(&mut stream);
        if stream.percent(40) {
            plan.limits = tight_limits(&mut stream);
        }
        plan.faults = FaultPlan::drawn(&mut stream);
        plan.safety = stream.between(40, 80) * 1_000 * MS;
        plan.cache_bytes_max = stream.one_of(&[CACHE_BYTES_MAX, 0, 0]);
        plan.draw_rarities(&mut Stream::new(seed, Concern::Plan, 2));
        let mut variety = Stream::new(seed, Concern::Variety, 0);
        plan.workload.vary(&mut variety);
        plan.forgers = variety.one_of(&[0, 0, 1, 2]);
        plan.faults.transfers = plan.faults.gap_mean.is_some() && plan.nodes > 1 && variety.percent(30);
        plan.draw_spares(&mut Stream::new(seed, Concern::Plan, 5));
        plan.apply_per_turn =
            Stream::new(seed, Concern::Plan, 6).one_of(&[APPLY_PER_TURN, APPLY_PER_TURN, 32, 2]);
        plan.snapshot_slice_bytes =
            Stream::new(seed, Concern::Plan, 7).one_of(&[SNAPSHOT_SLICE_BYTES, 512, 64]);
        plan
    }

    /// What only some runs have.
    fn draw_rarities(&mut self, stream: &mut Stream) {
        if stream.percent(50) {
            self.outcasts_max = stream.place(self.nodes / 2 + 1);
        }
        if stream.percent(5) {
            self.cells = stream.one_of(&[3, 4]);
        }
        if stream.percent(4) {
            self.workload.crowd(stream);
        }
        if self.faults.gap_mean.is_none() {
            return;
        }
        self.faults.lags = stream.percent(30);
        self.faults.full_disks = stream.percent(25);
        self.faults.rot = stream.percent(25);
        self.faults.wipes = stream.percent(20);
        self.faults.clock_rates = self.drift_ppm_max > 0 && stream.percent(50);
        self.faults.restores = Stream::new(self.seed, Concern::Plan, 4).percent(8);
        self.faults.snapshots = self.faults.restores || Stream::new(self.seed, Concern::Plan, 3).percent(50);
        if stream.percent(25) {
            self.faults.births = true;
            self.faults.wipes |= stream.percent(50);
            self.birth_gap_mean = stream.one_of(&[10 * MS, 50 * MS, 200 * MS]);
            self.start_mean = stream.one_of(&[0, 20 * MS, 300 * MS]);
        }
    }

    /// Only few runs have an operator who changes the members: every one of them costs the time of a larger cluster.
    fn draw_spares(&mut self, stream: &mut Stream) {
        if stream.percent(12) && !self.faults.restores {
            self.spares = stream.place(if self.nodes == 5 { 2 } else { 4 }) + 1;
            let mut early = Stream::new(self.seed, Concern::Plan, 8);
            self.early_spares = if early.percent(40) { early.place(self.spares) + 1 } else { 0 };
            self.operator_gap_mean = stream.one_of(&[500 * MS, 1_500 * MS, 4_000 * MS]);
        }
    }

    /// Three servers, a few clients, and nothing that goes wrong.
    pub fn quiet(seed: u64) -> Plan {
        Plan {
            seed,
            nodes: 3,
            spares: 0,
            early_spares: 0,
            operator_gap_mean: 1_000 * MS,
            cells: 1,
            limits: Limits::default(),
            latency_mean: 100_000,
            late_permille: 0,
            disk_latency_mean: 200_000,
            disk_error_ppm: 0,
            segment_bytes: 512 * 1024,
            arrivals_max: u64::MAX,
            cache_bytes_max: CACHE_BYTES_MAX,
            apply_per_turn: APPLY_PER_TURN,
            snapshot_slice_bytes: SNAPSHOT_SLICE_BYTES,
            timing_ms: (50, 500, 1_000),
            drift_ppm_max: 0,
            workload: Workload::few(),
            forgers: 0,
            faults: FaultPlan::default(),
            safety: 20_000 * MS,
            outcasts_max: 0,
            start_mean: 0,
            birth_gap_mean: 50 * MS,
            is_model_asked: true,
            defect: None,
        }
    }

    /// Servers that are started at the beginning.
    pub fn started(&self) -> usize {
        self.nodes + self.early_spares.min(self.spares)
    }

    /// Machines for servers, those included that are not there at first.
    pub fn places(&self) -> usize {
        self.nodes + self.spares
    }

    /// How a node is called.
    pub fn node_id(place: usize) -> NodeId {
        NodeId(u16::try_from(place + 1).expect("nodes are few"))
    }

    /// Where a node serves clients.
    pub fn address(place: usize) -> String {
        format!("node-{}", place + 1)
    }

    /// Where it serves clients after so many moves: another name of the same machine.
    pub(super) fn address_after(place: usize, moves: u64) -> String {
        format!("{}:{moves}", Plan::address(place))
    }

    /// The node that serves clients at an address.
    pub fn place_of(address: &str) -> Option<usize> {
        let name = address.split(':').next().unwrap_or_default();
        name.strip_prefix("node-")?.parse::<usize>().ok()?.checked_sub(1)
    }

    /// The cell that a client deals with, by its number.
    pub(super) fn cell_of(&self, client: usize) -> CellId {
        CellId(u16::try_from(client).expect("clients are few") % self.cells)
    }

    /// The place of a forger: behind the clients and the visitors of the cells.
    pub(super) fn forger_place(&self, number: usize) -> usize {
        self.workload.clients + usize::from(self.cells) + number
    }

    pub(super) fn cluster(&self) -> ClusterId {
        ClusterId(Stream::new(self.seed, Concern::Identity, u64::MAX).bytes_16())
    }

    pub(super) fn cell_configs(&self, place: usize, life: u64, incarnation: Incarnation) -> Vec<CellConfig> {
        let members: Vec<Member> = (0..self.nodes)
            .map(|place| Member {
                node: Plan::node_id(place),
                client_address: Plan::address(place),
                peer_address: String::new(),
            })
            .collect();
        let (heartbeat_ms, election_ms_min, election_ms_max) = self.timing_ms;
        (0..self.cells)
            .map(|cell| {
                let number = (place as u64) << 40 | life << 16 | u64::from(cell) | 1 << 63;
                let mut stream = Stream::new(self.seed, Concern::Identity, number);
                CellConfig {
                    cell: CellId(cell),
                    cells: self.cells,
                    shards: 1,
                    node: Plan::node_id(place),
                    members: members.clone(),
                    is_joining: false,
                    incarnation,
                    birth_id: BirthId(stream.bytes_16()),
                    epoch: Epoch(0),
                    limits: self.limits,
                    heartbeat: Span::from_ms(heartbeat_ms),
                    election_min: Span::from_ms(election_ms_min),
                    election_max: Span::from_ms(election_ms_max),
                    round_pace: Span::from_ms(3),
                    preference: Span::from_ms(if self.faults.transfers { 4_000 } else { 0 }),
                    cache_bytes_max: self.cache_bytes_max,
                    apply_per_turn: self.apply_per_turn,
                    snapshot_slice_bytes: self.snapshot_slice_bytes,
                    seed: stream.next_u64(),
                    routes: Vec::new(),
                }
            })
            .collect()
    }
}

impl Workload {
    fn few() -> Workload {
        Workload {
            clients: 4,
            tasks: 2,
            sessions: 1,
            names: 2,
            ttl_ms: (2_000, 5_000),
            think_mean: 100 * MS,
            hold_mean: 100 * MS,
            shared_percent: 30,
            cancel_percent: 10,
            close_percent: 2,
            read_percent: 10,
            again_percent: 10,
            drop_percent: 10,
            odd_percent: 10,
            has_odd_names: false,
        }
    }

    fn drawn(stream: &mut Stream) -> Workload {
        let ttl_ms_min = stream.one_of(&[1_000, 1_000, 2_000, 5_000]);
        Workload {
            clients: stream.place(10) + 1,
            tasks: stream.place(4) + 1,
            sessions: stream.place(2) + 1,
            names: stream.place(4) + 1,
            ttl_ms: (ttl_ms_min, ttl_ms_min * 2),
            think_mean: stream.one_of(&[20 * MS, 100 * MS, 1_000 * MS]),
            hold_mean: stream.one_of(&[5 * MS, 50 * MS, 500 * MS, 3_000 * MS]),
            shared_percent: stream.one_of(&[0, 30, 70]),
            cancel_percent: stream.one_of(&[0, 10, 40]),
            close_percent: stream.one_of(&[0, 2, 10]),
            read_percent: stream.one_of(&[0, 10, 30]),
            again_percent: 0,
            drop_percent: 0,
            odd_percent: 0,
            has_odd_names: false,
        }
    }

    fn vary(&mut self, stream: &mut Stream) {
        self.again_percent = stream.one_of(&[0, 10, 40]);
        self.drop_percent = stream.one_of(&[0, 20, 50]);
        self.odd_percent = stream.one_of(&[0, 10, 30]);
        self.has_odd_names = stream.percent(50);
    }

    /// How a lock is called, by its number.
    pub fn name(&self, number: usize) -> String {
        match number {
            0 if self.has_odd_names => "/ls/sim/job".to_owned(),
            1 if self.has_odd_names => "/ls/sim/job1".to_owned(),
            2 if self.has_odd_names => "/ls/sim/job/1".to_owned(),
            3 if self.has_odd_names => format!("/ls/sim/{}", "n".repeat(NAME_BYTES_MAX - 8)),
            _ => format!("/ls/sim/{number}"),
        }
    }

    /// Many clients, each of which does little, so that a run stays affordable.
    fn crowd(&mut self, stream: &mut Stream) {
        self.clients = stream.place(31) + 20;
        self.tasks = self.tasks.min(2);
        self.sessions = 1;
        self.ttl_ms = (5_000, 10_000);
        self.think_mean = stream.one_of(&[1_000 * MS, 3_000 * MS]);
    }
}

impl FaultPlan {
    fn drawn(stream: &mut Stream) -> FaultPlan {
        if stream.percent(5) {
            return FaultPlan::default();
        }
        FaultPlan {
            gap_mean: Some(stream.one_of(&[300 * MS, 1_000 * MS, 1_000 * MS, 4_000 * MS])),
            kills: stream.percent(50),
            power_losses: stream.percent(50),
            pauses: stream.percent(50),
            cuts: stream.percent(60),
            resets: stream.percent(50),
            slow_disks: stream.percent(40),
            client_crashes: stream.percent(40),
            client_pauses: stream.percent(50),
            stops: stream.percent(30),
            late_turns: stream.percent(40),
            ..FaultPlan::default()
        }
    }
}

/// Limits that ordinary traffic meets.
fn tight_limits(stream: &mut Stream) -> Limits {
    let mut small = |low: u64, high: u64| u32::try_from(stream.between(low, high)).expect("small");
    Limits {
        holders_per_lock_max: small(2, 6),
        waiters_per_lock_max: small(2, 10),
        locks_per_session_max: small(2, 8),
        transitions_per_entry_max: small(4, 10),
        ..Limits::default()
    }
}
