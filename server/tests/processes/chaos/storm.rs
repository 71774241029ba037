//! What is done to the nodes and to their links, drawn from a seed.
//!
//! Invariant: whatever a storm breaks it mends, at the latest when it ends; most of the time a majority is left alone.
//! Deliberately absent: clients, and whether what they are told is right.

use std::time::{Duration, Instant};

use lockstep_sim::random::{Concern, Stream};
use lockstep_wire::CellId;
use rustix::process::Signal;

use super::network::Network;
use crate::cluster::{Cluster, free_port};

const CELL: CellId = CellId(0);
/// Nothing of a log is recycled before the judges have read it all.
const SEGMENT_MIB: u64 = 16;

/// Something that is broken, and until when.
#[derive(Debug)]
struct Trouble {
    node: Option<usize>,
    what: What,
    until: Instant,
}

#[derive(Debug)]
enum What {
    /// Its process is gone.
    Gone,
    /// Its process stands still.
    Still,
    /// Links that carry nothing in this direction.
    Cut(Vec<(usize, usize)>),
}

/// How often each thing was done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deeds {
    pub(super) kills: u32,
    pub(super) orderly_stops: u32,
    pub(super) standstills: u32,
    pub(super) cuts: u32,
}

/// See the module.
pub(super) struct Storm<'a> {
    pub(super) cluster: Cluster,
    network: Option<&'a Network>,
    /// Sites of clients, after those of the nodes.
    client_sites: usize,
    stream: Stream,
    troubles: Vec<Trouble>,
    pub(super) deeds: Deeds,
}

