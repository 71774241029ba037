//! What goes wrong, and when: faults, how each ends, and the nemesis that draws them.
//!
//! Invariant: every fault that lasts ends by itself, so that a run never depends on its last phase to be interesting.
//! Rot and lost disks do not end; the world sees to it that they stay on a minority. Deliberately absent: faults that no
//! system could survive, such as disks that forget what they confirmed.

use lockstep_wire::CellId;

use super::network::Site;
use super::plan::{FaultPlan, Plan};
use super::schedule::{MS, Moment};
use crate::random::{Concern, Stream};

/// Faults come thick and fast for so long where the birth of cells is to be met.
const BIRTH_SPAN: Moment = 1_500 * MS;

/// Directions between machines, as those in which nothing gets through.
pub type Cuts = Vec<(Site, Site)>;

/// A fault, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process of a node dies; its machine lives and says so.
    Kill(usize),
    /// The machine of a node loses power; nobody is told.
    PowerLoss(usize),
    /// A node that is down starts.
    Start(usize),
    /// A node begins an orderly stop.
    Stop(usize),
    /// A node stands still, and perhaps its clock with it.
    Pause {
        /// Which.
        node: usize,
        /// As when its machine is suspended.
        stops_clock: bool,
    },
    /// It goes on.
    Resume(usize),
    /// A node takes snapshots of its cells.
    Snapshot(usize),
    /// A turn of a node is late by so many ns, after it has read its clock.
    LateTurn(usize, u64),
    /// Links are cut.
    Cut(Cuts),
    /// They get through again.
    Mend(Cuts),
    /// All connections between two machines are reset.
    Reset(Site, Site),
    /// A disk is slow for so many ns, by about so many ns.
    SlowDisk(usize, u64, u64),
    /// What goes in these directions is late for so many ns, by about so many ns.
    Lag(Cuts, u64, u64),
    /// A disk has no room for more than so many bytes.
    FullDisk(usize, u64),
    /// It has room again.
    Room(usize),
    /// A bit flips in what a disk holds, unless as many are harmed as may be.
    Rot(usize),
    /// A bit flips in a snapshot that a disk holds, unless others are harmed and no more may be.
    RotSnapshot(usize),
    /// A machine loses power and its disk, and gets another one, unless as many are harmed as may be.
    Wipe(usize),
    /// The whole cluster is lost, and restored from the newest snapshots on a node's disk, or from older ones; clients go on.
    Restore {
        /// Whose disk the backup is of.
        node: usize,
        /// It was taken a while ago.
        is_older: bool,
    },
    /// A machine's clock goes on at another rate: so many millionths too fast.
    ClockRate(Site, i64),
    /// An operator asks a node, if it leads, to hand over: to this one, or to whichever is best.
    Transfer(usize, Option<usize>),
    /// A client dies.
    ClientCrash(usize),
    /// Another one takes its place.
    ClientStart(usize),
    /// A client stands still.
    ClientPause(usize),
    /// It goes on.
    ClientResume(usize),
}

/// Who draws faults.
#[derive(Debug)]
pub(super) struct Nemesis {
    stream: Stream,
    /// What does not change when other faults come.
    variety: Stream,
    plan: FaultPlan,
    nodes: usize,
    cells: u16,
    clients: usize,
    forgers: Vec<usize>,
    /// About a TTL, in ns: what is about that long is interesting.
    ttl: u64,
    drift_ppm_max: u64,
    birth_gap_mean: Moment,
    /// Faults come thick and fast, and none is too rare.
    is_birth: bool,
}

#[derive(Clone, Copy)]
enum Kind {
    Kill,
    PowerLoss,
    Pause,
    Cut,
    Reset,
    SlowDisk,
    ClientCrash,
    ClientPause,
    Stop,
    LateTurn,
    Lag,
    FullDisk,
    Rot,
    Wipe,
    ClockRate,
    Snapshot,
    Transfer,
    Restore,
}

impl Nemesis {
    pub(super) fn new(plan: &Plan) -> Nemesis {
        Nemesis {
            stream: Stream::new(plan.seed, Concern::Fault, 0),
            variety: Stream::new(plan.seed, Concern::Fault, 2),
            plan: plan.faults.clone(),
            nodes: plan.places(),
            cells: plan.cells,
            forgers: (0..plan.forgers).map(|number| plan.forger_place(number)).collect(),
            clients: plan.workload.clients,
            ttl: u64::from(plan.workload.ttl_ms.1) * MS,
            drift_ppm_max: plan.drift_ppm_max,
            birth_gap_mean: plan.birth_gap_mean,
            is_birth: false,
        }
    }

    /// When the next fault comes, in ns from now; never if there are none.
    pub(super) fn gap(&mut self, now: Moment) -> Option<Moment> {
        let mean = self.plan.gap_mean?;
        self.is_birth = self.plan.births && now < BIRTH_SPAN;
        let mean = if self.is_birth { self.birth_gap_mean.min(mean) } else { mean };
        Some(self.stream.around(mean) + MS)
    }

    /// The cell whose leader the next fault is likelier to meet than other nodes.
    pub(super) fn draw_cell(&mut self) -> CellId {
        CellId(self.variety.one_of(&(0..self.cells).collect::<Vec<u16>>()))
    }

