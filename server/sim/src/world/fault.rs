//! What goes wrong, and when: faults, how each ends, and the nemesis that draws them.
//!
//! Invariant: every fault that lasts ends by itself, so that a run never depends on its last phase to be interesting.
//! Deliberately absent: faults that no system could survive, such as disks that forget what they confirmed.

use super::network::Site;
use super::plan::FaultPlan;
use super::schedule::{MS, Moment};
use crate::random::Stream;

/// Directions in which nothing gets through.
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
    plan: FaultPlan,
    nodes: usize,
    clients: usize,
    /// About a TTL, in ns: what is about that long is interesting.
    ttl: u64,
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
}

impl Nemesis {
    pub(super) fn new(stream: Stream, plan: FaultPlan, nodes: usize, clients: usize, ttl: u64) -> Nemesis {
        Nemesis { stream, plan, nodes, clients, ttl }
    }

    /// When the next fault comes, in ns from now; never if there are none.
    pub(super) fn gap(&mut self) -> Option<Moment> {
        self.plan.gap_mean.map(|mean| self.stream.around(mean) + MS)
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
                let other = if stream.percent(50) {
                    Site::Client(client)
                } else {
                    Site::Node(stream.place(self.nodes))
                };
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
        })
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
        ]
        .into_iter()
        .filter(|(exists, _)| *exists)
        .map(|(_, kind)| kind)
        .collect()
    }

    /// Cuts of one shape: alone, one way, in two halves, in two halves with a bridge, or from a client.
    fn draw_cuts(&mut self, node: usize, client: usize) -> Cuts {
        let others: Vec<usize> = (0..self.nodes).filter(|other| *other != node).collect();
        let stream = &mut self.stream;
        let mut cuts = Cuts::new();
        match stream.below(5) {
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
            _ => cut_both(&mut cuts, Site::Node(node), Site::Client(client)),
        }
        cuts
    }
}

/// Cuts both directions between two machines.
pub fn cut_both(cuts: &mut Cuts, one: Site, other: Site) {
    cuts.push((one, other));
    cuts.push((other, one));
}
