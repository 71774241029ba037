//! Several `lockstep serve` processes that make one cluster.
//!
//! Invariant: ports lie outside of the range from which the kernel takes those of outgoing connections, so that a node that
//! comes back finds its own free.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use lockstep_wire::CellId;
use lockstep_wire::reply::Reply;
use lockstep_wire::request::Request;
use tempfile::TempDir;

use crate::connection::Connection;
use crate::process::{PROGRAM, Process, format};
use crate::{PATIENCE, directory, until};

/// The size of a segment unless a test wants another one: small, so that logs go around.
pub(crate) const SEGMENT_MIB: u64 = 1;

/// Where a node is, and what it is told.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) id: u16,
    pub(crate) data: PathBuf,
    pub(crate) config: PathBuf,
    pub(crate) client: SocketAddr,
    pub(crate) peer: SocketAddr,
}

/// A cell as one node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) role: String,
    pub(crate) term: u64,
    pub(crate) leader: u16,
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    pub(crate) digest: u64,
    pub(crate) sessions: u64,
    pub(crate) locks: u64,
}

/// A cluster; its directory goes with it.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// First, so that nobody writes into the directory any more when it goes.
    pub(crate) processes: Vec<Option<Process>>,
    pub(crate) directory: TempDir,
    pub(crate) id: String,
    pub(crate) shards: u16,
    pub(crate) places: Vec<Place>,
}

impl Cluster {
    /// Formats `nodes` nodes on loopback; nothing runs yet. `more` is added to each configuration, before its tables.
    pub(crate) fn format(nodes: u16, shards: u16, more: &str) -> Cluster {
        let addresses: Vec<_> = (0..nodes).map(|_| (free_port(), free_port())).collect();
        Cluster::format_at(&addresses, shards, SEGMENT_MIB, more)
    }

    /// Formats a node for each pair of addresses, those for clients and for members; nothing runs yet.
    pub(crate) fn format_at(
        addresses: &[(SocketAddr, SocketAddr)],
        shards: u16,
        segment_mib: u64,
        more: &str,
    ) -> Cluster {
        let directory = directory();
        let places: Vec<Place> = (1..)
            .zip(addresses)
            .map(|(id, (client, peer))| Place {
                id,
                data: directory.path().join(format!("data-{id}")),
                config: directory.path().join(format!("node-{id}.toml")),
                client: *client,
                peer: *peer,
            })
            .collect();
        let mut id: Option<String> = None;
        for place in &places {
            let drawn = format(&place.data, place.id, id.as_deref(), shards, segment_mib);
            id.get_or_insert(drawn);
            std::fs::write(&place.config, config(place, &places, more)).expect("a file can be written");
        }
        let processes = places.iter().map(|_| None).collect();
        let id = id.expect("a cluster has nodes");
        Cluster { directory, id, shards, places, processes }
    }

    /// Formats and starts a cluster, and waits until every cell has a leader.
    #[track_caller]
    pub(crate) fn start(nodes: u16) -> Cluster {
        let mut cluster = Cluster::format(nodes, 1, "");
        cluster.start_all();
        cluster.leader(CellId(0));
        cluster
    }

    /// Starts every node that does not run.
    pub(crate) fn start_all(&mut self) {
        for at in 0..self.places.len() {
            if self.processes[at].is_none() {
                self.start_node(at);
            }
        }
    }

    /// Starts a node.
    pub(crate) fn start_node(&mut self, at: usize) {
        let config = self.places[at].config.display().to_string();
        self.processes[at] = Some(Process::start(["serve", "--config", &config]));
    }