    /// A client's machine: that of the client, or of a forger.
    fn draw_guest(&mut self, client: usize) -> Site {
        let is_forger = !self.forgers.is_empty() && self.variety.percent(25);
        Site::Client(if is_forger { self.variety.one_of(&self.forgers) } else { client })
    }

    /// The next fault and what ends it how much later. `leader` is a node that leads at the moment.
    pub(super) fn draw(&mut self, leader: Option<usize>) -> Option<(Fault, Option<(u64, Fault)>)> {
        let kinds = self.kinds();
        if kinds.is_empty() {
            return None;
        }
        let kind = kinds[self.stream.place(kinds.len())];
        let node = match leader {
            Some(leader) if self.stream.percent(50) => leader,
            _ => self.stream.place(self.nodes),
        };
        let client = self.stream.place(self.clients);
        let stream = &mut self.stream;
        let while_down = 20 * MS + stream.around_one_of(&[100 * MS, 1_000 * MS, 3_000 * MS]);
        Some(match kind {
            Kind::Kill => (Fault::Kill(node), Some((while_down, Fault::Start(node)))),
            Kind::PowerLoss => (Fault::PowerLoss(node), Some((while_down, Fault::Start(node)))),
            Kind::Stop => (Fault::Stop(node), Some((while_down + 3_000 * MS, Fault::Start(node)))),
            Kind::Pause => {
                let span = stream.around_one_of(&[60 * MS, 700 * MS, self.ttl]);
                let stops_clock = stream.percent(30);
                (Fault::Pause { node, stops_clock }, Some((span, Fault::Resume(node))))
            }
            Kind::Cut => {
                let cuts = self.draw_cuts(node, client);
                let span = self.stream.around_one_of(&[300 * MS, 2_000 * MS, self.ttl * 2]);
                (Fault::Cut(cuts.clone()), Some((span, Fault::Mend(cuts))))
            }
            Kind::Reset => {
                let is_guest = stream.percent(50);
                let other = Site::Node(stream.place(self.nodes));
                let other = if is_guest || self.nodes == 1 { self.draw_guest(client) } else { other };
                (Fault::Reset(Site::Node(node), other), None)
            }
            Kind::SlowDisk => {
                let by = stream.one_of(&[5 * MS, 100 * MS, 1_500 * MS]);
                (Fault::SlowDisk(node, stream.around(2_000 * MS), by), None)
            }
            Kind::ClientCrash => {
                (Fault::ClientCrash(client), Some((stream.around(2_000 * MS), Fault::ClientStart(client))))
            }
            Kind::ClientPause => {
                let span = stream.around_one_of(&[500 * MS, self.ttl, self.ttl, self.ttl * 2]);
                (Fault::ClientPause(client), Some((span, Fault::ClientResume(client))))
            }
            Kind::LateTurn => {
                let span = stream.around_one_of(&[50 * MS, 500 * MS, self.ttl]);
                (Fault::LateTurn(node, span), None)
            }
            Kind::Lag => (self.draw_lag(node, client), None),
            Kind::FullDisk => {
                let bytes = stream.one_of(&[0, 0, 300 * 1024, 700 * 1024]);
                let span = stream.around_one_of(&[500 * MS, 3_000 * MS, 8_000 * MS]);
                (Fault::FullDisk(node, bytes), Some((span, Fault::Room(node))))
            }
            // There are few of them in a run, and the first ones drawn would be all.
            Kind::Rot | Kind::Wipe if !self.is_birth && stream.percent(80) => return None,
            Kind::Rot if self.nodes > 1 && self.variety.percent(60) => (Fault::RotSnapshot(node), None),
            Kind::Rot => (Fault::Rot(node), None),
            Kind::Wipe => (Fault::Wipe(node), Some((while_down, Fault::Start(node)))),
            // It costs a minute in which nothing is granted.
            Kind::Restore if stream.percent(88) => return None,
            Kind::Restore => (Fault::Restore { node, is_older: stream.percent(40) }, None),
            Kind::ClockRate => (self.draw_clock_rate(node, client), None),
            Kind::Snapshot => (Fault::Snapshot(node), None),
            Kind::Transfer => {
                let to = stream.percent(70).then(|| stream.place(self.nodes));
                (Fault::Transfer(leader.unwrap_or(node), to), None)
            }
        })
    }

    fn draw_lag(&mut self, node: usize, client: usize) -> Fault {
        let cuts = self.draw_cuts(node, client);
        let by = self.stream.one_of(&[2 * MS, 30 * MS, 200 * MS]);
        Fault::Lag(cuts, self.stream.around_one_of(&[1_000 * MS, self.ttl]), by)
    }

    fn draw_clock_rate(&mut self, node: usize, client: usize) -> Fault {
        let max = self.drift_ppm_max;
        let drift_ppm = self.stream.between(0, 2 * max).cast_signed() - max.cast_signed();
        let is_client = self.stream.percent(50);
        Fault::ClockRate(if is_client { Site::Client(client) } else { Site::Node(node) }, drift_ppm)
    }