impl Storm<'_> {
    /// Formats the nodes and starts them, each at its site.
    pub(super) fn new(network: Option<&Network>, nodes: usize, client_sites: usize, seed: u64) -> Storm<'_> {
        let addresses: Vec<_> = match network {
            Some(network) => {
                let address = |at, port| (network.address(at), port).into();
                (0..nodes).map(|at| (address(at, 7400), address(at, 7401))).collect()
            }
            None => (0..nodes).map(|_| (free_port(), free_port())).collect(),
        };
        let cluster = Cluster::format_at(&addresses, 1, SEGMENT_MIB, "");
        let (stream, troubles) = (Stream::new(seed, Concern::Fault, 0), Vec::new());
        let mut storm = Storm { cluster, network, client_sites, stream, troubles, deeds: Deeds::default() };
        (0..nodes).for_each(|at| storm.start(at));
        storm
    }

    fn nodes(&self) -> usize {
        self.cluster.places.len()
    }

    fn start(&mut self, at: usize) {
        match self.network {
            Some(network) => network.at(at, || self.cluster.start_node(at)),
            None => self.cluster.start_node(at),
        }
    }

    /// Breaks and mends for so long, and mends everything at the end.
    pub(super) fn rage(&mut self, how_long: Duration) {
        let end = Instant::now() + how_long;
        if self.network.is_some() {
            // Whatever else is drawn: some client is not heard of for longer than its sessions live.
            let (first, last) = (self.nodes(), self.nodes() + self.client_sites);
            let from = self.stream.place(last - first) + first;
            let cuts = (0..self.nodes()).map(|node| (from, node)).collect();
            self.break_links(None, cuts, 5_000);
        }
        while Instant::now() < end {
            self.mend_until(Instant::now());
            self.look_after_the_living();
            let most = if self.stream.percent(10) { 3 } else { 2 };
            if self.troubles.iter().filter(|trouble| trouble.node.is_some()).count() < most {
                self.break_something();
            }
            let pause_ms = self.stream.around(250).min(1_000);
            std::thread::sleep(Duration::from_millis(pause_ms));
        }
        self.mend_until(end + Duration::from_secs(3_600));
        self.look_after_the_living();
    }

    /// A node whose process is not in trouble goes on.
    fn look_after_the_living(&mut self) {
        for at in 0..self.nodes() {
            if let Some(process) = &mut self.cluster.processes[at] {
                assert!(process.is_running(), "node {} has ended: {}", at + 1, process.complained());
            }
        }
    }

    fn break_something(&mut self) {
        let kinds = if self.network.is_some() { 100 } else { 50 };
        let kind = self.stream.below(kinds);
        let Some(node) = self.victim() else { return };
        match kind {
            0..20 => {
                self.deeds.kills += 1;
                self.cluster.kill(node);
                self.begin(node, What::Gone, 700);
            }
            20..30 => {
                self.deeds.orderly_stops += 1;
                let process = self.cluster.process(node);
                // One that has only just been started may not listen to signals yet, and dies of it.
                let was_serving = process.complained().contains("INFO serving");
                process.signal(Signal::TERM);
                let (status, complained) = self.cluster.wait(node, crate::PATIENCE);
                assert!(status.success() || !was_serving, "an orderly stop ends with {status}: {complained}");
                self.begin(node, What::Gone, 400);
            }
            30..50 => {
                self.deeds.standstills += 1;
                self.cluster.process(node).stand_still();
                self.begin(node, What::Still, 1_000);
            }
            _ => self.break_some_links(node, kind),
        }
    }

    /// A node that is in no trouble; often the leader.
    fn victim(&mut self) -> Option<usize> {
        let is_free = |at: &usize| !self.troubles.iter().any(|trouble| trouble.node == Some(*at));
        let free: Vec<usize> = (0..self.nodes()).filter(is_free).collect();
        let leader = if self.stream.percent(40) { self.cluster.leader_among(&free, CELL) } else { None };
        if leader.is_some() || free.is_empty() {
            return leader;
        }
        Some(self.stream.one_of(&free))
    }

    fn break_some_links(&mut self, node: usize, kind: u64) {
        let nodes = self.nodes();
        let others: Vec<usize> = (0..nodes).filter(|other| *other != node).collect();
        let clients = nodes..nodes + self.client_sites;
        let from = |sites: &[usize]| sites.iter().map(|site| (*site, node)).collect::<Vec<_>>();
        let to = |sites: &[usize]| sites.iter().map(|site| (node, *site)).collect::<Vec<_>>();
        match kind {
            // Alone, its clients aside.
            50..60 => self.break_links(Some(node), [from(&others), to(&others)].concat(), 1_200),
            // It hears nobody, or nobody hears it.
            60..68 => self.break_links(Some(node), from(&others), 1_200),
            68..76 => self.break_links(Some(node), to(&others), 1_200),
            // Two that do not see each other: others are a bridge between them.
            76..84 => {
                let other = self.stream.one_of(&others);
                self.break_links(Some(node), vec![(node, other), (other, node)], 2_000);
            }
            // Clients that do not reach it, or that it does not reach.
            84..92 => {
                let site = self.stream.place(self.client_sites) + clients.start;
                let cut = if self.stream.percent(50) { (site, node) } else { (node, site) };
                self.break_links(Some(node), vec![cut], 1_500);
            }
            // Clients that reach nobody.
            _ => {
                let site = self.stream.place(self.client_sites) + clients.start;
                let cuts = (0..nodes).flat_map(|node| [(site, node), (node, site)]).collect();
                self.break_links(None, cuts, 2_500);
            }
        }
    }

    fn break_links(&mut self, node: Option<usize>, mut cuts: Vec<(usize, usize)>, mean_ms: u64) {
        let Some(network) = self.network else { return };
        let is_cut = |cut: &(usize, usize)| {
            self.troubles.iter().any(|trouble| matches!(&trouble.what, What::Cut(cuts) if cuts.contains(cut)))
        };
        cuts.retain(|cut| !is_cut(cut));
        cuts.iter().for_each(|(from, to)| network.cut(*from, *to));
        self.deeds.cuts += u32::from(!cuts.is_empty());
        let until = Instant::now() + Duration::from_millis(self.stream.around(mean_ms).max(mean_ms / 4));
        // What cuts clients off for good is to outlast their sessions.
        let until =
            if node.is_none() { until.max(Instant::now() + Duration::from_millis(mean_ms)) } else { until };
        self.troubles.push(Trouble { node, what: What::Cut(cuts), until });
    }

    fn begin(&mut self, node: usize, what: What, mean_ms: u64) {
        let until = Instant::now() + Duration::from_millis(self.stream.around(mean_ms));
        self.troubles.push(Trouble { node: Some(node), what, until });
    }

    /// Mends what has been broken for long enough.
    fn mend_until(&mut self, now: Instant) {
        let (over, on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.troubles).into_iter().partition(|trouble| trouble.until <= now);
        self.troubles = on;
        for trouble in over {
            match (trouble.what, trouble.node) {
                (What::Gone, Some(node)) => self.start(node),
                (What::Still, Some(node)) => self.cluster.process(node).signal(Signal::CONT),
                (What::Cut(cuts), _) => {
                    let network = self.network.expect("links were cut");
                    cuts.iter().for_each(|(from, to)| network.mend(*from, *to));
                }
                (What::Gone | What::Still, None) => unreachable!("a process is a node's"),
            }
        }
    }

    /// Stops every node in order, one after the other.
    pub(super) fn stop_all(&mut self) {
        for at in 0..self.nodes() {
            self.cluster.process(at).signal(Signal::TERM);
            let (status, complained) = self.cluster.wait(at, crate::PATIENCE);
            assert!(status.success(), "an orderly stop ends with {status}: {complained}");
        }
    }
}