    /// Starts a node from a shell that sets a limit first, as `ulimit` says it.
    pub(crate) fn start_limited(&mut self, at: usize, limit: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit} && exec \"$@\""), "sh", PROGRAM, "serve", "--config"]);
        command.arg(&self.places[at].config);
        self.processes[at] = Some(Process::spawn(command));
    }

    /// Ends a node as a loss of power would, and gives what it had said on stderr.
    pub(crate) fn kill(&mut self, at: usize) -> String {
        let mut process = self.processes[at].take().expect("the node runs");
        process.kill();
        process.complained()
    }

    /// The process of a node that runs.
    pub(crate) fn process(&mut self, at: usize) -> &mut Process {
        self.processes[at].as_mut().expect("the node runs")
    }

    /// Where clients connect.
    pub(crate) fn endpoints(&self) -> Vec<SocketAddr> {
        self.places.iter().map(|place| place.client).collect()
    }

    /// What a node says of a cell; none when it does not answer.
    pub(crate) fn known(&self, at: usize, cell: CellId) -> Option<Known> {
        self.processes[at].as_ref()?;
        let mut connection = Connection::open(self.places[at].client, cell).ok()?;
        let answer = connection.call(&Request::Status).ok()?;
        let Reply::Status(status) = answer.reply() else { panic!("a status was answered {answer:?}") };
        Some(Known {
            role: status.role.to_owned(),
            term: status.term.0,
            leader: status.leader.0,
            committed: status.committed.0,
            applied: status.applied.0,
            digest: status.digest,
            sessions: status.sessions,
            locks: status.locks,
        })
    }

    /// The node that leads, looked for among those that are named.
    pub(crate) fn leader_among(&self, nodes: &[usize], cell: CellId) -> Option<usize> {
        let all = nodes.iter().filter_map(|at| self.known(*at, cell).map(|known| (*at, known)));
        let leaders = all.filter(|(_, known)| known.role == "leader");
        leaders.max_by_key(|(_, known)| known.term).map(|(at, _)| at)
    }

    /// The node that leads, once there is one.
    #[track_caller]
    pub(crate) fn leader(&self, cell: CellId) -> usize {
        let all: Vec<usize> = (0..self.places.len()).collect();
        until("a leader", PATIENCE, || self.leader_among(&all, cell))
    }

    /// Waits until a node that came back has what the leader had committed when it did.
    #[track_caller]
    pub(crate) fn await_caught_up(&self, at: usize, cell: CellId) {
        let others: Vec<usize> = (0..self.places.len()).filter(|other| *other != at).collect();
        let committed =
            others.iter().filter_map(|other| self.known(*other, cell)).map(|known| known.committed);
        let committed = committed.max().expect("another node answers");
        until("a node that came back has caught up", PATIENCE, || {
            self.known(at, cell).filter(|known| known.applied >= committed)
        });
    }

    /// Waits until every node has applied the same entries, and holds their digests against each other.
    #[track_caller]
    pub(crate) fn agree(&self, cell: CellId) {
        let running = (0..self.places.len()).filter(|at| self.processes[*at].is_some());
        let running: Vec<usize> = running.collect();
        let states = until("every node has applied the same", PATIENCE, || {
            let known: Option<Vec<_>> = running
                .iter()
                .map(|at| self.known(*at, cell).map(|known| (known.applied, known.digest)))
                .collect();
            let known = known?;
            known.iter().all(|(applied, _)| *applied == known[0].0).then_some(known)
        });
        assert!(states.iter().all(|state| *state == states[0]), "the digests differ: {states:x?}");
    }

    /// Waits for the end of a node that was told to stop, and says whether it ended well.
    #[track_caller]
    pub(crate) fn wait(&mut self, at: usize, patience: Duration) -> (std::process::ExitStatus, String) {
        let mut process = self.processes[at].take().expect("the node runs");
        let status = process.wait(patience).expect("the node ends");
        (status, process.complained())
    }
}

/// The configuration of a node.
pub(crate) fn config(place: &Place, places: &[Place], more: &str) -> String {
    let mut text = format!("data = {:?}\nnode = {}\n{more}\n", place.data, place.id);
    for Place { id, client, peer, .. } in places {
        write!(text, "[[nodes]]\nid = {id}\nclient = \"{client}\"\npeer = \"{peer}\"\n")
            .expect("a string takes everything");
    }
    text
}

/// A port of this machine that nobody has.
#[track_caller]
pub(crate) fn free_port() -> SocketAddr {
    const FIRST: u16 = 12_000;
    const COUNT: u16 = 18_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Two runs at once begin at different places.
    let own = u16::try_from(std::process::id() % 600).expect("less than 600") * 30;
    until("a free port", PATIENCE, || {
        let at = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + own.wrapping_add(at) % COUNT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpListener::bind(address).ok().map(|_| address)
    })
}