    fn kinds(&self) -> Vec<Kind> {
        let plan = &self.plan;
        [
            (plan.kills, Kind::Kill),
            (plan.power_losses, Kind::PowerLoss),
            (plan.pauses, Kind::Pause),
            (plan.cuts, Kind::Cut),
            (plan.resets, Kind::Reset),
            (plan.slow_disks, Kind::SlowDisk),
            (plan.client_crashes, Kind::ClientCrash),
            (plan.client_pauses, Kind::ClientPause),
            (plan.stops, Kind::Stop),
            (plan.late_turns, Kind::LateTurn),
            (plan.lags, Kind::Lag),
            (plan.full_disks, Kind::FullDisk),
            (plan.rot, Kind::Rot),
            (plan.wipes, Kind::Wipe),
            (plan.clock_rates, Kind::ClockRate),
            (plan.snapshots, Kind::Snapshot),
            (plan.transfers, Kind::Transfer),
            (plan.restores, Kind::Restore),
        ]
        .into_iter()
        .filter(|(exists, _)| *exists)
        .map(|(_, kind)| kind)
        .collect()
    }

    /// Cuts between clients and nodes: of one node or of all, in both directions or in one.
    fn draw_guest_cuts(&mut self, node: usize, client: usize) -> Cuts {
        let guest = self.draw_guest(client);
        let nodes = if self.variety.percent(50) { node..node + 1 } else { 0..self.nodes };
        let shape = self.variety.below(4);
        let mut cuts = Cuts::new();
        for node in nodes.map(Site::Node) {
            match shape {
                0 => cuts.push((node, guest)),
                1 => cuts.push((guest, node)),
                _ => cut_both(&mut cuts, node, guest),
            }
        }
        cuts
    }

    /// Cuts of one shape: alone, one way, in two halves, in two halves with a bridge, or from clients. A single node has
    /// only clients to be cut from.
    fn draw_cuts(&mut self, node: usize, client: usize) -> Cuts {
        let others: Vec<usize> = (0..self.nodes).filter(|other| *other != node).collect();
        let stream = &mut self.stream;
        let mut cuts = Cuts::new();
        let shape = stream.below(5);
        match if self.nodes == 1 { 4 } else { shape } {
            0 => {
                for other in others {
                    cut_both(&mut cuts, Site::Node(node), Site::Node(other));
                }
            }
            1 => {
                let outwards = stream.percent(50);
                for other in others {
                    let (from, to) = if outwards { (node, other) } else { (other, node) };
                    cuts.push((Site::Node(from), Site::Node(to)));
                }
            }
            2 | 3 => {
                // `node` stands between the halves, or not.
                let is_bridge = stream.percent(50);
                let sides: Vec<bool> = (0..self.nodes).map(|_| stream.percent(50)).collect();
                for one in 0..self.nodes {
                    for other in one + 1..self.nodes {
                        let is_exempt = is_bridge && (one == node || other == node);
                        if sides[one] != sides[other] && !is_exempt {
                            cut_both(&mut cuts, Site::Node(one), Site::Node(other));
                        }
                    }
                }
            }
            _ => return self.draw_guest_cuts(node, client),
        }
        cuts
    }
}

/// Cuts both directions between two machines.
pub fn cut_both(cuts: &mut Cuts, one: Site, other: Site) {
    cuts.push((one, other));
    cuts.push((other, one));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cuts_of(change: impl Fn(&mut Plan)) -> Vec<Cuts> {
        let mut plan = Plan::quiet(1);
        change(&mut plan);
        plan.faults = FaultPlan { gap_mean: Some(MS), cuts: true, ..FaultPlan::default() };
        let mut nemesis = Nemesis::new(&plan);
        let draws = (0..500).filter_map(|_| nemesis.draw(None));
        draws
            .map(|(fault, _)| match fault {
                Fault::Cut(cuts) => cuts,
                other => panic!("only cuts exist: {other:?}"),
            })
            .collect()
    }

    #[test]
    fn clients_are_cut_from_one_node_and_from_all_in_one_direction_and_in_both() {
        let all = cuts_of(|plan| plan.forgers = 1);
        let of_guests = |length: usize| {
            let is_it = move |cuts: &&Cuts| {
                cuts.len() == length && cuts.iter().all(|(from, to)| is_guest(*from) || is_guest(*to))
            };
            all.iter().filter(is_it).count()
        };
        for length in [1, 2, 3, 6] {
            assert!(of_guests(length) > 5, "{length}: {}", of_guests(length));
        }
        let forger = Site::Client(Plan { forgers: 1, ..Plan::quiet(1) }.forger_place(0));
        assert!(all.iter().flatten().any(|(from, _)| *from == forger));
    }

    #[test]
    fn a_single_node_has_only_clients_to_be_cut_from() {
        let all = cuts_of(|plan| plan.nodes = 1);
        assert!(all.iter().all(|cuts| !cuts.is_empty()));
        assert!(all.iter().flatten().all(|(from, to)| is_guest(*from) || is_guest(*to)));
    }

    fn is_guest(site: Site) -> bool {
        matches!(site, Site::Client(_))
    }
}
